package commands

import (
	"reflect"
	"slices"
)

// change is what a command does to one document: from one state on the source to
// another. One of them may be nil.
type change struct {
	op            Op
	before, after Doc
	set           Doc // what an Update changes
}

// document does a step on one document.
func (w *World) document(s Step) {
	c := w.source[s.NS]
	if c == nil {
		c = w.create(s.NS, false)
	}
	ch := change{op: s.Do, before: c.docs[s.ID]}
	switch s.Do {
	case Insert:
		ch.after = s.Doc
		c.order = append(c.order, s.ID)
	case Update:
		ch.after, ch.set = ch.before.with(s.Doc), Doc{}
		for k, v := range ch.after { // servers log, and do, what differs alone
			if was, has := ch.before[k]; !has || !reflect.DeepEqual(was, v) {
				ch.set[k] = v
			}
		}
		if len(ch.set) == 0 {
			return
		}
	case Replace:
		ch.after = Doc{"_id": s.ID}.with(s.Doc)
	}
	c.set(s.ID, ch.after)
	w.follow(s.NS, c, s.ID, ch)
}

func (c *collection) set(id int32, d Doc) {
	if d != nil {
		c.docs[id] = d
		return
	}
	delete(c.docs, id)
	for i, x := range c.order {
		if x == id {
			c.order = append(c.order[:i:i], c.order[i+1:]...)
			break
		}
	}
}

// follow is what becomes of a change on the target.
func (w *World) follow(ns string, c *collection, id int32, ch change) {
	if w.Stops != "" {
		return
	}
	if t := w.target[ns]; t != nil && !t.off && w.begun {
		r := w.rules(ns)
		list := each(t.docs[id], func(x state) state { return r.apply(x, ch) })
		if w.copying || w.during && ch.after != nil && r.keeps(ch.after) {
			list = add(list, r.seen(ch.after))
		}
		if r.Filter {
			list = t.readLate(id, ch, r, list)
		}
		t.docs[id] = list
		if ch.after != nil {
			delete(t.own, id)
		}
		t.record(id, ch)
	}
	if !w.during {
		return
	}
	// The copy reads a collection whatever its name is now, and what it may have read is followed.
	for name, t := range w.target {
		if !slices.Contains(t.of, c) || name == ns && !t.off {
			continue
		}
		r, was := w.rules(name), orAbsent(t.docs[id])
		next := add(append([]state{}, was...), r.seen(ch.after))
		for _, x := range was {
			if t.off || same(x, r.seen(ch.before)) { // else it may be of another collection
				next = add(next, r.apply(x, ch))
			}
		}
		t.docs[id] = next
	}
}

func orAbsent(list []state) []state {
	if len(list) == 0 {
		return []state{{}}
	}
	return list
}

// readLate allows that the filter has a document read after it is gone: then an update
// leaves it as it was, and the deletion that follows is one of that state.
func (t *copied) readLate(id int32, ch change, r Rules, list []state) []state {
	late := t.unread[id]
	_, looks := ch.set["s"]
	switch {
	case ch.op == Update && looks:
		t.unread[id] = add(late, orAbsent(t.docs[id])...)
	case ch.op == Update && len(late) > 0:
		t.unread[id] = each(late, func(x state) state {
			if x.doc == nil {
				return x
			}
			return state{doc: x.doc.with(ch.set)}
		})
	case ch.op == Delete && len(late) > 0:
		list = add(list, each(late, func(x state) state { return r.deleted(x, change{}) })...)
		delete(t.unread, id)
	default:
		delete(t.unread, id)
	}
	return list
}

// seen is what the copy makes of a document that it reads.
func (r Rules) seen(d Doc) state {
	if d == nil || !r.keeps(d) {
		return state{}
	}
	return state{doc: d}
}

// apply is what a change makes of what the target has.
func (r Rules) apply(x state, ch change) state {
	switch ch.op {
	case Insert:
		if r.skips("insert") {
			return x
		}
		return r.seen(ch.after) // what was retained of the _id goes, whether or not this one is kept
	case Update:
		switch {
		case r.skips("update"):
			return x
		case r.Filter && !r.keeps(ch.before):
			return r.seen(ch.after)
		case r.Filter && !r.keeps(ch.after):
			return state{}
		case x.doc == nil:
			return x
		}
		return state{doc: x.doc.with(ch.set)}
	case Replace:
		if r.skips("replace") || r.skips("insert") && x.doc == nil {
			return x
		}
		return r.seen(ch.after)
	case Delete:
		return r.deleted(x, ch)
	}
	return x
}

// deleted is what is left of a document that the source deletes.
func (r Rules) deleted(x state, ch change) state {
	switch {
	case r.skips("delete"):
		return x
	case r.Filter && ch.before != nil && !r.keeps(ch.before):
		return state{}
	case r.SoftDelete != "" && x.doc != nil:
		return state{doc: x.doc, marked: true}
	}
	return state{}
}

// result is what the target has of a document after the content of its collection was
// replaced: after is the document in the result, nil is none.
func (r Rules) result(x state, after Doc, own bool) (out []state) {
	switch {
	case after == nil && r.Merge && own:
		return []state{x}
	case after == nil && r.Merge: // nobody knows any more whose it is
		return add([]state{x}, state{})
	case after == nil && (r.skips("drop") || r.skips("rename")) && x.doc != nil:
		return add([]state{x}, state{})
	case after == nil:
		return []state{r.deleted(x, change{op: Delete})}
	case x.doc == nil && r.skips("insert"), x.doc != nil && r.skips("replace"):
		return []state{x}
	}
	return []state{r.seen(after)}
}

// record adds the version that a history has of a change.
func (t *copied) record(id int32, ch change) {
	if t.versions == nil {
		return
	}
	v := version{op: string(ch.op), ends: ch.after == nil}
	t.versions[id] = append(t.versions[id], v)
}
