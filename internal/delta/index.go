package delta

import "fmt"

// inlineEntries is how many changes of one (sub)document need no allocation.
const inlineEntries = 16

// entry is one field that an update changes in one (sub)document.
type entry struct {
	name   []byte
	val    []byte
	typ    byte
	op     uint8 // rank of the section, or rankPaths
	seen   bool  // the document has the field
	lo, hi int   // rankPaths: the range of dotted paths below this name
}

// rankPaths marks an entry that stands for a group of dotted $v:1 paths.
const rankPaths = rankSub + 1

// index finds entries by name: linear while there are few, by map beyond.
type index struct {
	list   []entry
	lookup map[string]int
}

// addSection adds the fields of one section of an object diff.
func (x *index) addSection(f field, rank int) error {
	if rank == rankSub {
		x.list = append(x.list, entry{name: f.name[1:], val: f.val, typ: f.typ, op: rankSub})
		return nil
	}
	b, ok := body(f.val)
	if !ok {
		return fmt.Errorf("%w: section %q", ErrMalformed, f.name)
	}
	for len(b) > 0 {
		g, rest, ok := next(b)
		if !ok {
			return fmt.Errorf("%w: section %q", ErrMalformed, f.name)
		}
		x.list = append(x.list, entry{name: g.name, val: g.val, typ: g.typ, op: uint8(rank)})
		b = rest
	}
	return nil
}

// load fills the index from a checked object diff.
func (x *index) load(diff []byte) error {
	b, ok := body(diff)
	if !ok {
		return fmt.Errorf("%w: diff", ErrMalformed)
	}
	for len(b) > 0 {
		f, rest, ok := next(b)
		if !ok {
			return fmt.Errorf("%w: diff", ErrMalformed)
		}
		rank, err := sectionRank(f)
		if err != nil {
			return err
		}
		if err := x.addSection(f, rank); err != nil {
			return err
		}
		b = rest
	}
	x.seal()
	return nil
}

// seal builds the map of a large index; call it once the list is complete.
func (x *index) seal() {
	if len(x.list) <= inlineEntries {
		return
	}
	x.lookup = make(map[string]int, len(x.list))
	for i := range x.list {
		x.lookup[string(x.list[i].name)] = i
	}
}

// find returns the entry of a name, or nil.
func (x *index) find(name []byte) *entry {
	if x.lookup != nil {
		if i, ok := x.lookup[string(name)]; ok {
			return &x.list[i]
		}
		return nil
	}
	for i := range x.list {
		if string(x.list[i].name) == string(name) {
			return &x.list[i]
		}
	}
	return nil
}

// checkUnique refuses a field that is changed twice.
func (x *index) checkUnique() error {
	x.seal()
	if x.lookup != nil {
		if len(x.lookup) != len(x.list) {
			return fmt.Errorf("%w: a field is changed twice", ErrMalformed)
		}
		return nil
	}
	for i := range x.list {
		for j := range i {
			if string(x.list[i].name) == string(x.list[j].name) {
				return fmt.Errorf("%w: field %q is changed twice", ErrMalformed, x.list[i].name)
			}
		}
	}
	return nil
}
