package delta

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// inlineEntries is how many changes of one (sub)document need no allocation.
const inlineEntries = 16

type entry struct {
	name   []byte
	val    []byte
	lo, hi int32 // rankPaths: the range of dotted paths below this name
	typ    bson.Type
	op     uint8 // rank of the section, or rankPaths
	seen   bool  // the document has the field
}

// rankPaths marks an entry that stands for a group of dotted $v:1 paths.
const rankPaths = rankSub + 1

// diffEntries lists the changes of an object diff: sections d, u, i, s... in this order, none of
// the first three twice.
//
// Lists are passed and returned, never stored through a pointer, so that their inline space stays
// on the stack.
func diffEntries(list []entry, diff []byte) ([]entry, error) {
	b, ok := bsonraw.Body(diff)
	if !ok || len(b) == 0 {
		return nil, fmt.Errorf("%w: empty diff", ErrMalformed)
	}
	for rank := 0; len(b) > 0; {
		f, rest, ok := bsonraw.Next(b)
		if !ok {
			return nil, fmt.Errorf("%w: truncated diff", ErrMalformed)
		}
		r, err := sectionRank(f)
		if err != nil {
			return nil, err
		}
		if r < rank || r == rank && r != rankSub {
			return nil, fmt.Errorf("%w: section %q out of order", ErrMalformed, f.Name)
		}
		if rank, b = r, rest; r == rankSub {
			list = append(list, entry{name: f.Name[1:], val: f.Value, typ: f.Type, op: rankSub})
			continue
		}
		for g, ok := range bsonraw.Fields(f.Value) {
			if !ok {
				return nil, fmt.Errorf("%w: section %q", ErrMalformed, f.Name)
			}
			list = append(list, entry{name: g.Name, val: g.Value, typ: g.Type, op: uint8(r)})
		}
	}
	return list, nil
}

// index finds entries by name: linear while there are few, by hash beyond.
type index struct {
	list  []entry
	table []int32 // place in list + 1, at the hash of the name or after it
}

func indexOf(list []entry) index {
	if len(list) <= inlineEntries {
		return index{list: list}
	}
	size := 1
	for size < 2*len(list) {
		size *= 2
	}
	x := index{list: list, table: make([]int32, size)}
	for i := range list {
		at := xxhash.Sum64(list[i].name) & uint64(size-1)
		for x.table[at] != 0 {
			at = (at + 1) & uint64(size-1)
		}
		x.table[at] = int32(i + 1)
	}
	return x
}

func (x *index) find(name []byte) int {
	if x.table == nil {
		for i := range x.list {
			if string(x.list[i].name) == string(name) {
				return i
			}
		}
		return -1
	}
	mask := uint64(len(x.table) - 1)
	for at := xxhash.Sum64(name) & mask; x.table[at] != 0; at = (at + 1) & mask {
		if i := int(x.table[at] - 1); string(x.list[i].name) == string(name) {
			return i
		}
	}
	return -1
}

func checkUnique(list []entry) error {
	x := indexOf(list)
	for i := range list {
		if x.find(list[i].name) != i {
			return fmt.Errorf("%w: field %q is changed twice", ErrMalformed, list[i].name)
		}
	}
	return nil
}
