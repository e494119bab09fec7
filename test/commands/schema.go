package commands

import (
	"maps"
	"slices"
)

// create makes a collection, as the command does or the first insert.
func (w *World) create(ns string, capped bool) *collection {
	c := newCollection()
	c.capped = capped
	w.source[ns] = c
	if !w.begun || !w.covers(ns) || w.Stops != "" {
		return c
	}
	r, t := w.rules(ns), w.target[ns]
	switch {
	case r.skips("create"):
		if t == nil {
			t = newCopied(nil)
			t.there = no
			w.target[ns] = t
		}
		t.off = true
	case capped && r.ofDocuments():
		w.stop(ns)
	case t == nil:
		t = newCopied(c)
		t.capped = isTrue(capped)
		w.target[ns] = t
		if r.History && !w.during {
			t.versions = map[int32][]version{}
		}
	default: // what was left goes on as this one
		t.off, t.of = false, append(t.of, c)
		t.there = max(t.there, must)
		if capped && t.capped != must {
			t.capped = may
			w.Limits[ns] = true
		}
	}
	return c
}

// setIndex makes an index or drops it.
func (w *World) setIndex(ns, name string, makes bool) {
	c := w.source[ns]
	if makes {
		c.indexes[name] = true
	} else {
		delete(c.indexes, name)
	}
	t, r := w.target[ns], w.rules(ns)
	if t == nil || t.off || !w.begun || w.Stops != "" {
		return
	}
	switch skips := makes && r.skips("createIndexes") || !makes && r.skips("dropIndexes"); {
	case skips && w.during:
		t.indexes[name] = may
	case skips && makes && t.indexes[name] == no, skips && !makes:
	case makes:
		t.indexes[name] = must
	default:
		t.indexes[name] = no
	}
}

// drop drops a collection.
func (w *World) drop(ns string) {
	gone := w.source[ns]
	w.destroyed(gone, ns)
	delete(w.source, ns)
	t, r := w.target[ns], w.rules(ns)
	if t == nil || !w.begun || w.Stops != "" {
		return
	}
	switch {
	case t.off && t.there == no:
		delete(w.target, ns)
	case t.off, r.skips("drop"):
		w.leave(t)
		t.off = false
		t.without(gone)
	case r.History && t.versions != nil:
		t.endAll("drop")
		t.of = nil
	default:
		delete(w.target, ns)
	}
}

// without has the copy read a collection no more. It may still read one of another name now.
func (t *copied) without(gone *collection) {
	t.of = slices.DeleteFunc(slices.Clone(t.of), func(c *collection) bool { return c == gone })
}

// destroyed ends a collection of the source: what the copy had not read of it is missing
// where it was left under another name.
func (w *World) destroyed(c *collection, ns string) {
	for name, t := range w.target {
		if name != ns && slices.Contains(t.of, c) {
			w.leave(t)
			t.leaveUnread()
		}
	}
}

// leave keeps a collection whose copy may not have come to its documents.
func (w *World) leave(t *copied) {
	if w.copying && len(t.of) > 0 {
		t.there = may
		for id, list := range t.docs {
			if !t.own[id] {
				t.docs[id] = add(list, state{})
			}
		}
		for name, f := range t.indexes {
			t.indexes[name] = min(f, may)
		}
	}
}

// endAll ends all documents of a history.
func (t *copied) endAll(op string) {
	for id, list := range t.docs {
		if len(list) > 0 && list[0].doc != nil {
			t.versions[id] = append(t.versions[id], version{op: op, ends: true})
		}
		t.docs[id] = []state{{}}
	}
}

// rename gives a collection another name.
func (w *World) rename(s Step) {
	c, gone := w.source[s.NS], w.source[s.To]
	w.destroyed(gone, s.To)
	delete(w.source, s.NS)
	w.source[s.To] = c
	fromIn, toIn := w.covers(s.NS), w.covers(s.To)
	if !w.begun || w.Stops != "" || !fromIn && !toIn {
		return
	}
	rf, rt := w.rules(s.NS), w.rules(s.To)
	from, to := w.target[s.NS], w.target[s.To]
	never := func(ns string) {
		t := newCopied(nil)
		t.there, t.off = no, true
		w.target[ns] = t
	}
	switch {
	case fromIn && rf.skips("rename") || toIn && rt.skips("rename"):
		if from != nil {
			from.off = true
			if !rf.skips("rename") && !rf.skips("drop") { // no rule of its own excuses what stays
				w.Limits[s.NS] = true
			}
		}
		if to != nil {
			w.leave(to)
			to.leaveUnread()
			to.off = true
			to.without(gone)
		} else if toIn {
			never(s.To)
		}
	case toIn && c.capped && rt.ofDocuments():
		w.stop(s.To)
	case !toIn && rf.History && from.versions != nil:
		from.endAll("rename")
		from.of = nil
	case !toIn:
		delete(w.target, s.NS)
	case !fromIn:
		w.target[s.To] = w.again(s.To, c)
	case from == nil || from.off && from.there == no:
		delete(w.target, s.NS)
		never(s.To)
	case rt.History && from.versions != nil:
		w.renameHistory(s, c)
	default:
		delete(w.target, s.NS)
		if !rf.same(rt) {
			next := w.again(s.To, c)
			for id, list := range from.docs {
				next.docs[id] = add(orAbsent(next.docs[id]), list...)
			}
			from = next
		}
		w.target[s.To] = from
	}
}

// again is a collection that is copied now.
func (w *World) again(ns string, c *collection) *copied {
	t, r := newCopied(c), w.rules(ns)
	t.capped = isTrue(c.capped)
	for id, d := range c.docs {
		t.docs[id] = []state{r.seen(d)}
	}
	for name := range c.indexes {
		t.indexes[name] = must
	}
	if r.History && !w.during {
		t.versions, t.vague = map[int32][]version{}, true
	}
	return t
}

// renameHistory ends the documents under the one name and begins them under the other.
func (w *World) renameHistory(s Step, c *collection) {
	from, to := w.target[s.NS], w.target[s.To]
	from.endAll("rename")
	from.of = nil
	if to == nil {
		to = newCopied(c)
		to.versions = map[int32][]version{}
		w.target[s.To] = to
	} else {
		to.endAll("drop")
	}
	to.of = reads(c)
	for id, d := range c.docs {
		to.docs[id] = []state{{doc: d}}
		to.versions[id] = append(to.versions[id], version{op: "rename"})
	}
}

// out puts the result of an aggregation or a mapReduce in the place of a collection, or
// makes one.
func (w *World) out(s Step) {
	from, old := w.source[s.NS], w.source[s.To]
	result := map[int32]Doc{}
	var order []int32
	for _, id := range from.order {
		d := from.docs[id]
		if v, _ := d["v"].(int32); s.Below != 0 && v >= s.Below {
			continue
		}
		if _, has := d["v"]; s.Below != 0 && !has {
			continue
		}
		result[id] = d.with(Doc{"out": int32(1)})
		if s.Do == MapReduce {
			result[id] = Doc{"_id": id, "value": 1.0}
		}
		order = append(order, id)
	}
	if old == nil {
		w.create(s.To, false)
		for _, id := range order {
			w.document(Step{Do: Insert, NS: s.To, ID: id, Doc: result[id]})
		}
		return
	}
	c := &collection{docs: result, order: order, indexes: maps.Clone(old.indexes)}
	w.source[s.To] = c
	w.destroyed(old, s.To)
	t, r := w.target[s.To], w.rules(s.To)
	if t == nil || t.off || !w.begun || w.Stops != "" {
		return
	}
	ids := maps.Clone(t.own)
	for id := range t.docs {
		ids[id] = true
	}
	for id := range result {
		ids[id] = true
	}
	for id := range ids {
		list := orAbsent(t.docs[id])
		if w.copying { // the copy of what was there may not have come to it
			list = add(append([]state{}, list...), state{})
		}
		var next []state
		for _, x := range list {
			next = add(next, r.result(x, result[id], t.own[id])...)
		}
		if w.during && result[id] != nil && (w.copying || r.keeps(result[id])) {
			next = add(next, r.seen(result[id]))
		}
		if late := t.unread[id]; r.Filter && result[id] == nil && len(late) > 0 {
			next = add(next, each(late, func(x state) state { return r.deleted(x, change{}) })...)
		}
		delete(t.unread, id)
		t.recordResult(id, list[0], result[id], old.docs[id])
		t.docs[id] = next
		if result[id] != nil {
			delete(t.own, id)
		}
	}
	t.of = reads(c)
}

// leaveUnread allows that the documents that the filter reads late are gone then, with
// their collection, and that nothing comes after it: the job ends over what replaced it.
func (t *copied) leaveUnread() {
	for id, late := range t.unread {
		t.docs[id] = add(orAbsent(t.docs[id]), late...)
		delete(t.unread, id)
	}
}

// recordResult adds the version of a document whose collection got other content.
func (t *copied) recordResult(id int32, x state, after, before Doc) {
	if t.versions == nil {
		return
	}
	switch {
	case x.doc == nil && after != nil:
		t.versions[id] = append(t.versions[id], version{op: string(Insert)})
	case x.doc != nil && after == nil:
		t.versions[id] = append(t.versions[id], version{op: string(Delete), ends: true})
	case x.doc != nil:
		t.versions[id] = append(t.versions[id], version{op: string(Replace),
			optional: same(state{doc: before}, state{doc: after})})
	}
}

// convert makes a collection a capped one without indexes.
func (w *World) convert(ns string) {
	c := w.source[ns]
	c.capped, c.indexes = true, map[string]bool{}
	t, r := w.target[ns], w.rules(ns)
	if t == nil || t.off || !w.begun || w.Stops != "" || r.skips("collMod") {
		return
	}
	switch {
	case r.ofDocuments():
		t.leaveUnread()
		w.stop(ns)
	case r.skips("drop"), r.skips("rename"), r.Merge: // left out where there is something to keep
		t.capped = may
		w.Limits[ns] = true
		for name, f := range t.indexes {
			t.indexes[name] = min(f, may)
		}
	default:
		t.capped = must
		for name := range t.indexes {
			t.indexes[name] = no
			if r.skips("dropIndexes") {
				t.indexes[name] = may
				w.Limits[ns] = true
			}
		}
	}
}
