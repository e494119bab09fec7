package transform

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Retained is a collection that the target keeps under its old name: its rename was skipped
// while it was copied. The copy may have read changes under the new name. So these are
// applied up to the end of the copy, for otherwise documents would mix two states.
type Retained struct {
	NS    string       // the old name
	Since mongo.OpTime // the position of the rename
	// Reused: another collection has the old name, or had it.
	Reused bool
	// Mixed: the target has documents there of which no event tells.
	Mixed bool
}

// Retentions tell of retained collections.
type Retentions interface {
	// Retained finds the collection that gets what happens under a source namespace at a position.
	Retained(ns string, at mongo.OpTime) (Retained, bool)
	// Retains reports that a collection is Retained under a name that the source has given
	// to another one.
	Retains(ns string, at mongo.OpTime) bool
	// Absent reports a source namespace that the target has nothing of.
	Absent(ns string) bool
}

// Bounds of the documents that a Stage remembers, of about 40 bytes each, and of those that a
// checkpoint has.
const (
	mostTaken  = 1 << 20
	mostStored = 1 << 12
)

// Taken are documents of retained collections by whose _ids another collection has taken the place
// of theirs. A checkpoint has them, for the events that tell of it come once.
type Taken struct {
	// Incomplete: there were too many.
	Incomplete bool         `bson:"incomplete,omitempty"`
	Documents  []takenSince `bson:"documents,omitempty"`
}

// takenSince is a document, by the FNV-1a hash of its namespace and _id, and a position at which the
// other collection had its _id.
type takenSince struct {
	Hash int64        `bson:"hash"`
	At   mongo.OpTime `bson:"at"`
}

// retainer leads events to retained collections. It is safe for concurrent use.
type retainer struct {
	of  Retentions // nil where no rename is skipped
	key []byte

	mu      sync.Mutex
	taken   map[int64]mongo.OpTime
	full    bool
	version int // of what Taken returns
}

// lead gives an event of a retained collection the name that the target has it under. It
// reports false of one whose document, or collection, the target does not have.
func (r *retainer) lead(ev *stream.Event) (bool, error) {
	c, retained := r.of.Retained(ev.NS, ev.At)
	switch {
	case !retained && r.of.Absent(ev.NS):
		return false, nil
	case !retained && !r.of.Retains(ev.NS, ev.At):
		return true, nil
	case c.Mixed:
		return false, c.unknown(ev)
	case retained && !c.Reused:
		ev.NS = c.NS
		return true, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.key = delta.AppendKey(append(append(r.key[:0], cmp.Or(c.NS, ev.NS)...), 0), ev.Key.ID)
	hash := fnv.New64a()
	_, _ = hash.Write(r.key)
	h, at := int64(hash.Sum64()), ev.At
	if retained {
		if r.full {
			return false, c.unknown(ev)
		}
		if at = c.Since; at.Before(r.taken[h]) {
			return false, nil
		}
		ev.NS = c.NS
	}
	if r.full = r.full || len(r.taken) >= mostTaken; !r.full && r.taken[h].Before(at) {
		r.taken[h] = at
		r.version++
	}
	return true, nil
}

// unknown is the error of an event of which it is not known whether its document is still there.
func (c *Retained) unknown(ev *stream.Event) error {
	return mongo.WithHint(fmt.Errorf("%s, _id %s changes before the copy of the collection has ended, which "+
		"was %s; that rename is skipped, and another collection of the old name may have replaced the document",
		ev.NS, bsonraw.IDText(ev.Key.ID), c.NS), "start the job again with --restart")
}

// Taken is what a checkpoint has to have of retained collections, and its version. It may be called
// beside the other methods.
func (st *Stage) Taken() (t Taken, version int) {
	r := &st.retainer
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Incomplete = r.full || len(r.taken) > mostStored; !t.Incomplete {
		for h, at := range r.taken {
			t.Documents = append(t.Documents, takenSince{h, at})
		}
	}
	return t, r.version
}

// Retain has the stage lead events to collections whose renames are skipped, on top of what a
// checkpoint has of them.
func (st *Stage) Retain(of Retentions, stored Taken) {
	if !st.rules.SkipsAny(stream.OpRename) {
		return
	}
	st.retainer.of, st.retainer.full, st.retainer.taken = of, stored.Incomplete, map[int64]mongo.OpTime{}
	for _, d := range stored.Documents {
		st.retainer.taken[d.Hash] = d.At
	}
}

// ForgetRetained ends that, when the copies are over.
func (st *Stage) ForgetRetained() {
	st.retainer.mu.Lock()
	defer st.retainer.mu.Unlock()
	if len(st.retainer.taken) > 0 || st.retainer.full {
		st.retainer.version++
	}
	clear(st.retainer.taken)
	st.retainer.full = false
}

// Followed reports namespaces whose events a Stage needs. They are those that the rules keep,
// and those that may have been renamed from a kept one.
func (s *Set) Followed() func(ns string) bool {
	if !s.SkipsAny(stream.OpRename) {
		return s.Match
	}
	return func(ns string) bool {
		db, _ := mongo.SplitNS(ns)
		return s.Match(ns) || s.MatchDB(db)
	}
}
