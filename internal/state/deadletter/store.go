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

// maxDisputes bounds the documents in dispute, some hundred bytes of memory each. So many have a
// systematic cause.
const maxDisputes = 100_000

// Keeper keeps the dead letters of one job. A keeper opened later finds what was kept before a
// checkpoint.
type Keeper interface {
	// Prepare is called before others if dead letters may come.
	Prepare(ctx context.Context) error
	Cases(ctx context.Context) ([]Case, error)
	Get(ctx context.Context, id string) (Letter, error)
	// Put replaces the dead letter with the same ID.
	Put(ctx context.Context, l Letter) error
	Settle(ctx context.Context, id, reason string) error
	Remove(ctx context.Context, id string) error
	// Move renames the namespace of letters in dispute, at a position of the source.
	Move(ctx context.Context, from, to string, at mongo.OpTime) error
	// SettleAll settles what is in dispute in a namespace, except what Move brought there at a
	// position.
	SettleAll(ctx context.Context, ns, reason string, but mongo.OpTime) error
	// Reset removes all dead letters but those of state Removed.
	Reset(ctx context.Context) error
}

// Case is what the Store remembers of a dead letter.
type Case struct {
	ID    string       `bson:"_id"`
	NS    string       `bson:"ns"`
	Key   Key          `bson:"key"`
	State State        `bson:"state"`
	Until mongo.OpTime `bson:"until"`
}

// Store knows the dead letters of one job and which documents are in dispute. It is safe for
// concurrent use, but not for concurrent calls about one document.
//
// A nil Store has no dead letters.
type Store struct {
	keep Keeper
	job  string

	mu       sync.RWMutex
	disputes cases
	unmapped cases
	// pending are undecided cases, and open ones that are tried again.
	pending map[*Case]bool
	stats   Stats
}

// cases are the latest dead letters of documents, by namespace. The Store's mutex guards them.
type cases struct {
	n  atomic.Int64 // of documents; read without the mutex
	by map[string]map[Key]*Case
}

func (c *cases) get(ns string, id bsoncore.Value) *Case {
	docs := c.by[ns]
	if len(docs) == 0 { // for most events no key is made
		return nil
	}
	return docs[KeyOf(id)]
}

func (c *cases) put(one *Case) {
	if c.by[one.NS] == nil {
		c.by[one.NS] = map[Key]*Case{}
	}
	if c.by[one.NS][one.Key] == nil {
		c.n.Add(1)
	}
	c.by[one.NS][one.Key] = one
}

func (c *cases) remove(one *Case) {
	delete(c.by[one.NS], one.Key)
	c.n.Add(-1)
}

func (c *cases) room(l *Letter, what, hint string) error {
	if c.n.Load() < maxDisputes {
		return nil
	}
	err := fmt.Errorf("%d documents %s %s, _id %s: %s", maxDisputes, what, l.NS, bsonraw.IDText(l.DocID), l.Reason)
	return mongo.WithHint(err, hint)
}

// Stats counts a job's dead letters, those of earlier runs included.
type Stats struct {
	Undecided int64 `json:"undecided"` // may turn out to be no conflicts
	Open      int64 `json:"open"`      // the target lacks them, or their newest state
	Settled   int64 `json:"settled"`   // reached the target later, or are gone from the source
	Removed   int64 `json:"removed"`   // of somebody else, taken off the target
	Unmapped  int64 `json:"unmapped"`  // that the rules for fields cannot map
}

// Text says what the target refused and what was removed there, "" for nothing.
func (st Stats) Text() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{
		{st.Open, "not on the target"}, {st.Undecided, "undecided"}, {st.Settled, "settled"},
		{st.Removed, "removed from the target"}, {st.Unmapped, "that the rules cannot map"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

// New keeps the dead letters of a job in the target itself. It reports the election term of each
// write to observe, which may refuse it.
func New(c *mongo.Cluster, job string, observe func(term int64) error) *Store {
	return Over(&keptInMongo{c: c, job: job, observe: observe}, job)
}

// Over uses the dead letters of a keeper.
func Over(keep Keeper, job string) *Store {
	s := &Store{keep: keep, job: job}
	s.fill(nil)
	return s
}

func (s *Store) fill(list []Case) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var disputes, unmapped cases
	disputes.by, unmapped.by = map[string]map[Key]*Case{}, map[string]map[Key]*Case{}
	s.pending, s.stats = map[*Case]bool{}, Stats{}
	for _, c := range list {
		s.stats.count(c.State, 1)
		if c.State == Unmapped {
			unmapped.put(&c)
		}
		if c.State.InDispute() && c.Key != (Key{}) {
			disputes.put(&c)
			s.pending[&c] = true
		}
	}
	s.disputes.by, s.unmapped.by = disputes.by, unmapped.by
	s.disputes.n.Store(disputes.n.Load()) // once: it is read without the mutex
	s.unmapped.n.Store(unmapped.n.Load())
}

// Load reads which documents are in dispute when a run starts over from the last durable
// checkpoint: dead letters since then may be gone. It retries open ones: what conflicted may be
// gone, too. If prepare is set, dead letters may come.
func (s *Store) Load(ctx context.Context, prepare bool) error {
	if prepare {
		if err := s.keep.Prepare(ctx); err != nil {
			return err
		}
	}
	list, err := s.keep.Cases(ctx)
	if err == nil {
		s.fill(list)
	}
	return err
}

func (st *Stats) count(s State, n int64) {
	fields := map[State]*int64{Undecided: &st.Undecided, Open: &st.Open, Settled: &st.Settled, Removed: &st.Removed,
		Unmapped: &st.Unmapped}
	if f := fields[s]; f != nil {
		*f += n
	}
}

func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.stats
}

func (s *Store) none() bool { return s == nil || s.disputes.n.Load() == 0 }

// CaseOf returns what is remembered of a document in dispute, and whether it waits to be tried.
func (s *Store) CaseOf(ns string, id bsoncore.Value) (c Case, waits, ok bool) {
	if s.none() {
		return c, false, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := s.disputes.get(ns, id)
	if known == nil {
		return c, false, false
	}
	return *known, s.pending[known], true
}

// Disputed reports whether a document is in dispute: its changes go through its dead letter.
func (s *Store) Disputed(ns string, id bsoncore.Value) bool {
	_, _, ok := s.CaseOf(ns, id)
	return ok
}

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

// IsDue reports whether the case of a document can be decided when the target is at a position of
// the source.
func (s *Store) IsDue(ns string, id bsoncore.Value, applied mongo.OpTime) bool {
	c, waits, _ := s.CaseOf(ns, id)
	return waits && !applied.Before(c.Until)
}

// AnyDue reports whether any dead letters can be decided.
func (s *Store) AnyDue(applied mongo.OpTime) bool { return len(s.due(applied, 1)) > 0 }

// Due returns at most limit dead letters to decide. Each is due once, unless it is written as
// Undecided or Held again.
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

// Until returns the position of the target at which every pending case can be decided.
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

// RetryAll tries every open dead letter once more.
func (s *Store) RetryAll() { s.Choose(nil, false) }

// Choose tries open dead letters again: those with ids, or all if there are none. With only, no
// others are tried.
func (s *Store) Choose(ids []string, only bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, docs := range s.disputes.by {
		for _, c := range docs {
			switch named := len(ids) == 0 || slices.Contains(ids, c.ID); {
			case named && c.State == Open:
				s.pending[c] = true
			case only && !named:
				delete(s.pending, c)
			}
		}
	}
}

// Tried notes that an open dead letter was tried again.
func (s *Store) Tried(ns string, id bsoncore.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.disputes.get(ns, id); c != nil && c.State == Open {
		delete(s.pending, c)
	}
}

// Read returns the dead letter of a document in dispute.
func (s *Store) Read(ctx context.Context, ns string, id bsoncore.Value) (Letter, bool, error) {
	c, _, ok := s.CaseOf(ns, id)
	if !ok {
		return Letter{}, false, nil
	}
	l, err := s.keep.Get(ctx, c.ID)
	return l, err == nil, err
}

// Commands returns the commands that write a dead letter, in order, in mongo.StateDB, and sets its
// ID. Noted follows them.
func (s *Store) Commands(l *Letter) []bson.D {
	s.name(l)
	return commands(s.job, l)
}

// name keeps the ID of a document in dispute.
func (s *Store) name(l *Letter) {
	if l.ID != "" {
		return
	}
	l.ID = letterID(s.job, *l)
	if c, _, ok := s.CaseOf(l.NS, l.DocID); ok && l.State != Removed {
		l.ID = c.ID
	}
}

// Noted remembers a dead letter that was written.
func (s *Store) Noted(l Letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := caseOf(&l)
	old := s.disputes.get(l.NS, l.DocID)
	s.stats.count(l.State, 1)
	if l.State == Removed || l.State == Settled && old == nil {
		return
	}
	pending := l.State == Undecided || l.State == Held
	if old != nil {
		s.stats.count(old.State, -1)
		pending = pending || l.State == Open && old.State == Open && s.pending[old] // still to be tried
		delete(s.pending, old)
	}
	s.disputes.put(c)
	if pending {
		s.pending[c] = true
	}
}

func caseOf(l *Letter) *Case {
	return &Case{ID: l.ID, NS: l.NS, Key: KeyOf(l.DocID), State: l.State, Until: l.Until}
}

// Write writes a dead letter, in place of the one of a document in dispute.
func (s *Store) Write(ctx context.Context, l Letter) error {
	if !s.Disputed(l.NS, l.DocID) {
		err := s.disputes.room(&l, "are refused by the target; the next is", "the cause is systematic: read "+
			Where+" on the target, remove the cause, and start again")
		if err != nil {
			return err
		}
	}
	s.name(&l)
	if err := s.put(ctx, l); err != nil {
		return err
	}
	s.Noted(l)
	return nil
}

func (s *Store) put(ctx context.Context, l Letter) error {
	return mongo.Wrap(s.keep.Put(ctx, l), "write dead letter of %s, _id %s", l.NS, bsonraw.IDText(l.DocID))
}

// Settle closes the case of a document in dispute. It removes the dead letter if there was no
// conflict, or for a repair.
func (s *Store) Settle(ctx context.Context, l Letter, reason string) (err error) {
	nothing := l.State == Held ||
		l.State == Undecided && l.Cause != CauseMissing && l.Cause != CauseShape && l.Cause != CauseInWay
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

// Forgotten notes that a document is in dispute no more; settled says that its dead letter was
// kept.
func (s *Store) Forgotten(l Letter, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.disputes.get(l.NS, l.DocID)
	if old == nil {
		return
	}
	s.stats.count(old.State, -1)
	if settled {
		s.stats.Settled++
	}
	delete(s.pending, old)
	s.disputes.remove(old)
}

const droppedOnSource = "the collection was dropped on the source"

// Moved follows the rename of a target collection at a position of the source. It may be repeated.
func (s *Store) Moved(ctx context.Context, from, to string, at mongo.OpTime) error {
	if s.none() && !s.AnyUnmapped() {
		return nil
	}
	err := s.keep.SettleAll(ctx, to, droppedOnSource, at)
	if err == nil {
		err = s.keep.Move(ctx, from, to, at)
	}
	return s.reload(ctx, err, "move dead letters of %s to %s", from, to)
}

// Dropped settles the cases of a collection that the source dropped.
func (s *Store) Dropped(ctx context.Context, ns string) error {
	if s.none() && !s.AnyUnmapped() {
		return nil
	}
	return s.reload(ctx, s.keep.SettleAll(ctx, ns, droppedOnSource, mongo.OpTime{}), "settle dead letters of %s", ns)
}

func (s *Store) reload(ctx context.Context, err error, what string, args ...any) error {
	if err != nil {
		return mongo.Wrap(err, what, args...)
	}
	return s.Load(ctx, false)
}

// Reset removes the dead letters of a job that begins anew, except those of documents that it
// removed from the target.
func (s *Store) Reset(ctx context.Context) error {
	return mongo.Wrap(s.keep.Reset(ctx), "remove dead letters")
}

// AnyUnmapped reports whether the rules could not map some documents.
func (s *Store) AnyUnmapped() bool { return s != nil && s.unmapped.n.Load() > 0 }

// IsUnmapped reports a document that the rules could not map when they were last asked.
func (s *Store) IsUnmapped(ns string, id bsoncore.Value) bool { return s.unmappedCase(ns, id) != nil }

func (s *Store) unmappedCase(ns string, id bsoncore.Value) *Case {
	if !s.AnyUnmapped() {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.unmapped.get(ns, id)
}

// LeaveOut writes the dead letter of a document that the rules cannot map, in place of an earlier
// one, and sets its state and cause. isNew reports that there was none.
func (s *Store) LeaveOut(ctx context.Context, l Letter) (isNew bool, err error) {
	l.State, l.Cause = Unmapped, CauseRule
	known := s.unmappedCase(l.NS, l.DocID)
	if known != nil {
		l.ID = known.ID
		return false, s.put(ctx, l)
	}
	l.ID = letterID(s.job, l) + "/" + string(Unmapped)
	err = s.unmapped.room(&l, "cannot be mapped; the next is of",
		"so many are no exceptions: say in --fields what becomes of such values, and start again with --restart")
	if err == nil {
		err = s.put(ctx, l)
	}
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped.get(l.NS, l.DocID) == nil {
		s.stats.Unmapped++
	}
	s.unmapped.put(caseOf(&l))
	return true, nil
}

// SettleUnmapped settles the dead letter of a document that the rules could not map, if there is one.
func (s *Store) SettleUnmapped(ctx context.Context, ns string, id bsoncore.Value, reason string) error {
	c := s.unmappedCase(ns, id)
	if c == nil {
		return nil
	}
	if err := s.keep.Settle(ctx, c.ID, reason); err != nil {
		return mongo.Wrap(err, "settle dead letter %s", c.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmapped.remove(c)
	s.stats.Unmapped--
	s.stats.Settled++
	return nil
}
