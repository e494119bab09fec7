package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

func partID(of string, n int) string { return fmt.Sprintf("%s#%d", of, n) }

// Commands are what writes a letter, for the database mongo.StateDB and in
// this order; to be followed by Noted. It gives the letter its ID.
func (s *Store) Commands(l *Letter) []bson.D {
	if l.ID == "" {
		l.ID = letterID(s.job, *l)
		if m := s.memo(l.NS, l.DocID); m != nil && l.State != Removed {
			l.ID = m.id
		}
	}
	key := keyOf(l.DocID)
	d := stored{ID: l.ID, Job: s.job, NS: l.NS, State: l.State, Cause: l.Cause, DocID: rawOf(l.DocID), IDText: bsonraw.IDText(l.DocID),
		Reason: l.Reason, Code: l.Code, Index: l.Index, At: l.At, Until: l.Until, Bytes: len(l.Doc), Key: bson.Binary{Data: key[:]}}
	if d.Source = l.Source; l.UUID != nil {
		d.UUID = &bson.Binary{Subtype: bson.TypeBinaryUUID, Data: l.UUID[:]}
	}
	if l.Other.Type != 0 {
		d.Other = rawOf(bsonraw.FromRaw(l.Other))
	}
	var cmds []bson.D
	if len(l.Doc) > 0 && embeddable(l.Doc) {
		d.Document = l.Doc
	} else if len(l.Doc) > 0 {
		// Named by their content: a crash never leaves parts of two states.
		sum := sha256.Sum256(l.Doc)
		d.Of = l.ID + "@" + hex.EncodeToString(sum[:8])
		for rest := l.Doc; len(rest) > 0; d.Parts++ {
			n := min(len(rest), partSize)
			cmds = append(cmds, upsert(partsCollection, partID(d.Of, d.Parts),
				bson.D{{Key: "letter", Value: l.ID}, {Key: "of", Value: d.Of}, {Key: "data", Value: rest[:n]}}, nil))
			rest = rest[n:]
		}
	}
	set, unset := d.update()
	cmds = append(cmds, upsert(Collection, l.ID, set, unset))
	return append(cmds, bson.D{{Key: "delete", Value: partsCollection}, {Key: "deletes", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "letter", Value: l.ID}, {Key: "of", Value: bson.D{{Key: "$ne", Value: d.Of}}}}}, {Key: "limit", Value: 0}}}}})
}

// update splits what is stored into fields to set and to remove.
func (d stored) update() (set, unset bson.D) {
	set = bson.D{{Key: "job", Value: d.Job}, {Key: "ns", Value: d.NS}, {Key: "state", Value: d.State}, {Key: "cause", Value: d.Cause},
		{Key: "documentIdText", Value: d.IDText}, {Key: "reason", Value: d.Reason}, {Key: "code", Value: d.Code},
		{Key: "position", Value: d.At}, {Key: "until", Value: d.Until}, {Key: "parts", Value: d.Parts}, {Key: "partsOf", Value: d.Of},
		{Key: "bytes", Value: d.Bytes}, {Key: "key", Value: d.Key}, {Key: "updated", Value: time.Now().UTC()}}
	optional := func(name string, there bool, v any) {
		if there {
			set = append(set, bson.E{Key: name, Value: v})
		} else {
			unset = append(unset, bson.E{Key: name, Value: ""})
		}
	}
	optional("documentId", d.DocID != nil, d.DocID)
	optional("document", d.Document != nil, d.Document)
	optional("index", d.Index != "", d.Index)
	optional("source", d.Source != "", d.Source)
	optional("uuid", d.UUID != nil, d.UUID)
	optional("otherId", d.Other != nil, d.Other)
	return set, unset
}

func upsert(coll, id string, set, unset bson.D) bson.D {
	u := bson.D{{Key: "$set", Value: set}}
	if coll == Collection {
		u = append(u, bson.E{Key: "$setOnInsert", Value: bson.D{{Key: "time", Value: time.Now().UTC()}}})
	}
	if len(unset) > 0 {
		u = append(u, bson.E{Key: "$unset", Value: unset})
	}
	return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: u}, {Key: "upsert", Value: true}}}}}
}

// Noted remembers a letter that Commands has written.
func (s *Store) Noted(l Letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(l.DocID)
	old := s.disputes[l.NS][key]
	if l.State == Removed || l.State == Settled && old == nil {
		s.stats.count(l.State, 1)
		return
	}
	if old != nil {
		s.stats.count(old.state, -1)
	} else {
		s.n.Add(1)
	}
	s.stats.count(l.State, 1)
	m := &memo{id: l.ID, state: l.State, until: l.Until}
	if old != nil && old.retry { // still to be tried
		m.retry = l.State == Open
		if !m.retry {
			s.retries--
		}
	}
	put(s.disputes, l.NS, key, m)
}

// Write writes a letter; a letter of the same document in dispute is replaced.
func (s *Store) Write(ctx context.Context, l Letter) error {
	if s.n.Load() >= maxDisputes && !s.Disputed(l.NS, l.DocID) {
		return mongo.WithHint(fmt.Errorf("%d documents are refused by the target; the next is %s, _id %s: %s", maxDisputes, l.NS, bsonraw.IDText(l.DocID), l.Reason),
			"so many are no stray writes: read "+mongo.StateDB+"."+Collection+" on the target, remove the cause, and start again")
	}
	if err := s.run(ctx, s.Commands(&l)); err != nil {
		return fmt.Errorf("write dead letter of %s, _id %s: %w", l.NS, bsonraw.IDText(l.DocID), err)
	}
	s.Noted(l)
	return nil
}

// Settle closes the case of a document in dispute. A letter that turned out to
// be about nothing is removed.
func (s *Store) Settle(ctx context.Context, l Letter, reason string) error {
	var err error
	nothing := l.State == Undecided && l.Cause != CauseMissing && l.Cause != CauseShape && l.Cause != CauseInWay
	if nothing {
		err = s.run(ctx, []bson.D{
			{{Key: "delete", Value: Collection}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: l.ID}}}, {Key: "limit", Value: 1}}}}},
			{{Key: "delete", Value: partsCollection}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "letter", Value: l.ID}}}, {Key: "limit", Value: 0}}}}},
		})
	} else {
		err = s.run(ctx, []bson.D{SettleCommand(l, reason)})
	}
	if err != nil {
		return fmt.Errorf("settle dead letter %s: %w", l.ID, err)
	}
	s.Forgotten(l, !nothing)
	return nil
}

// SettleCommand is what marks a letter as settled, to be followed by Forgotten.
func SettleCommand(l Letter, reason string) bson.D {
	return bson.D{{Key: "update", Value: Collection}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: l.ID}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: Settled}, {Key: "settledBy", Value: reason},
			{Key: "settledAt", Value: time.Now().UTC()}}}}}}}}}
}

// Forgotten notes that a document is in dispute no more; settled says that its
// letter was kept.
func (s *Store) Forgotten(l Letter, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(l.DocID)
	old := s.disputes[l.NS][key]
	if old == nil {
		return
	}
	s.stats.count(old.state, -1)
	if settled {
		s.stats.Settled++
	}
	s.forgetRetry(old)
	delete(s.disputes[l.NS], key)
	s.n.Add(-1)
}

// run sends commands with write concern 1.
func (s *Store) run(ctx context.Context, cmds []bson.D) error {
	failpoint.Hit("letter.before")
	defer failpoint.Hit("letter.after")
	conn, err := s.c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, cmd := range cmds {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}})
		body, err := conn.Run(ctx, mongo.StateDB, cmd)
		if err != nil {
			return err
		}
		res := wire.ParseWriteResult(body)
		if err := mongo.Interrupted(res); err != nil {
			return err
		}
		for _, e := range res.Errors {
			return e
		}
		if s.observe != nil {
			if err := s.observe(res.Term); err != nil {
				return err
			}
		}
	}
	return nil
}
