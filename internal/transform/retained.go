package transform

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Retained is a collection that the target keeps under its old name, as its rename was skipped during
// its copy. The copy may have read changes under the new name, so they are applied up to its end:
// otherwise documents would mix two states.
type Retained struct {
	NS    string       // the old name
	Since mongo.OpTime // the position of the rename
	// Reused: another collection has the old name, or had it.
	Reused bool
	// Mixed: the target has documents there that no event covers.
	Mixed bool
}

// Retentions lists retained collections.
type Retentions interface {
	// Retained finds the collection for changes under a source namespace at a position.
	Retained(ns string, at mongo.OpTime) (Retained, bool)
	// Retains reports a collection that is Retained under a name that another one has on the source.
	Retains(ns string, at mongo.OpTime) bool
	// Absent reports a source namespace without anything on the target.
	Absent(ns string) bool
}

// Bounds of the documents that a Stage remembers, of about 40 bytes each, and of those in a
// checkpoint.
const (
	mostTaken  = 1 << 20
	mostStored = 1 << 12
)

// Taken are documents of retained collections whose _ids documents of other collections have taken.
// It is part of a checkpoint, as the events that show it come once.
type Taken struct {
	// Incomplete: there were too many.
	Incomplete bool         `bson:"incomplete,omitempty"`
	Documents  []takenSince `bson:"documents,omitempty"`
}

// takenSince is a document, by the FNV-1a hash of its namespace and _id, and a position at which
// the other collection had its _id.
type takenSince struct {
	Hash int64        `bson:"hash"`
	At   mongo.OpTime `bson:"at"`
}

// retainer directs events to retained collections. It is safe for concurrent use.
type retainer struct {
	of  Retentions // nil where no rename is skipped
	key []byte

	mu      sync.Mutex
	taken   map[int64]mongo.OpTime
	full    bool
	version int // of the result of Taken
}

// lead renames an event of a retained collection as on the target. It returns false if the target
// lacks its document or collection.
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

func (c *Retained) unknown(ev *stream.Event) error {
	return mongo.WithHint(fmt.Errorf("%s, _id %s changed during the copy of %s, whose rename is skipped; "+
		"another collection of the old name may have replaced the document",
		ev.NS, bsonraw.IDText(ev.Key.ID), c.NS), "start the job again with --restart")
}

// Taken returns the state of retained collections for a checkpoint, and its version. It is safe for
// concurrent use with the other methods.
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

// Retain directs events to collections whose renames are skipped, from the state of a checkpoint on.
func (st *Stage) Retain(of Retentions, stored Taken) {
	if !st.rules.SkipsAny(stream.OpRename) {
		return
	}
	st.retainer.of, st.retainer.full, st.retainer.taken = of, stored.Incomplete, map[int64]mongo.OpTime{}
	for _, d := range stored.Documents {
		st.retainer.taken[d.Hash] = d.At
	}
}

// ForgetRetained ends this when the copies are over.
func (st *Stage) ForgetRetained() {
	st.retainer.mu.Lock()
	defer st.retainer.mu.Unlock()
	if len(st.retainer.taken) > 0 || st.retainer.full {
		st.retainer.version++
	}
	clear(st.retainer.taken)
	st.retainer.full = false
}

// Followed returns whether a Stage needs the events of a namespace: the rules keep it, or it may have
// been renamed from one that they keep.
func (s *Set) Followed() func(ns string) bool {
	if !s.SkipsAny(stream.OpRename) {
		return s.Match
	}
	return func(ns string) bool {
		db, _ := mongo.SplitNS(ns)
		return s.Match(ns) || s.MatchDB(db)
	}
}

// maxPrefixes bounds the conditions of a filter on the source.
const maxPrefixes = 16

// Prefixes returns how the names begin of all namespaces that Followed takes, nil if that is not known or too many.
func (s *Set) Prefixes() []string {
	if s == nil {
		return nil
	}
	var all []string
	for _, p := range s.include {
		db := p.db.before
		switch {
		case p.db.any || p.db.wild != nil:
			all = append(all, db)
		case p.coll.before == "" || s.SkipsAny(stream.OpRename):
			all = append(all, db+".")
		default: // buckets and views, and what servers fill for a command
			all = append(all, db+"."+p.coll.before, db+".system.", db+".tmp")
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > maxPrefixes || slices.Contains(all, "") {
		return nil
	}
	return all
}
