package fold

// table finds a document's operation by hash. It uses open addressing with eight bytes a slot, as cache
// misses cost more than anything else done to an operation. The zero value is ready.
type table struct {
	slots []uint64 // 0 is free; else the lower half of the hash, then the position in ops, plus one
	used  int
}

const tableSlots = 16

func (t *table) find(hash uint64, ops []Op) (int, bool) {
	if t.used == 0 {
		return 0, false
	}
	mask := uint64(len(t.slots) - 1)
	for p := hash >> 32 & mask; t.slots[p] != 0; p = (p + 1) & mask {
		if s := t.slots[p]; uint32(s>>32) == uint32(hash) {
			if i := int(uint32(s)) - 1; ops[i].Hash == hash {
				return i, true
			}
		}
	}
	return 0, false
}

// add adds ops[i], whose hash is new. The table has all operations before it.
func (t *table) add(i int, ops []Op) {
	if 2*(t.used+1) > len(t.slots) {
		t.grow(ops[:i])
	}
	t.put(ops[i].Hash, i)
	t.used++
}

func (t *table) put(hash uint64, i int) {
	mask := uint64(len(t.slots) - 1)
	p := hash >> 32 & mask
	for t.slots[p] != 0 {
		p = (p + 1) & mask
	}
	t.slots[p] = hash<<32 | uint64(uint32(i+1))
}

// grow makes room for more than ops, which the table has.
func (t *table) grow(ops []Op) {
	n := max(2*len(t.slots), tableSlots)
	if cap(t.slots) < n {
		t.slots = make([]uint64, n)
	}
	t.slots = t.slots[:n]
	clear(t.slots)
	for i := range ops {
		t.put(ops[i].Hash, i)
	}
}

// reset empties the table. It halves an oversized one, as emptying costs as much as its size.
func (t *table) reset() {
	clear(t.slots)
	if 16*t.used < len(t.slots) && len(t.slots) > tableSlots {
		t.slots = t.slots[:len(t.slots)/2]
	}
	t.used = 0
}
