package deadletter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// Collection and partsCollection are in the target's database mongo.StateDB.
const (
	Collection      = "deadletters"
	partsCollection = "deadletters.parts"
)

// maxDisputes bounds the documents in dispute, which are remembered by some
// hundred bytes each. So many are no stray writes.
const maxDisputes = 100_000

// Store keeps the letters of one job. It is safe for concurrent use, but the
// methods that concern one document are not to be called side by side. Writes
// are of write concern 1: they become durable with the next checkpoint, for
// the target's oplog is one order and the terms of the writes are observed.
//
// A nil Store has no letters and no disputes.
type Store struct {
	c       *mongo.Cluster
	job     string
	observe func(term int64) error

	n  atomic.Int64 // documents in dispute
	mu sync.RWMutex
	// disputes are by namespace; those of a namespace by document.
	disputes map[string]map[docKey]*memo
	stats    Stats
	retries  int // memos with retry set
}

// memo is what is remembered of a letter in dispute.
type memo struct {
	id    string
	state State
	until mongo.OpTime
	retry bool // to be tried again though it is open
}

// Stats counts a job's letters, those of earlier runs included.
type Stats struct {
	Undecided, Open, Settled, Removed int64
}

// New prepares the letters of a job; observe is told the election term of
// each write, and may refuse it.
func New(c *mongo.Cluster, job string, observe func(term int64) error) *Store {
	return &Store{c: c, job: job, observe: observe, disputes: map[string]map[docKey]*memo{}}
}

// Load reads which documents are in dispute. It is called where a run starts
// over from the last durable checkpoint, for letters since then may be gone.
// Those that are open will be tried once more: what stood in their way may be
// gone too. create makes the collections, which transactions cannot on 4.2.
func (s *Store) Load(ctx context.Context, create bool) error {
	if create {
		if err := s.create(ctx); err != nil {
			return err
		}
	}
	cur, err := s.c.Client.Database(mongo.StateDB).Collection(Collection).Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "job", Value: s.job}}}},
		bson.D{{Key: "$project", Value: bson.D{{Key: "ns", Value: 1}, {Key: "key", Value: 1}, {Key: "state", Value: 1}, {Key: "until", Value: 1}}}},
	})
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	defer cur.Close(ctx)
	disputes, stats, n, retries := map[string]map[docKey]*memo{}, Stats{}, 0, 0
	for cur.Next(ctx) {
		var d stored
		if err := cur.Decode(&d); err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		stats.count(d.State, 1)
		if (d.State == Undecided || d.State == Open) && len(d.Key.Data) == len(docKey{}) {
			put(disputes, d.NS, docKey(d.Key.Data), &memo{id: d.ID, state: d.State, until: d.Until, retry: d.State == Open})
			n++
			if d.State == Open {
				retries++
			}
		}
	}
	if err := cur.Err(); err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disputes, s.stats, s.retries = disputes, stats, retries
	s.n.Store(int64(n))
	return nil
}

func (s *Store) create(ctx context.Context) error {
	for _, name := range []string{Collection, partsCollection} {
		_, err := s.c.Write(ctx, mongo.StateDB, bson.D{{Key: "create", Value: name}})
		if err != nil && mongo.Classify(err) != mongo.ClassExists {
			return fmt.Errorf("create collection %s for dead letters: %w", name, err)
		}
	}
	return nil
}

// put files a memo.
func put(to map[string]map[docKey]*memo, ns string, key docKey, m *memo) {
	if to[ns] == nil {
		to[ns] = map[docKey]*memo{}
	}
	to[ns][key] = m
}

func (st *Stats) count(s State, n int64) {
	switch s {
	case Undecided:
		st.Undecided += n
	case Open:
		st.Open += n
	case Settled:
		st.Settled += n
	case Removed:
		st.Removed += n
	}
}

// Stats is a snapshot.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.stats
}

// Disputed reports a document in dispute: its changes go through its letter.
func (s *Store) Disputed(ns string, id bsoncore.Value) bool {
	return s != nil && s.n.Load() > 0 && s.memo(ns, id) != nil
}

func (s *Store) memo(ns string, id bsoncore.Value) *memo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	docs := s.disputes[ns]
	if len(docs) == 0 {
		return nil
	}
	return docs[keyOf(id)]
}

// pending reports a letter whose case is to be decided once it can be.
func (m *memo) pending() bool { return m.state == Undecided || m.retry }

// due reports a letter whose case can be decided when the target is at the
// given position of the source.
func (m *memo) due(applied mongo.OpTime) bool {
	return m.pending() && !applied.Before(m.until)
}

// AnyDue reports that there are letters to decide.
func (s *Store) AnyDue(applied mongo.OpTime) bool {
	if s == nil || s.n.Load() == 0 {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.stats.Undecided == 0 && s.retries == 0 {
		return false
	}
	for _, docs := range s.disputes {
		for _, m := range docs {
			if m.due(applied) {
				return true
			}
		}
	}
	return false
}

// Until is the position that the target has to reach before every pending case
// can be decided.
func (s *Store) Until() (at mongo.OpTime) {
	if s == nil || s.n.Load() == 0 {
		return at
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, docs := range s.disputes {
		for _, m := range docs {
			if m.pending() {
				at = mongo.MaxOpTime(at, m.until)
			}
		}
	}
	return at
}

// RetryAll has every open letter tried once more.
func (s *Store) RetryAll() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, docs := range s.disputes {
		for _, m := range docs {
			if m.state == Open && !m.retry {
				m.retry = true
				s.retries++
			}
		}
	}
}

// Due returns the letters to decide, without their documents, at most limit.
// They are not due a second time unless they are written as Undecided again.
func (s *Store) Due(ctx context.Context, applied mongo.OpTime, limit int) ([]Letter, error) {
	if s == nil {
		return nil, nil
	}
	var ids []string
	s.mu.RLock()
	for _, docs := range s.disputes {
		for _, m := range docs {
			if m.due(applied) && len(ids) < limit {
				ids = append(ids, m.id)
			}
		}
	}
	s.mu.RUnlock()
	var out []Letter
	for _, id := range ids {
		l, err := s.read(ctx, id)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// Tried notes that an open letter has been tried again.
func (s *Store) Tried(ns string, id bsoncore.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.disputes[ns][keyOf(id)]; m != nil {
		s.forgetRetry(m)
	}
}

// forgetRetry is called with mu held.
func (s *Store) forgetRetry(m *memo) {
	if m.retry {
		m.retry = false
		s.retries--
	}
}

// Read returns the letter of a document in dispute.
func (s *Store) Read(ctx context.Context, ns string, id bsoncore.Value) (Letter, bool, error) {
	if s == nil || s.n.Load() == 0 {
		return Letter{}, false, nil
	}
	m := s.memo(ns, id)
	if m == nil {
		return Letter{}, false, nil
	}
	l, err := s.read(ctx, m.id)
	return l, err == nil, err
}

func (s *Store) read(ctx context.Context, id string) (Letter, error) {
	db := s.c.Client.Database(mongo.StateDB)
	var d stored
	if err := db.Collection(Collection).FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&d); err != nil {
		return Letter{}, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	l := Letter{ID: d.ID, NS: d.NS, State: d.State, Cause: d.Cause, Doc: d.Document, At: d.At, Until: d.Until,
		Reason: d.Reason, Code: d.Code, Index: d.Index}
	if d.Other != nil {
		l.Other = *d.Other
	}
	if l.Source = d.Source; d.UUID != nil && len(d.UUID.Data) == 16 {
		l.UUID = (*[16]byte)(d.UUID.Data)
	}
	for n := range d.Parts {
		var p struct{ Data []byte }
		if err := db.Collection(partsCollection).FindOne(ctx, bson.D{{Key: "_id", Value: partID(d.Of, n)}}).Decode(&p); err != nil {
			return Letter{}, fmt.Errorf("read part %d of dead letter %s: %w", n, id, err)
		}
		l.Doc = append(l.Doc, p.Data...)
	}
	switch {
	case d.DocID != nil:
		l.DocID = bsonraw.FromRaw(*d.DocID)
	case len(l.Doc) > 0:
		l.DocID = bsoncore.Document(l.Doc).Lookup("_id")
	}
	return l, nil
}
