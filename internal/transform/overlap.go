package transform

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Parse reads the text of String. Anything else is an error.
func Parse(text string) (*Set, error) {
	c := ParseConfig(text)
	c.Secret = func(string) (string, error) { return "unknown", nil } // it is not in the text
	s, err := New(c)
	if err == nil && s.String() != text {
		return nil, fmt.Errorf("this version does not know the rules %q", text)
	}
	return s, err
}

// ParseConfig returns the rules whose String is the text, if there are any.
func ParseConfig(text string) (c Config) {
	into := map[string]*[]string{"include": &c.Include, "exclude": &c.Exclude, "rename": &c.Rename, "filter": &c.Filter,
		"skip": &c.Skip, "fields": &c.Fields, "soft-delete": &c.SoftDelete, "history": &c.History}
	for text != "" && text != (*Set)(nil).String() {
		var rule string
		rule, text, _ = cutUnescaped(text, ';')
		kind, item, _ := strings.Cut(rule, " ")
		if list, ok := into[kind]; ok {
			*list = append(*list, item)
		}
		text = strings.TrimPrefix(text, " ")
	}
	return c
}

// area is a set of names on the target that rules may lead to, with holes.
type area struct {
	pattern
	holes []pattern
}

// Overlap finds names, as a pattern, that both rules may lead to on one target. It looks at the
// rules alone. Where only two holes together leave nothing over, it reports a false overlap.
func Overlap(a, b *Set) (names string, found bool) {
	for _, x := range a.areas() {
		for _, y := range b.areas() {
			hidden := func(h pattern) bool {
				return (h.db.covers(x.db) || h.db.covers(y.db)) && (h.coll.covers(x.coll) || h.coll.covers(y.coll))
			}
			if !x.db.meets(y.db) || !x.coll.meets(y.coll) || slices.ContainsFunc(x.holes, hidden) ||
				slices.ContainsFunc(y.holes, hidden) {
				continue
			}
			return narrower(x.db, y.db).text + "." + narrower(x.coll, y.coll).text, true
		}
	}
	return "", false
}

func narrower(a, b glob) glob {
	if a.covers(b) || !b.covers(a) && b.text < a.text {
		return b
	}
	return a
}

func (s *Set) areas() []area {
	if s == nil {
		s = &Set{}
	}
	include, out := s.include, []area(nil)
	if len(include) == 0 {
		include = []pattern{{all(), all()}}
	}
	kept := slices.Clone(s.exclude) // the holes of names that stay as they are
	for from := range s.dbs {
		kept = append(kept, pattern{exactly(from), all()})
	}
	for from, to := range s.colls {
		db, coll := mongo.SplitNS(from)
		kept = append(kept, pattern{exactly(db), exactly(coll)})
		if db, coll = mongo.SplitNS(to); s.Match(from) {
			out = append(out, area{pattern: pattern{exactly(db), exactly(coll)}})
		}
	}
	for _, p := range include {
		out = append(out, area{p, kept})
		for from, to := range s.dbs {
			if p.db.matches(from) {
				out = append(out, area{pattern{exactly(to), p.coll}, s.movedHoles(from, to)})
			}
		}
	}
	slices.SortFunc(out, func(a, b area) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func (s *Set) movedHoles(from, to string) (holes []pattern) {
	for _, e := range s.exclude {
		if e.db.matches(from) {
			holes = append(holes, pattern{exactly(to), e.coll})
		}
	}
	for ns := range s.colls {
		if db, coll := mongo.SplitNS(ns); db == from {
			holes = append(holes, pattern{exactly(to), exactly(coll)})
		}
	}
	return holes
}

// The wildcards among the runes of a glob.
const (
	star rune = -1 - iota
	one
)

func (g glob) runes() (out []rune) {
	escaped := false
	for _, r := range g.text {
		switch {
		case escaped:
			escaped = false
		case r == '\\':
			escaped = true
			continue
		case r == '*':
			r = star
		case r == '?':
			r = one
		}
		out = append(out, r)
	}
	return out
}

func (g glob) meets(other glob) bool { return align(g.runes(), other.runes(), true) }

// covers reports that every name that matches the other matches g.
func (g glob) covers(other glob) bool { return align(g.runes(), other.runes(), false) }

// align fits two globs onto each other. Unless both, wildcards of q are characters that only
// wildcards match.
func align(p, q []rune, both bool) bool {
	next := make([]bool, len(q)+1) // the row of p[i+1:]
	for i := len(p); i >= 0; i-- {
		row := make([]bool, len(q)+1)
		for j := len(q); j >= 0; j-- {
			inP, inQ := i < len(p), j < len(q)
			switch {
			case !inP && !inQ:
				row[j] = true
			case inP && p[i] == star:
				row[j] = next[j] || inQ && row[j+1]
			case both && inQ && q[j] == star:
				row[j] = row[j+1] || inP && next[j]
			case inP && inQ:
				same := p[i] == q[j] || p[i] == one && q[j] != star || both && q[j] == one
				row[j] = same && next[j+1]
			}
		}
		next = row
	}
	return next[0]
}

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
