package origin

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// moves passes each schema change of a router's change stream once, although every shard reports it. It leaves
// out what movePrimary does to an unsharded collection. That makes a copy with another UUID and drops the
// original, and shards report both as if a user had done it.
type moves struct {
	of     *Streamed
	filter *shards.ChangeFilter

	mu    sync.Mutex
	at    mongo.OpTime            // the stream has passed it
	colls map[[16]byte]collection // that the stream has seen
	next  map[[16]byte][16]byte   // of collections that have moved
}

type collection struct {
	ns   string
	made bool // in this run, so that the filter knows its copies
}

func newMoves(of *Streamed, names []schema.Name, pos stream.Position) *moves {
	m := &moves{of: of, filter: shards.NewChangeFilter(known(names)), at: pos.At,
		colls: map[[16]byte]collection{}, next: map[[16]byte][16]byte{}}
	for _, one := range names {
		if id, ok := ownership.ParseUUID(one.UUID); ok {
			m.colls[id] = collection{ns: one.NS}
		}
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	of.moves = m
	return m
}

func (m *moves) wrap(emit func(context.Context, *stream.Batch) error) func(context.Context, *stream.Batch) error {
	return func(ctx context.Context, b *stream.Batch) error {
		kept := b.Events[:0]
		for i := range b.Events {
			ev := b.Events[i]
			if ev.Kind == stream.SchemaChange {
				if err := m.change(ctx, &ev); err != nil {
					return err
				}
				switch passes, err := m.filter.Passes(ctx, &ev); {
				case err != nil:
					return err
				case !passes:
					continue
				}
			}
			kept = append(kept, ev)
		}
		clear(b.Events[len(kept):])
		b.Events = kept
		if err := emit(ctx, b); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.at = b.End
		return nil
	}
}

// change prepares the filter for a drop: a copy that was made before this run is unknown to it.
func (m *moves) change(ctx context.Context, ev *stream.Event) error {
	ch := ev.Change
	id, ok := ownership.ParseUUID(ch.UUID)
	if !ok {
		return nil
	}
	m.mu.Lock()
	was, isKnown := m.colls[id]
	switch ch.Kind {
	case stream.ChangeCreate:
		m.colls[id] = collection{ch.NS, was.made || !isKnown}
	case stream.ChangeRename: // drops who had the name, as shards without the renamed one report later
		maps.DeleteFunc(m.colls, func(other [16]byte, has collection) bool { return has.ns == ch.To && other != id })
		m.colls[id] = collection{ch.To, was.made}
	}
	m.mu.Unlock()
	if ch.Kind != stream.ChangeDrop || !isKnown {
		return nil
	}
	var next *[16]byte
	copies := m.filter.Copies()
	if i := slices.IndexFunc(copies, func(c shards.Copy) bool { return c.Of == id }); i >= 0 {
		next = &copies[i].ID
	} else if !was.made {
		var err error
		if next, _, err = m.movedTo(ctx, was.ns, id, mongo.OpTime{TS: ev.At.TS, Term: -1}); err != nil {
			return err
		}
		if next != nil {
			m.filter.SetCopies([]shards.Copy{{NS: was.ns, ID: *next, Of: id}})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.colls, id) // other shards report the drop, too
	if next != nil {
		m.colls[*next], m.next[id] = collection{was.ns, m.colls[*next].made}, *next
	}
	return nil
}

// successor is the UUID that a collection has got by a move, empty for none.
func (m *moves) successor(ctx context.Context, uuid bson.Binary) (now bson.Binary, err error) {
	id, ok := ownership.ParseUUID(uuid)
	m.mu.Lock()
	was, isKnown := m.colls[id]
	next, moved := m.next[id]
	at := m.at
	m.mu.Unlock()
	if !ok || !moved && !isKnown {
		return now, nil
	}
	if moved {
		return binaryOf(next), nil
	}
	_, latest, err := m.movedTo(ctx, was.ns, id, at)
	if err != nil {
		return now, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if latest == nil {
		delete(m.colls, id) // nobody need look again
		return now, nil
	}
	if *latest != id {
		m.next[id], m.colls[*latest] = *latest, collection{was.ns, m.colls[*latest].made}
	}
	return binaryOf(*latest), nil
}

func binaryOf(id [16]byte) bson.Binary { return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]} }

// movedTo returns the UUIDs of the first and of the latest collection that continue the one with id, nil if it was
// dropped. The latest one is itself while it is listed. after is a position before the drop of the one with id, or that
// of the drop. The collection may have moved several times since.
func (m *moves) movedTo(ctx context.Context, ns string, id [16]byte, after mongo.OpTime) (next, latest *[16]byte,
	err error) {
	db, coll := mongo.SplitNS(ns)
	_, now, err := m.of.listed(ctx, db, bson.D{{Key: "name", Value: coll}, {Key: "type", Value: "collection"}})
	listed, ok := ownership.ParseUUID(now)
	if err != nil || ok && listed == id {
		return nil, &id, mongo.Wrap(err, "find out whether %s has moved", ns)
	}
	after = after.Previous() // with the drop itself
	changes, err := m.changesOf(ctx, ns, after)
	if err != nil {
		return nil, nil, err
	}
	var there [][16]byte
	if ok {
		there = append(there, listed)
	}
	return follow(changes, ns, id, there)
}

// changesOf returns the changes of a name's collections after a position, up to now.
func (m *moves) changesOf(ctx context.Context, ns string, after mongo.OpTime) (changes []stream.Change, err error) {
	support, err := m.of.Support(ctx)
	if err != nil {
		return nil, err
	}
	until, err := m.of.latest(ctx)
	if err != nil {
		return nil, err
	}
	const most = 100_000
	err = changestream.Changes(m.of.Cluster, support)(ctx, after, until, func(ch *stream.Change, _ mongo.OpTime) error {
		if ch.NS == ns || ch.To == ns {
			changes = append(changes, stream.Change{Kind: ch.Kind, NS: ch.NS, To: ch.To, Replaced: ch.Replaced,
				UUID: bson.Binary{Data: bytes.Clone(ch.UUID.Data)}})
		}
		if len(changes) > most {
			return mongo.WithHint(fmt.Errorf("%s has changed more than %d times since %s", ns, most, after),
				"start the job again with --restart, which copies the present state")
		}
		return nil
	})
	return changes, err
}

// follow returns the first and the latest collection that continue the one with id, by the changes of its name.
// listed has the name afterwards. movePrimary makes its copy while the original has the name. So who has the name right
// after the drop, or is made while another one has it, is a copy.
func follow(changes []stream.Change, ns string, id [16]byte, listed [][16]byte) (next, latest *[16]byte, err error) {
	alive := [][16]byte{id}
	for i := range changes {
		ch := &changes[i]
		of, _ := ownership.ParseUUID(ch.UUID)
		mine := slices.Contains(alive, of)
		switch {
		case ch.Kind == stream.ChangeCreate && !mine:
			alive = append(alive, of)
		case ch.Kind == stream.ChangeDrop && mine:
			if alive = without(alive, of); len(alive) == 0 && of == id {
				alive = without(holders(changes[i+1:], ns, listed), id) // other shards report the drop, too
			}
			if len(alive) > 0 && next == nil && of == id {
				next = &alive[len(alive)-1]
			}
		case ch.Kind == stream.ChangeRename && ch.NS == ns && of == id:
			return nil, nil, mongo.Retry(ns+" was renamed meanwhile", nil, "")
		case ch.Kind == stream.ChangeRename && ch.NS == ns && mine:
			return next, &of, nil
		case ch.Kind == stream.ChangeRename && ch.To == ns && !mine:
			alive = nil
		}
		if len(alive) == 0 {
			return next, nil, nil
		}
	}
	if slices.Contains(alive, id) { // it is about to be dropped
		alive = append(alive, listed...)
		return nil, &alive[len(alive)-1], nil
	}
	return next, &alive[len(alive)-1], nil
}

// holders returns the collections that had a name before some changes, by those that have it after them.
func holders(changes []stream.Change, ns string, after [][16]byte) [][16]byte {
	had := slices.Clone(after)
	for _, ch := range slices.Backward(changes) {
		of, _ := ownership.ParseUUID(ch.UUID)
		had = without(had, of)
		if ch.Kind == stream.ChangeDrop || ch.Kind == stream.ChangeRename && ch.NS == ns {
			had = append(had, of)
		}
		if replaced, ok := ownership.ParseUUID(ch.Replaced); ok && ch.To == ns {
			had = append(had, replaced)
		}
	}
	return had
}

func without(list [][16]byte, one [16]byte) [][16]byte {
	return slices.DeleteFunc(slices.Clone(list), func(id [16]byte) bool { return id == one })
}
