package bench

import (
	"iter"
)

// change is what remains of the operations on one document of a window.
type change struct {
	kind    opKind
	fresh   bool // inserted within the window
	key     uint32
	set     uint16 // of an update: the fields it sets, by bit
	version [maxFields]uint32
}

// maxFields bounds the fields that updates may set.
const maxFields = 16

// entryBytes is about the size of an operation's oplog entry.
func (w workload) entryBytes(o op) int {
	const frame = 130
	switch o.kind {
	case opInsert:
		return frame + w.shape.size
	case opUpdate:
		return frame + 50 + w.shape.size/w.shape.fields
	}
	return frame
}

// fold merges the operations on each document within windows of so many bytes
// of oplog; 0 is one window of everything. An insert with updates becomes an
// insert, updates become one, and what is inserted and deleted within a window
// is nothing at all.
func (w workload) fold(ops iter.Seq[op], windowBytes int) iter.Seq[[]change] {
	return func(yield func([]change) bool) {
		var changes []change
		at := map[uint32]int{}
		size := 0
		for o := range ops {
			i, known := at[o.key]
			if !known {
				i = len(changes)
				at[o.key] = i
				changes = append(changes, change{kind: o.kind, fresh: o.kind == opInsert, key: o.key})
			}
			changes[i].take(o)
			size += w.entryBytes(o)
			if windowBytes == 0 || size < windowBytes {
				continue
			}
			if !yield(settled(changes)) {
				return
			}
			changes, size = nil, 0
			clear(at)
		}
		if len(changes) > 0 {
			yield(settled(changes))
		}
	}
}

// take merges a later operation.
func (c *change) take(o op) {
	switch o.kind {
	case opUpdate:
		c.set |= 1 << o.field
		c.version[o.field] = o.n
	case opDelete:
		c.kind = opDelete
	}
}

// settled leaves out what came and went.
func settled(changes []change) []change {
	kept := changes[:0]
	for _, c := range changes {
		if c.kind != opDelete || !c.fresh {
			kept = append(kept, c)
		}
	}
	return kept
}

// limit is the first n operations.
func limit(ops iter.Seq[op], n int) iter.Seq[op] {
	return func(yield func(op) bool) {
		if n == 0 {
			return
		}
		left := n
		for o := range ops {
			if left--; !yield(o) || left == 0 {
				return
			}
		}
	}
}
