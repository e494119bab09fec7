package deadletter

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// maxDisputes bounds the documents in dispute, which are remembered by some
// hundred bytes each. So many are no stray writes.
const maxDisputes = 100_000

// Keeper keeps the letters of one job, whole. What it has kept, a keeper opened
// later finds, once a checkpoint has been saved after it.
type Keeper interface {
	// Prepare makes ready for letters.
	Prepare(ctx context.Context) error
	// Cases are what is kept.
	Cases(ctx context.Context) ([]Case, error)
	Get(ctx context.Context, id string) (Letter, error)
	// Put keeps the letter in place of the one with its ID.
	Put(ctx context.Context, l Letter) error
	Settle(ctx context.Context, id, reason string) error
	Remove(ctx context.Context, id string) error
	// Move renames the namespace of letters in dispute, at a position of the source.
	Move(ctx context.Context, from, to string, at mongo.OpTime) error
	// SettleAll settles what is in dispute in a namespace, but for what Move brought there at
	// a position.
	SettleAll(ctx context.Context, ns, reason string, but mongo.OpTime) error
	// Reset removes all letters but those of state Removed.
	Reset(ctx context.Context) error
}

// Case is what is remembered of a letter.
type Case struct {
	ID, NS string
	Key    Key
	State  State
	Until  mongo.OpTime
}

// Store knows the letters of one job and which documents are in dispute. It is
// safe for concurrent use, but the methods that concern one document are not to
// be called side by side.
//
// A nil Store has no letters and no disputes.
type Store struct {
	keep Keeper
	job  string

	n  atomic.Int64 // documents in dispute
	mu sync.RWMutex
	// disputes are by namespace; those of a namespace by document.
	disputes map[string]map[Key]*memo
	stats    Stats
	retries  int // memos with retry set
}

// memo is what is remembered of a letter in dispute.
type memo struct {
	Case
	retry bool // to be tried again though it is open
}

// Stats counts a job's letters, those of earlier runs included.
type Stats struct {
	Undecided, Open, Settled, Removed int64
}

// New prepares the letters of a job, kept in the target itself; observe is told
// the election term of each write, and may refuse it.
func New(c *mongo.Cluster, job string, observe func(term int64) error) *Store {
	return Over(&keptInMongo{c: c, job: job, observe: observe}, job)
}

// Over prepares the letters of a job that a keeper keeps.
func Over(keep Keeper, job string) *Store {
	return &Store{keep: keep, job: job, disputes: map[string]map[Key]*memo{}}
}

// Load reads which documents are in dispute. It is called where a run starts
// over from the last durable checkpoint, for letters since then may be gone.
// Those that are open will be tried once more: what stood in their way may be
// gone too. prepare makes ready for letters.
func (s *Store) Load(ctx context.Context, prepare bool) error {
	if prepare {
		if err := s.keep.Prepare(ctx); err != nil {
			return err
		}
	}
	cases, err := s.keep.Cases(ctx)
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disputes, s.stats, s.retries = map[string]map[Key]*memo{}, Stats{}, 0
	n := int64(0)
	for _, c := range cases {
		s.stats.count(c.State, 1)
		if c.State != Undecided && c.State != Open || c.Key == (Key{}) {
			continue
		}
		s.put(&memo{Case: c, retry: c.State == Open})
		n++
	}
	s.n.Store(n)
	return nil
}

// put files a memo; mu is held.
func (s *Store) put(m *memo) {
	if s.disputes[m.NS] == nil {
		s.disputes[m.NS] = map[Key]*memo{}
	}
	s.disputes[m.NS][m.Key] = m
	if m.retry {
		s.retries++
	}
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
	return docs[KeyOf(id)]
}

// pending are the letters whose case is to be decided once it can be; mu is held.
func (s *Store) pending() iter.Seq[*memo] {
	return func(yield func(*memo) bool) {
		for _, docs := range s.disputes {
			for _, m := range docs {
				if (m.State == Undecided || m.retry) && !yield(m) {
					return
				}
			}
		}
	}
}

// due names at most limit of the letters whose case can be decided when the
// target is at a position of the source.
func (s *Store) due(applied mongo.OpTime, limit int) (ids []string) {
	if s == nil || s.n.Load() == 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.stats.Undecided == 0 && s.retries == 0 {
		return nil
	}
	for m := range s.pending() {
		if len(ids) == limit {
			break
		}
		if !applied.Before(m.Until) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// AnyDue reports that there are letters to decide.
func (s *Store) AnyDue(applied mongo.OpTime) bool { return len(s.due(applied, 1)) > 0 }

// Due returns the letters to decide, at most limit. They are not due a second
// time unless they are written as Undecided again.
func (s *Store) Due(ctx context.Context, applied mongo.OpTime, limit int) (out []Letter, err error) {
	for _, id := range s.due(applied, limit) {
		l, err := s.keep.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// Until is the position that the target has to reach before every pending case
// can be decided.
func (s *Store) Until() (at mongo.OpTime) {
	if s == nil || s.n.Load() == 0 {
		return at
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for m := range s.pending() {
		at = mongo.MaxOpTime(at, m.Until)
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
			if m.State == Open && !m.retry {
				m.retry = true
				s.retries++
			}
		}
	}
}

// Tried notes that an open letter has been tried again.
func (s *Store) Tried(ns string, id bsoncore.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.disputes[ns][KeyOf(id)]; m != nil {
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
	l, err := s.keep.Get(ctx, m.ID)
	return l, err == nil, err
}

// Commands are what writes a letter, where letters are kept in the target: for
// the database mongo.StateDB and in this order; to be followed by Noted. It gives
// the letter its ID.
func (s *Store) Commands(l *Letter) []bson.D {
	s.name(l)
	return commands(s.job, l)
}

// name gives a letter its ID: of a document in dispute, that of its letter.
func (s *Store) name(l *Letter) {
	if l.ID != "" {
		return
	}
	l.ID = letterID(s.job, *l)
	if m := s.memo(l.NS, l.DocID); m != nil && l.State != Removed {
		l.ID = m.ID
	}
}

// Noted remembers a letter that was written.
func (s *Store) Noted(l Letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &memo{Case: Case{ID: l.ID, NS: l.NS, Key: KeyOf(l.DocID), State: l.State, Until: l.Until}}
	old := s.disputes[l.NS][m.Key]
	if l.State == Removed || l.State == Settled && old == nil {
		s.stats.count(l.State, 1)
		return
	}
	if old != nil {
		s.stats.count(old.State, -1)
		m.retry = old.retry && l.State == Open // still to be tried
		s.forgetRetry(old)
	} else {
		s.n.Add(1)
	}
	s.stats.count(l.State, 1)
	s.put(m)
}

// Write writes a letter; a letter of the same document in dispute is replaced.
func (s *Store) Write(ctx context.Context, l Letter) error {
	if s.n.Load() >= maxDisputes && !s.Disputed(l.NS, l.DocID) {
		return mongo.WithHint(fmt.Errorf("%d documents are refused by the target; the next is %s, _id %s: %s", maxDisputes, l.NS, bsonraw.IDText(l.DocID), l.Reason),
			"so many are no stray writes: read "+mongo.StateDB+"."+Collection+" on the target, remove the cause, and start again")
	}
	s.name(&l)
	if err := s.keep.Put(ctx, l); err != nil {
		return fmt.Errorf("write dead letter of %s, _id %s: %w", l.NS, bsonraw.IDText(l.DocID), err)
	}
	s.Noted(l)
	return nil
}

// Settle closes the case of a document in dispute. A letter that turned out to
// be about nothing is removed.
func (s *Store) Settle(ctx context.Context, l Letter, reason string) (err error) {
	nothing := l.State == Undecided && l.Cause != CauseMissing && l.Cause != CauseShape && l.Cause != CauseInWay
	if nothing {
		err = s.keep.Remove(ctx, l.ID)
	} else {
		err = s.keep.Settle(ctx, l.ID, reason)
	}
	if err != nil {
		return fmt.Errorf("settle dead letter %s: %w", l.ID, err)
	}
	s.Forgotten(l, !nothing)
	return nil
}

// Forgotten notes that a document is in dispute no more; settled says that its
// letter was kept.
func (s *Store) Forgotten(l Letter, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := KeyOf(l.DocID)
	old := s.disputes[l.NS][key]
	if old == nil {
		return
	}
	s.stats.count(old.State, -1)
	if settled {
		s.stats.Settled++
	}
	s.forgetRetry(old)
	delete(s.disputes[l.NS], key)
	s.n.Add(-1)
}

const droppedOnSource = "the collection was dropped on the source"

// Moved follows the rename of a target collection at a position of the source.
// Done again after a crash it does no harm.
func (s *Store) Moved(ctx context.Context, from, to string, at mongo.OpTime) error {
	if s == nil || s.n.Load() == 0 {
		return nil
	}
	err := s.keep.SettleAll(ctx, to, droppedOnSource, at)
	if err == nil {
		err = s.keep.Move(ctx, from, to, at)
	}
	if err != nil {
		return fmt.Errorf("move dead letters of %s to %s: %w", from, to, err)
	}
	return s.Load(ctx, false)
}

// Dropped settles the cases of a collection that is gone from the source.
func (s *Store) Dropped(ctx context.Context, ns string) error {
	if s == nil || s.n.Load() == 0 {
		return nil
	}
	if err := s.keep.SettleAll(ctx, ns, droppedOnSource, mongo.OpTime{}); err != nil {
		return fmt.Errorf("settle dead letters of %s: %w", ns, err)
	}
	return s.Load(ctx, false)
}

// Reset removes the letters of a job that begins anew, but for those of
// documents that it took off the target.
func (s *Store) Reset(ctx context.Context) error {
	if err := s.keep.Reset(ctx); err != nil {
		return fmt.Errorf("remove dead letters: %w", err)
	}
	return nil
}
