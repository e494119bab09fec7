package commands

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// fate says whether something is on the target.
type fate int

const (
	no fate = iota
	may
	must
)

// state is what the target may have of a document, in the source's form: nil is
// nothing.
type state struct {
	doc    Doc
	marked bool
}

// version is one that a history has to have.
type version struct {
	op       string
	ends     bool // it has no document
	optional bool
}

// collection is one of the source.
type collection struct {
	docs    map[int32]Doc
	order   []int32 // as they were inserted
	indexes map[string]bool
	capped  bool
}

// copied is a collection of the target.
type copied struct {
	// there is whether it exists.
	there fate
	// off: what the source does under the name does not come here. It never came, or stays
	// as it was when it was to get another name.
	off  bool
	of   []*collection // whose documents the copy reads
	docs map[int32][]state
	// unread are what a document may be if it is gone when the filter has it read for an
	// update: what it was before, with later changes that the filter does not look at.
	unread  map[int32][]state
	own     map[int32]bool // documents of nobody but the target
	indexes map[string]fate
	capped  fate
	// versions are those of a history since the copy has ended, nil before.
	versions map[int32][]version
	// vague: how its documents came there is not known, apart from what they are.
	vague bool
}

// World is both sides of one job. It belongs to one goroutine.
type World struct {
	rules   func(ns string) Rules
	covers  func(ns string) bool
	source  map[string]*collection
	target  map[string]*copied
	begun   bool
	during  bool // the copy runs
	copying bool // and has not come to all documents
	// Stops is why the job has to end with an error, if it has to.
	Stops string
	// Limits are the namespaces where the job may report, when it ends, that options
	// and indexes differ.
	Limits map[string]bool
	// Shards says that the target has shards: what it shards has the index of its key, by
	// whatever rule.
	Shards bool
}

// New is a world before the job. covers says which namespaces the job includes.
func New(rules func(ns string) Rules, covers func(ns string) bool) *World {
	return &World{rules: rules, covers: covers, source: map[string]*collection{}, target: map[string]*copied{},
		Limits: map[string]bool{}}
}

// ErrInapplicable reports a step that the source refuses, or whose outcome the model
// does not know.
var ErrInapplicable = errors.New("the model cannot apply this step")

// Has reports whether the source has a document.
func (w *World) Has(ns string, id int32) bool {
	c := w.source[ns]
	return c != nil && c.docs[id] != nil
}

// Exists reports whether the source has a collection, and whether it is capped.
func (w *World) Exists(ns string) (there, capped bool) {
	c := w.source[ns]
	return c != nil, c != nil && c.capped
}

// Capped are the capped collections that the source has now under rules which no capped
// collection can have.
func (w *World) Capped() (out []string) {
	for _, ns := range sorted(w.source) {
		if w.source[ns].capped && w.covers(ns) && w.rules(ns).ofDocuments() {
			out = append(out, ns)
		}
	}
	return out
}

// Documents are the fewest and the most documents that the target may have of a
// namespace.
func (w *World) Documents(ns string) (least, most int) {
	t := w.target[ns]
	if t == nil {
		return 0, 0
	}
	for _, list := range t.docs {
		absent := slices.ContainsFunc(list, func(s state) bool { return s.doc == nil })
		if !absent {
			least++
		}
		if slices.ContainsFunc(list, func(s state) bool { return s.doc != nil }) {
			most++
		}
	}
	return least, most
}

// Own gives the target a document of its own, before the job.
func (w *World) Own(ns string, d Doc) {
	t := w.target[ns]
	if t == nil {
		t = newCopied(nil)
		w.target[ns] = t
	}
	id := idOf(d)
	t.docs[id], t.own[id] = []state{{doc: d}}, true
}

// Shard makes a sharded collection with the index of its key.
func (w *World) Shard(ns, index string) {
	w.create(ns, false)
	w.setIndex(ns, index, true)
	if t := w.target[ns]; t != nil && w.Shards && t.indexes[index] == no {
		t.indexes[index] = may
	}
}

// Begin has the job take its start position.
func (w *World) Begin() {
	w.begun, w.during, w.copying = true, true, true
	for ns, c := range w.source {
		if !w.covers(ns) {
			continue
		}
		t := w.target[ns]
		if t == nil {
			t = newCopied(c)
			w.target[ns] = t
		}
		r := w.rules(ns)
		if c.capped && r.ofDocuments() {
			w.stop(ns)
		}
		t.of, t.there, t.capped = []*collection{c}, must, isTrue(c.capped)
		for id, d := range c.docs {
			if !r.keeps(d) {
				continue
			}
			t.docs[id] = []state{{doc: d}}
			delete(t.own, id)
		}
		for name := range c.indexes {
			t.indexes[name] = must
		}
	}
}

// Complete has the copy of all documents that there are done, while it goes on
// elsewhere: nothing that happens from now on keeps one of them from being copied.
func (w *World) Complete() { w.copying = false }

// Copied ends the copy: from now on each document has one state, and histories have
// each change.
func (w *World) Copied() {
	w.during, w.copying = false, false
	for ns, t := range w.target {
		if !w.rules(ns).History {
			continue
		}
		t.versions = map[int32][]version{}
		for id, list := range t.docs {
			if slices.ContainsFunc(list, func(s state) bool { return s.doc != nil }) {
				t.versions[id] = []version{{op: "copy", optional: len(list) > 1}}
			}
		}
	}
}

func newCopied(of *collection) *copied {
	return &copied{there: must, of: reads(of), docs: map[int32][]state{}, unread: map[int32][]state{},
		own: map[int32]bool{}, indexes: map[string]fate{}}
}

func reads(c *collection) []*collection {
	if c == nil {
		return nil
	}
	return []*collection{c}
}

func newCollection() *collection {
	return &collection{docs: map[int32]Doc{}, indexes: map[string]bool{}}
}

func isTrue(b bool) fate {
	if b {
		return must
	}
	return no
}

func idOf(d Doc) int32 {
	id, _ := d["_id"].(int32)
	return id
}

// with is the document with some fields changed.
func (d Doc) with(set Doc) Doc {
	out := maps.Clone(d)
	for k, v := range set {
		if k != "_at" {
			out[k] = v
		}
	}
	return out
}

func same(a, b state) bool { return a.marked == b.marked && reflect.DeepEqual(a.doc, b.doc) }

// add puts a state among others.
func add(list []state, more ...state) []state {
	for _, s := range more {
		if !slices.ContainsFunc(list, func(x state) bool { return same(x, s) }) {
			list = append(list, s)
		}
	}
	return list
}

// each replaces every state.
func each(list []state, do func(state) state) (out []state) {
	if len(list) == 0 {
		list = []state{{}}
	}
	for _, s := range list {
		out = add(out, do(s))
	}
	return out
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// Apply does a step on both sides.
func (w *World) Apply(s Step) error {
	if err := w.check(s); err != nil {
		return err
	}
	switch s.Do {
	case Insert, Update, Replace, Delete:
		w.document(s)
	case Create:
		w.create(s.NS, s.Capped)
	case CreateIndex, DropIndex:
		w.setIndex(s.NS, s.Field+"_1", s.Do == CreateIndex)
	case Drop:
		w.drop(s.NS)
	case DropDatabase:
		for _, ns := range sorted(w.source) {
			if db, _ := split(ns); db == s.NS {
				w.drop(ns)
			}
		}
	case Rename:
		w.rename(s)
	case Out, MapReduce:
		w.out(s)
	case Convert:
		w.convert(s.NS)
	case Clone:
		from := w.source[s.NS]
		w.create(s.To, true)
		for _, id := range from.order {
			w.document(Step{Do: Insert, NS: s.To, ID: id, Doc: from.docs[id]})
		}
	case Shard:
		w.Shard(s.NS, "k_hashed")
	case Reshard, MovePrimary: // documents stay as they are
	}
	return nil
}

// check says why the source would refuse a step.
func (w *World) check(s Step) error {
	c, to := w.source[s.NS], w.source[s.To]
	kept := func(ns string) bool {
		t := w.target[ns]
		return w.source[ns] == nil && t != nil && t.there != no && !w.rules(ns).History
	}
	// What was left is another kind of collection than the one that is made: the job stops.
	differs := func(ns string, capped bool) bool { return kept(ns) && w.target[ns].capped != isTrue(capped) }
	wrong := func(why string) error { return fmt.Errorf("%s: %s: %w", s, why, ErrInapplicable) }
	switch s.Do {
	case Insert:
		if w.Has(s.NS, s.ID) {
			return wrong("it is there")
		}
		if c == nil && differs(s.NS, false) {
			return wrong("what was left on the target has the name, and is capped")
		}
		return nil
	case Update, Replace, Delete:
		if !w.Has(s.NS, s.ID) {
			return wrong("it is not there")
		}
	case Create, Shard:
		if c != nil || differs(s.NS, s.Capped) || s.Capped && kept(s.NS) && w.rules(s.NS).Merge {
			return wrong("it is there")
		}
		return nil
	case DropDatabase, MovePrimary:
		return nil
	}
	if c == nil {
		return wrong("no such collection")
	}
	switch s.Do {
	case CreateIndex, DropIndex:
		if c.indexes[s.Field+"_1"] == (s.Do == CreateIndex) {
			return wrong("nothing changes")
		}
	case Rename:
		if to != nil && !s.DropTarget || s.NS == s.To {
			return wrong("the new name is taken")
		}
		if kept(s.To) {
			return wrong("what was left on the target has the new name")
		}
	case Out, MapReduce:
		if to != nil && to.capped {
			return wrong("the result is capped")
		}
		if kept(s.To) {
			return wrong("what was left on the target has the name of the result")
		}
	case Clone:
		if to != nil || differs(s.To, true) || kept(s.To) && w.rules(s.To).Merge {
			return wrong("the name of the clone is taken")
		}
	}
	return nil
}

// stop has the job end for a collection, and nothing change on the target any more.
func (w *World) stop(ns string) {
	if w.Stops == "" {
		w.Stops = ns
	}
}
