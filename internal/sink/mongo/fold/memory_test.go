package fold

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/test/testseed"
)

// TestTable: what is found is what a map finds, over growth and reset, with
// hashes that share a slot or a tag.
func TestTable(t *testing.T) { testseed.Each(t, tables) }

func tables(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	hashes := []func() uint64{
		r.Uint64,
		func() uint64 { return uint64(r.Uint32()) },       // one slot for all
		func() uint64 { return uint64(r.Uint32()) << 32 }, // one tag for all
		func() uint64 { return uint64(r.IntN(50)) },
	}
	var x table
	for round := range 60 {
		hash := hashes[round%len(hashes)]
		want := map[uint64]int{}
		var ops []Op
		for range r.IntN([]int{10, 300, 3000}[r.IntN(3)]) {
			h := hash()
			i, seen := want[h]
			if got, found := x.find(h, ops); found != seen || found && got != i {
				t.Fatalf("round %d: hash %x at %d (%v), want %d (%v)", round, h, got, found, i, seen)
			}
			if !seen {
				want[h] = len(ops)
				ops = append(ops, Op{Hash: h})
				x.add(len(ops)-1, ops)
			}
		}
		for h, i := range want {
			if got, found := x.find(h, ops); !found || got != i {
				t.Fatalf("round %d: hash %x at %d (%v), want %d", round, h, got, found, i)
			}
		}
		x.reset()
	}
	for range 20 {
		x.reset()
	}
	if len(x.slots) > tableSlots {
		t.Errorf("%d slots are kept for nothing", len(x.slots))
	}
}

// TestMemory: what was given out stays as it is until it is given back, and what
// is given back is used again.
func TestMemory(t *testing.T) {
	for c := range classes {
		if n := classSize(c); class(n) != c || class(n+1) != c+1 {
			t.Errorf("class %d has %d bytes, which are of class %d, one more of %d", c, n, class(n), class(n+1))
		}
	}
	if classSize(classes-1) != maxPart {
		t.Errorf("the largest class has %d bytes, not %d", classSize(classes-1), maxPart)
	}
	testseed.Each(t, memories)
}

func memories(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	var m memory
	for round := range 5 {
		parts := make([][]byte, 400)
		for i := range parts {
			parts[i] = m.copy(bytes.Repeat([]byte{byte(i)}, r.IntN(200)))
		}
		for range 20_000 {
			i := r.IntN(len(parts))
			n := r.IntN(400)
			if r.IntN(100) == 0 {
				n = r.IntN(2 * maxPart)
			}
			parts[i] = m.place(parts[i], bytes.Repeat([]byte{byte(i)}, n))
			if len(parts[i]) != n {
				t.Fatalf("round %d: %d bytes, want %d", round, len(parts[i]), n)
			}
		}
		for i, b := range parts {
			if bytes.Count(b, []byte{byte(i)}) != len(b) {
				t.Fatalf("round %d: part %d was written over", round, i)
			}
		}
		// Some 400 parts of at most 16 KB are in use at a time.
		if n := len(m.pieces) * pieceBytes; n > 400*2*maxPart {
			t.Errorf("round %d: %d bytes in pieces", round, n)
		}
		m.reset()
	}
	m.trim()
	if len(m.pieces) != 1 || cap(m.take(100, nil)) < 100 {
		t.Errorf("%d pieces are kept", len(m.pieces))
	}
}
