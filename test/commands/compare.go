package commands

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Actual is a collection as a server has it.
type Actual struct {
	// Docs are its documents in natural order.
	Docs    []bson.M
	Indexes []string // their names, but for that of _id
	Capped  bool
}

// Compare lists how the target differs from what it has to contain. Of the source the order of
// capped collections counts: what servers fill for a command is in an order of their own.
func (w *World) Compare(target, source map[string]Actual) (diffs []string) {
	names := maps.Clone(target)
	for ns := range w.target {
		if _, ok := names[ns]; !ok {
			names[ns] = Actual{}
		}
	}
	for _, ns := range sorted(names) {
		a, there := target[ns]
		t := w.target[ns]
		switch {
		case t == nil || t.there == no:
			if there {
				diffs = append(diffs, fmt.Sprintf("%s is on the target, with %d documents", ns, len(a.Docs)))
			}
			continue
		case !there:
			if t.there == must {
				diffs = append(diffs, ns+" is not on the target")
			}
			continue
		}
		for _, d := range w.compareOne(ns, t, a, source[ns]) {
			diffs = append(diffs, ns+": "+d)
		}
	}
	return diffs
}

func (w *World) compareOne(ns string, t *copied, a, source Actual) (diffs []string) {
	r := w.rules(ns)
	have := map[int32]state{}
	var order []int32
	if r.History {
		have, diffs = newest(t, a.Docs)
	} else {
		for _, d := range a.Docs {
			id, ok := d["_id"].(int32)
			if !ok {
				diffs = append(diffs, fmt.Sprintf("a document %v that nobody has written", d))
				continue
			}
			x := state{doc: Doc(d)}
			if r.SoftDelete != "" {
				_, x.marked = d[r.SoftDelete]
				delete(d, r.SoftDelete)
			}
			if _, twice := have[id]; twice {
				diffs = append(diffs, fmt.Sprintf("document %d is there twice", id))
			}
			have[id] = x
			order = append(order, id)
		}
	}
	ids := maps.Clone(t.docs)
	for id := range have {
		ids[id] = t.docs[id]
	}
	for _, id := range sorted(ids) {
		if is := have[id]; !slices.ContainsFunc(orAbsent(ids[id]), func(s state) bool { return same(r.mapped(s), is) }) {
			diffs = append(diffs, fmt.Sprintf("document %d is %s, has to be %s", id, is, r.expected(ids[id])))
		}
	}
	if t.capped != may && a.Capped != (t.capped == must) {
		diffs = append(diffs, fmt.Sprintf("capped is %v, has to be %v", a.Capped, t.capped == must))
	}
	if goesOn := r.skips("drop") || r.skips("rename"); a.Capped && t.capped == must && len(diffs) == 0 &&
		w.source[ns] != nil && !goesOn {
		var want []int32
		for _, d := range source.Docs {
			id, _ := d["_id"].(int32)
			want = append(want, id)
		}
		if !slices.Equal(order, want) {
			diffs = append(diffs, fmt.Sprintf("the order is %v, has to be %v", order, want))
		}
	}
	return append(diffs, t.indexesDiffer(a.Indexes, r)...)
}

func (t *copied) indexesDiffer(have []string, r Rules) (diffs []string) {
	for name, f := range t.indexes {
		if r.History {
			f = no
		}
		if is := slices.Contains(have, name); f != may && is != (f == must) {
			diffs = append(diffs, fmt.Sprintf("index %s there is %v, has to be %v", name, is, f == must))
		}
	}
	for _, name := range have {
		if _, ok := t.indexes[name]; !ok {
			diffs = append(diffs, "an index "+name+" that nobody has made")
		}
	}
	slices.Sort(diffs)
	return diffs
}

// mapped is what the rules for fields make of a document.
func (r Rules) mapped(s state) state {
	if !r.Fields || s.doc == nil {
		return s
	}
	out := Doc{}
	for k, v := range s.doc {
		switch k {
		case "v":
			out["w"] = v
		case "n":
			out[k] = fmt.Sprint(v)
		case "w":
		default:
			out[k] = v
		}
	}
	return state{doc: out, marked: s.marked}
}

// String is short.
func (s state) String() string {
	switch {
	case s.doc == nil:
		return "absent"
	case s.marked:
		return fmt.Sprintf("marked %v", map[string]any(s.doc))
	}
	return fmt.Sprint(map[string]any(s.doc))
}

func (r Rules) expected(list []state) string {
	var out []string
	for _, s := range orAbsent(list) {
		out = append(out, r.mapped(s).String())
	}
	return strings.Join(out, " or ")
}

// newest are the documents of a history, and how its versions differ from those that
// it has to have.
func newest(t *copied, docs []bson.M) (have map[int32]state, diffs []string) {
	type seen struct {
		at  bson.Timestamp
		n   int64
		op  string
		doc Doc
	}
	list := map[int32][]seen{}
	for _, d := range docs {
		id, _ := d["_id"].(bson.D)
		var s seen
		var k int32
		for _, e := range id {
			switch v := e.Value.(type) {
			case bson.Timestamp:
				s.at = v
			case int32:
				if e.Key == "k" {
					k = v
				} else {
					s.n = int64(v)
				}
			case int64:
				s.n = v
			}
		}
		s.op, _ = d["op"].(string)
		if doc, ok := d["doc"].(bson.D); ok {
			s.doc = fromD(doc)
		}
		list[k] = append(list[k], s)
	}
	have = map[int32]state{}
	for id, all := range list {
		slices.SortFunc(all, func(a, b seen) int {
			if c := a.at.Compare(b.at); c != 0 {
				return c
			}
			return int(a.n - b.n)
		})
		have[id] = state{doc: all[len(all)-1].doc}
		var ops []string
		for _, s := range all {
			op := s.op
			if s.doc == nil {
				op += "-"
			}
			ops = append(ops, op)
		}
		if t.versions != nil && !t.vague && !matches(t.versions[id], ops) {
			diffs = append(diffs, fmt.Sprintf("the versions of document %d are %v, have to be %v", id, ops, t.versions[id]))
		}
	}
	return have, diffs
}

// matches reports whether operations are those of versions, where optional ones may be missing.
func matches(want []version, ops []string) bool {
	if len(want) == 0 {
		return len(ops) == 0
	}
	v := want[0]
	op := v.op
	if v.ends {
		op += "-"
	}
	if len(ops) > 0 && ops[0] == op && matches(want[1:], ops[1:]) {
		return true
	}
	return v.optional && matches(want[1:], ops)
}

func fromD(d bson.D) Doc {
	out := Doc{}
	for _, e := range d {
		out[e.Key] = e.Value
	}
	return out
}

// String is the operation, as newest writes it.
func (v version) String() string {
	s := v.op
	if v.ends {
		s += "-"
	}
	if v.optional {
		s += "?"
	}
	return s
}
