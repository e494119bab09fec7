package bench

import (
	"iter"
	"math"
	"math/rand/v2"
)

type opKind uint8

const (
	opInsert opKind = iota + 1
	opUpdate        // sets one field
	opDelete
)

// op is one operation of a backlog. Its number, from 1, is the version that
// an update gives its field.
type op struct {
	kind  opKind
	field uint8
	key   uint32
	n     uint32
}

// workload is a sequence of operations, the same each time. A key is never
// inserted again after its delete.
type workload struct {
	shape       *shape
	collections int
	operations  int
	inserts     float64 // share of inserts
	deletes     float64 // share of deletes, always the oldest document
	hot         int     // not 0: only so many documents, inserted first, updated evenly
}

// describe tells the mix.
func (w workload) describe() string {
	if w.hot > 0 {
		return itoa(w.operations) + " operations: updates of one field, evenly on " + itoa(w.hot) + " documents that are inserted first"
	}
	updates := 1 - w.inserts - w.deletes
	text := itoa(w.operations) + " operations: " + percent(w.inserts) + " inserts, " + percent(updates) + " updates of one field, "
	if w.deletes > 0 {
		text += "evenly, " + percent(w.deletes) + " deletes of the oldest"
	} else {
		text += "zipfian 0.99 (scrambled)"
	}
	return text + "; plain writes without sessions"
}

// ops yields the operations in order.
func (w workload) ops() iter.Seq[op] {
	return func(yield func(op) bool) {
		r := rand.New(rand.NewPCG(7, 11))
		var inserted, deleted uint32
		for n := uint32(1); n <= uint32(w.operations); n++ {
			o := op{kind: opUpdate, n: n}
			dice := r.Float64()
			alive := inserted - deleted
			switch {
			case w.hot > 0 && inserted < uint32(w.hot), w.hot == 0 && (dice < w.inserts || alive < 2):
				o.kind, o.key = opInsert, inserted
				inserted++
			case w.hot == 0 && dice < w.inserts+w.deletes:
				o.kind, o.key = opDelete, deleted
				deleted++
			case w.hot > 0:
				o.key = r.Uint32N(inserted)
			case w.deletes > 0:
				o.key = deleted + r.Uint32N(alive)
			default:
				o.key = w.scramble(zipf(r.Float64(), alive), inserted)
			}
			if o.kind == opUpdate {
				o.field = uint8(r.IntN(w.shape.fields))
			}
			if !yield(o) {
				return
			}
		}
	}
}

// scramble spreads popular documents over all that will be inserted. A rank
// keeps its document, but for the beginning, when that may not be there yet.
func (w workload) scramble(rank uint64, inserted uint32) uint32 {
	all := uint64(float64(w.operations)*w.inserts) + 1
	for try := range uint64(8) {
		if key := mix(rank+try<<32) % all; key < uint64(inserted) {
			return uint32(key)
		}
	}
	return uint32(rank % uint64(inserted))
}

// zipf gives rank 0 to n-1 for an even random u: the continuous form of the
// zipfian distribution with exponent 0.99, whose n may grow at no cost.
func zipf(u float64, n uint32) uint64 {
	const rest = 1 - 0.99
	x := math.Pow(u*(math.Pow(float64(n)+1, rest)-1)+1, 1/rest)
	return min(uint64(x)-1, uint64(n)-1)
}
