package copy

import (
	"bytes"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
)

// Loan is a slice that another process copies for this engine's run. Its positions are
// kept here: what was not told of is copied again, as after a crash.
type Loan struct {
	// Source is as much of the collection as reading takes, Slice what is left to do.
	Source schema.Collection
	Target string
	Key    bson.Raw // the shard key of the target; empty: it is not sharded
	Slice  scan.Slice
	// Part is the shard whose part of the collection the slice belongs to, of which it
	// gives what it owns; empty is the whole.
	Part string

	s *slice
}

// Lend hands out the largest slice that waits, nil where none does; more says that
// there may be one later. Slices of collections that need an order, or are ranges that
// are read again, are not lent. A loan lasts until it is done (Advance) or given back (Return).
func (e *Engine) Lend() (l *Loan, more bool) {
	r := e.present()
	if r == nil {
		return nil, false
	}
	s, more := r.jobs.lend()
	if s == nil {
		return nil, more
	}
	c := s.c
	return &Loan{Source: essence(&c.Source), Target: c.Target, Key: c.Key, Slice: s.state(), Part: c.Part, s: s}, true
}

// Lendable is how many slices wait that may be lent.
func (e *Engine) Lendable() int {
	r := e.present()
	if r == nil {
		return 0
	}
	return r.jobs.lendable()
}

// Member is the member of the source that the run reads; found is false before it is chosen.
func (e *Engine) Member() (m scan.Member, found bool) {
	r := e.present()
	if r == nil || !r.awaitedReady() {
		return m, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.member, r.member.Node != ""
}

// present is the run under way, nil where there is none.
func (e *Engine) present() *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.run
}

// essence is what of a collection counts for reading and writing its documents.
func essence(c *schema.Collection) schema.Collection {
	out := *c
	out.Indexes, out.Options = nil, essentialOptions(c.Options)
	return out
}

// lendable reports that others may copy the slice.
func (s *slice) lendable() bool {
	c := s.c
	return s.st.Of > 1 && s.st.Strategy.Resumable() && !c.serial() && c.Range == nil && !c.kept.Load()
}

// errNotOurs says that what was told is not of the slice that was lent.
var errNotOurs = errors.New("what was told is of another slice than the one that was lent")

// Advance takes what has become of the slice: st is as it was lent, with a position up
// to which all is acknowledged by the target, in the term that the store was told of.
// It returns how much that adds.
func (l *Loan) Advance(st scan.Slice) (docs, bytes int64, err error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := &s.st
	switch {
	case st.Collection != now.Collection || st.N != now.N || st.Of != now.Of || st.Plan != now.Plan || st.Strategy != now.Strategy || st.Member != now.Member,
		!sameMark(st.Lower, now.Lower) || !sameMark(st.Upper, now.Upper):
		return 0, 0, fmt.Errorf("slice %d of %d of %s: %w", now.N+1, now.Of, s.c.Source.NS, errNotOurs)
	case now.Done || st.Docs < now.Docs:
		return 0, 0, nil // told before
	}
	docs, bytes = st.Docs-now.Docs, st.Bytes-now.Bytes
	now.Position, now.Back, now.Docs, now.Bytes, now.Done, now.Dropped = st.Position, st.Back, st.Docs, st.Bytes, st.Done, st.Dropped
	s.c.mu.Lock()
	s.c.progress.Docs += docs
	s.c.progress.Bytes += bytes
	s.c.mu.Unlock()
	s.run.unsaved(s)
	if now.Done {
		s.c.sliceDone(s.run, now.Dropped)
		s.run.jobs.finished()
	}
	return docs, bytes, nil
}

func sameMark(a, b []byte) bool { return bytes.Equal(a, b) }

// Done reports that all of the slice is copied.
func (l *Loan) Done() bool { return l.s.state().Done }

// Return gives the slice back, of which nothing is on its way to the target any more:
// a reader of the run, or another borrower, goes on from what was told of. keep says
// that the rest of the collection is copied by the run alone.
func (l *Loan) Return(keep bool) {
	s := l.s
	if keep {
		s.c.kept.Store(true)
	}
	if !l.Done() {
		s.run.jobs.back(s.job())
	}
}
