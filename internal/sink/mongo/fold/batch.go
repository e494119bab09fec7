package fold

import "bytes"

// Group holds the operations of one collection: one per document, or all in order if it is serial.
type Group struct {
	Target *Target
	Ops    []Op
	index  table // positions in Ops by document hash
}

// find returns the operation with the hash of an item's document. same is false for another document, or
// for an equal _id in other bytes (1 and 1.0), whose order one batch cannot express.
func (g *Group) find(it *Item) (prev *Op, same bool) {
	i, ok := g.index.find(it.Hash, g.Ops)
	if !ok {
		return nil, false
	}
	prev = &g.Ops[i]
	return prev, prev.ID.Type == it.Event.Key.ID.Type && bytes.Equal(prev.ID.Data, it.Event.Key.ID.Data)
}

// Batch collects a partition's operations until they are sent. Items and what was folded from them are
// valid until Reset.
type Batch struct {
	Groups []*Group
	Ops    int
	Bytes  int // of the operations, roughly

	byTarget map[*Target]*Group
	free     []*Group // emptied, for reuse
	mem      memory
}

// NewBatch returns an empty batch.
func NewBatch() *Batch { return &Batch{byTarget: map[*Target]*Group{}} }

// Empty reports whether the batch has no operations.
func (b *Batch) Empty() bool { return b.Ops == 0 }

// Reset empties the batch and keeps its memory.
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

// Trim frees most of the memory, after Reset.
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

// Add adds an item, or folds it into an earlier operation of its document. If ok is false nothing
// changed, and the batch must be sent first to keep the document's order.
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

// add adds an operation with a new hash. Serial groups have no index, as nothing folds there.
func (b *Batch) add(g *Group, o *Op, overhead int) {
	g.Ops = append(g.Ops, *o)
	if !g.Target.Serial() {
		g.index.add(len(g.Ops)-1, g.Ops)
	}
	b.Ops++
	b.Bytes += o.size() + overhead
}
