package fold

import "bytes"

// Group holds the operations of one collection: one for each document, or, where
// the collection is serial, all of them in order.
type Group struct {
	Target *Target
	Ops    []Op
	index  table // positions in Ops by document hash
}

// find returns the operation that has the hash of an item's document. same is
// false where that is another document, or the same _id in other bytes (1 and
// 1.0): their order matters and cannot be expressed in one batch.
func (g *Group) find(it *Item) (prev *Op, same bool) {
	i, ok := g.index.find(it.Hash, g.Ops)
	if !ok {
		return nil, false
	}
	prev = &g.Ops[i]
	return prev, prev.ID.Type == it.Event.Key.ID.Type && bytes.Equal(prev.ID.Data, it.Event.Key.ID.Data)
}

// Batch collects the operations of one partition until they are sent. What Add
// was given, and what was folded from it, is valid until Reset.
type Batch struct {
	Groups []*Group
	Ops    int
	Bytes  int // of the operations, roughly

	byTarget map[*Target]*Group
	free     []*Group // emptied, for reuse
	mem      memory
}

// NewBatch is an empty batch.
func NewBatch() *Batch { return &Batch{byTarget: map[*Target]*Group{}} }

// Empty says that nothing is in it.
func (b *Batch) Empty() bool { return b.Ops == 0 }

// Reset empties the batch. Its memory serves the next operations.
func (b *Batch) Reset() {
	for _, g := range b.Groups {
		clear(g.Ops)
		g.Ops = g.Ops[:0]
		g.index.reset()
		g.Target = nil
	}
	b.free = append(b.free, b.Groups...)
	b.Groups = b.Groups[:0]
	clear(b.byTarget)
	b.mem.reset()
	b.Ops, b.Bytes = 0, 0
}

// Trim gives most of the memory up, after Reset.
func (b *Batch) Trim() { b.mem.trim() }

func (b *Batch) group(t *Target) *Group {
	if g, ok := b.byTarget[t]; ok {
		return g
	}
	var g *Group
	if n := len(b.free); n > 0 {
		g, b.free = b.free[n-1], b.free[:n-1]
	} else {
		g = &Group{}
	}
	g.Target = t
	b.byTarget[t] = g
	b.Groups = append(b.Groups, g)
	return g
}

// Add takes the item in, folding it into an earlier operation of the same
// document. ok is false, and nothing is changed, when the batch has to be sent
// first to keep the document's order.
func (b *Batch) Add(it *Item) (ok, folded bool, err error) {
	g := b.group(it.Target)
	switch prev, same := g.find(it); {
	case prev == nil:
		o, err := NewOp(it)
		if err == nil {
			b.add(g, &o, 0)
		}
		return err == nil, false, err
	case same:
		ok, err = b.join(prev, it)
		return ok, ok, err
	}
	return false, false, nil
}

// join folds the item into an operation of its document.
func (b *Batch) join(o *Op, it *Item) (ok bool, err error) {
	next, err := NewOp(it)
	if err != nil {
		return false, err
	}
	was := o.size()
	if ok, err = fold(o, &next, it.Target.Key, &b.mem); ok {
		b.Bytes += o.size() - was
	}
	return ok, err
}

// add takes in an operation whose hash its group does not have. Those of a serial
// collection are not found: nothing folds there.
func (b *Batch) add(g *Group, o *Op, overhead int) {
	g.Ops = append(g.Ops, *o)
	if !g.Target.Serial() {
		g.index.add(len(g.Ops)-1, g.Ops)
	}
	b.Ops++
	b.Bytes += o.size() + overhead
}
