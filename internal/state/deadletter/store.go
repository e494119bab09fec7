package deadletter

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	ID    string       `bson:"_id"`
	NS    string       `bson:"ns"`
	Key   Key          `bson:"key"`
	State State        `bson:"state"`
	Until mongo.OpTime `bson:"until"`
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
	disputes map[string]map[Key]*Case
	// pending are those whose case is to be decided once it can be: undecided
	// ones, and open ones that are to be tried again.
	pending map[*Case]bool
	stats   Stats

	nUnmapped atomic.Int64
	unmapped  map[string]map[Key]string // IDs of letters by namespace and document
}

// Stats counts a job's letters, those of earlier runs included.
type Stats struct {
	Undecided int64 `json:"undecided"` // may turn out to be no conflicts
	Open      int64 `json:"open"`      // the target lacks them, or their newest state
	Settled   int64 `json:"settled"`   // reached the target later, or are gone from the source
	Removed   int64 `json:"removed"`   // of somebody else, taken off the target
	Unmapped  int64 `json:"unmapped"`  // that the rules for fields cannot map
}

// Text says what the target refused and what was removed from it, "" where that is nothing.
func (st Stats) Text() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{{st.Open, "not on the target"}, {st.Undecided, "undecided"}, {st.Settled, "settled"}, {st.Removed, "removed from the target"}, {st.Unmapped, "that the rules cannot map"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

// New prepares the letters of a job, kept in the target itself; observe is told
// the election term of each write, and may refuse it.
func New(c *mongo.Cluster, job string, observe func(term int64) error) *Store {
	return Over(&keptInMongo{c: c, job: job, observe: observe}, job)
}

// Over prepares the letters of a job that a keeper keeps.
func Over(keep Keeper, job string) *Store {
	return &Store{keep: keep, job: job, disputes: map[string]map[Key]*Case{}, pending: map[*Case]bool{}, unmapped: map[string]map[Key]string{}}
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
	s.disputes, s.pending, s.stats = map[string]map[Key]*Case{}, map[*Case]bool{}, Stats{}
	s.unmapped = map[string]map[Key]string{}
	n := int64(0)
	for _, c := range cases {
		s.stats.count(c.State, 1)
		if c.State == Unmapped {
			s.putUnmapped(c.NS, c.Key, c.ID)
		}
		if c.State.InDispute() && c.Key != (Key{}) {
			s.put(&c, true)
			n++
		}
	}
	s.n.Store(n)
	s.nUnmapped.Store(s.stats.Unmapped)
	return nil
}

// put files a case; mu is held.
func (s *Store) put(c *Case, pending bool) {
	if s.disputes[c.NS] == nil {
		s.disputes[c.NS] = map[Key]*Case{}
	}
	s.disputes[c.NS][c.Key] = c
	if pending {
		s.pending[c] = true
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
	case Unmapped:
		st.Unmapped += n
	}
}

// Stats is a snapshot.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.stats
}

// none reports that nothing is in dispute.
func (s *Store) none() bool { return s == nil || s.n.Load() == 0 }

// Disputed reports a document in dispute: its changes go through its letter.
func (s *Store) Disputed(ns string, id bsoncore.Value) bool {
	return !s.none() && s.dispute(ns, id) != nil
}

func (s *Store) dispute(ns string, id bsoncore.Value) *Case {
	s.mu.RLock()
	defer s.mu.RUnlock()
	docs := s.disputes[ns]
	if len(docs) == 0 {
		return nil
	}
	return docs[KeyOf(id)]
}

// due names at most limit of the letters whose case can be decided when the
// target is at a position of the source.
func (s *Store) due(applied mongo.OpTime, limit int) (ids []string) {
	if s.none() {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for c := range s.pending {
		if len(ids) == limit {
			break
		}
		if !applied.Before(c.Until) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// IsDue reports that the case of a document can be decided when the target is at
// a position of the source.
func (s *Store) IsDue(ns string, id bsoncore.Value, applied mongo.OpTime) bool {
	c := (*Case)(nil)
	if !s.none() {
		c = s.dispute(ns, id)
	}
	if c == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pending[c] && !applied.Before(c.Until)
}

// AnyDue reports that there are letters to decide.
func (s *Store) AnyDue(applied mongo.OpTime) bool { return len(s.due(applied, 1)) > 0 }

// Due returns the letters to decide, at most limit. They are not due a second
// time unless they are written as Undecided or Held again.
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
	if s.none() {
		return at
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for c := range s.pending {
		at = mongo.MaxOpTime(at, c.Until)
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
		for _, c := range docs {
			if c.State == Open {
				s.pending[c] = true
			}
		}
	}
}

// Choose has those open letters tried once more that are named. only has no others be
// tried that wait for it.
func (s *Store) Choose(ids []string, only bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, docs := range s.disputes {
		for _, c := range docs {
			switch {
			case c.State == Open && slices.Contains(ids, c.ID):
				s.pending[c] = true
			case only && !slices.Contains(ids, c.ID):
				delete(s.pending, c)
			}
		}
	}
}

// Tried notes that an open letter has been tried again.
func (s *Store) Tried(ns string, id bsoncore.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.disputes[ns][KeyOf(id)]; c != nil && c.State == Open {
		delete(s.pending, c)
	}
}

// Read returns the letter of a document in dispute.
func (s *Store) Read(ctx context.Context, ns string, id bsoncore.Value) (Letter, bool, error) {
	if s.none() {
		return Letter{}, false, nil
	}
	c := s.dispute(ns, id)
	if c == nil {
		return Letter{}, false, nil
	}
	l, err := s.keep.Get(ctx, c.ID)
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
	if c := s.dispute(l.NS, l.DocID); c != nil && l.State != Removed {
		l.ID = c.ID
	}
}

// Noted remembers a letter that was written.
func (s *Store) Noted(l Letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Case{ID: l.ID, NS: l.NS, Key: KeyOf(l.DocID), State: l.State, Until: l.Until}
	old := s.disputes[l.NS][c.Key]
	s.stats.count(l.State, 1)
	if l.State == Removed || l.State == Settled && old == nil {
		return
	}
	pending := l.State == Undecided || l.State == Held
	if old != nil {
		s.stats.count(old.State, -1)
		pending = pending || l.State == Open && old.State == Open && s.pending[old] // still to be tried
		delete(s.pending, old)
	} else {
		s.n.Add(1)
	}
	s.put(c, pending)
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
// be about nothing, or was of a repair, is removed.
func (s *Store) Settle(ctx context.Context, l Letter, reason string) (err error) {
	nothing := l.State == Held || l.State == Undecided && l.Cause != CauseMissing && l.Cause != CauseShape && l.Cause != CauseInWay
	if nothing {
		err = s.keep.Remove(ctx, l.ID)
	} else {
		err = s.keep.Settle(ctx, l.ID, reason)
	}
	if err == nil {
		s.Forgotten(l, !nothing)
	}
	return mongo.Wrap(err, "settle dead letter %s", l.ID)
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
	delete(s.pending, old)
	delete(s.disputes[l.NS], key)
	s.n.Add(-1)
}

const droppedOnSource = "the collection was dropped on the source"

// Moved follows the rename of a target collection at a position of the source.
// Done again after a crash it does no harm.
func (s *Store) Moved(ctx context.Context, from, to string, at mongo.OpTime) error {
	if s.none() && !s.AnyUnmapped() {
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
	if s.none() && !s.AnyUnmapped() {
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
	return mongo.Wrap(s.keep.Reset(ctx), "remove dead letters")
}
