package copy

import (
	"bytes"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
)

// Assignment is a slice that another process copies for this engine's run. Its positions are
// kept here: what was not reported is copied again, as after a crash.
type Assignment struct {
	Unit

	s *slice
}

// Unit is a slice as the other process needs it.
type Unit struct {
	// Source is as much of the collection as reading takes, Slice what is left to do.
	Source schema.Collection `bson:"source"`
	Target string            `bson:"target"`        // of the route
	Key    bson.Raw          `bson:"key,omitempty"` // the shard key of the target; empty: it is not sharded
	Slice  scan.Slice        `bson:"slice"`
	// Part is the shard that the slice belongs to: it gives what it owns. Empty is all of the
	// collection.
	Part   string      `bson:"part,omitempty"`
	Member scan.Member `bson:"member"` // that reads; the same one for all of a run
}

// Assign takes the largest slice that waits and that others may copy, nil where there is none; more
// says that there may be one later. It is assigned until it is done (Advance) or returned (Return).
func (e *Engine) Assign() (a *Assignment, more bool) {
	r := e.present()
	if r == nil {
		return nil, false
	}
	s, more := r.jobs.assign()
	if s == nil {
		return nil, more
	}
	c, source := s.c, s.c.Source
	source.Indexes, source.Options = nil, essentialOptions(source.Options)
	return &Assignment{Unit{source, c.Route.Target, c.Key, s.state(), c.Part, r.member}, s}, true
}

// essentialOptions are those that say how documents of a collection are read and written.
func essentialOptions(options bson.Raw) bson.Raw {
	var out bson.D
	for _, key := range []string{"capped", "collation", "clusteredIndex"} {
		if v, err := options.LookupErr(key); err == nil {
			out = append(out, bson.E{Key: key, Value: v})
		}
	}
	raw, err := bson.Marshal(out)
	if err != nil { // they were read from a valid document
		return options
	}
	return raw
}

// Assignable is how many slices wait that others may copy.
func (e *Engine) Assignable() int {
	if r := e.present(); r != nil {
		return r.jobs.assignable()
	}
	return 0
}

// Reads reports that a run is under way, whose targets are there and which has chosen the member
// that it reads: before that nothing is assigned.
func (e *Engine) Reads() bool { return e.present() != nil }

// present is the run that reads, nil where there is none.
func (e *Engine) present() *run {
	e.mu.Lock()
	r := e.run
	e.mu.Unlock()
	if r == nil || !r.awaitedReady() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.member.Node == "" {
		return nil
	}
	return r
}

// assignable reports that others may copy the slice. Those of collections that need an order, or of
// ranges that are read again, they may not.
func (s *slice) assignable() bool {
	c := s.c
	return s.st.Of > 1 && s.st.Strategy.Resumable() && !c.serial() && c.Range == nil && !c.alone.Load()
}

// errNotOurs says that what was reported is not of the slice that was assigned.
var errNotOurs = errors.New("what was reported is of another slice than the one that was assigned")

// Advance records the progress of the slice and returns how much it adds. st is the slice as it
// was assigned, with a position up to which the target has acknowledged everything. The
// acknowledgement must be from the term that the store knows.
func (a *Assignment) Advance(st scan.Slice) (docs, bytes int64, err error) {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := &s.st
	switch {
	case !sameSlice(&st, now):
		return 0, 0, fmt.Errorf("slice %d of %d of %s: %w", now.N+1, now.Of, s.c.Source.NS, errNotOurs)
	case now.Done || st.Docs < now.Docs:
		return 0, 0, nil // reported before
	}
	docs, bytes = st.Docs-now.Docs, st.Bytes-now.Bytes
	now.Position, now.Back, now.Done, now.Dropped = st.Position, st.Back, st.Done, st.Dropped
	now.Docs, now.Bytes = st.Docs, st.Bytes
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

// sameSlice reports the same slice of the same plan.
func sameSlice(a, b *scan.Slice) bool {
	return a.Collection == b.Collection && a.N == b.N && a.Of == b.Of && a.Plan == b.Plan && a.Strategy == b.Strategy &&
		a.Member == b.Member && bytes.Equal(a.Lower, b.Lower) && bytes.Equal(a.Upper, b.Upper)
}

// Done reports that all of the slice is copied.
func (a *Assignment) Done() bool { return a.s.state().Done }

// Return gives the slice back once none of its writes is on its way to the target. A reader of
// the run, or another process, goes on from what was reported. With alone, only the run copies
// the rest of the collection.
func (a *Assignment) Return(alone bool) {
	s := a.s
	if alone {
		s.c.alone.Store(true)
	}
	if !a.Done() {
		s.run.jobs.back(s.job())
	}
}
