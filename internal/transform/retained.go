package transform

import (
	"cmp"
	"fmt"
	"hash/maphash"

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

// mostTaken bounds the documents that retainer remembers, of about 40 bytes each.
const mostTaken = 1 << 20

// retainer leads events to retained collections. It has the documents by whose _ids another
// collection has taken the place of theirs since.
type retainer struct {
	copies Copies // nil where no rename is skipped
	from   mongo.OpTime
	seed   maphash.Seed
	taken  map[uint64]mongo.OpTime
	full   bool
	key    []byte
}

// lead gives an event of a retained collection the name that the target has it under. It
// reports false of one whose document, or collection, the target does not have.
func (r *retainer) lead(ev *stream.Event) (bool, error) {
	c, retained := r.copies.Retained(ev.NS, ev.At)
	if !retained && (r.copies.Absent(ev.NS) || !r.copies.Retains(ev.NS, ev.At)) {
		return !r.copies.Absent(ev.NS), nil
	}
	r.key = delta.AppendKey(append(append(r.key[:0], cmp.Or(c.NS, ev.NS)...), 0), ev.Key.ID)
	h := maphash.Bytes(r.seed, r.key)
	at := ev.At
	if retained {
		if c.Mixed || c.Reused && (r.full || c.Since.Before(r.from)) {
			return false, mongo.WithHint(fmt.Errorf("%s, _id %s changes before the copy of the collection has ended, which "+
				"was %s; that rename is skipped, and another collection of the old name may have replaced the document",
				ev.NS, bsonraw.IDText(ev.Key.ID), c.NS), "start the job again with --restart")
		}
		if at = c.Since; at.Before(r.taken[h]) {
			return false, nil
		}
		ev.NS = c.NS
	}
	if len(r.taken) >= mostTaken {
		r.full = true
		return true, nil
	}
	r.taken[h] = mongo.MaxOpTime(r.taken[h], at)
	return true, nil
}

// retain has the stage lead events to collections whose renames are skipped.
func (st *Stage) retain(copies Copies) {
	if st.rules.SkipsAny(stream.OpRename) {
		st.retainer.copies, st.retainer.seed, st.retainer.taken = copies, maphash.MakeSeed(), map[uint64]mongo.OpTime{}
	}
}

// Followed reports namespaces whose events a Stage needs: those that the rules keep, and those
// of which it is to be known whether they were renamed from one that is kept.
func (s *Set) Followed() func(ns string) bool {
	if !s.SkipsAny(stream.OpRename) {
		return s.Match
	}
	return func(ns string) bool {
		db, _ := mongo.SplitNS(ns)
		return s.Match(ns) || s.MatchDB(db)
	}
}
