package origin

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// namesake makes the changes of a name's collections: users create, change, drop and rename them, and movePrimary moves
// them.
type namesake struct {
	*rand.Rand
	n       byte
	holder  byte // of the name, 0 for none
	changes []stream.Change
	moved   map[byte]byte // from a collection to its copy
	gone    map[byte]bool // by users, from the name
}

func idOf(n byte) (id [16]byte) {
	id[0] = n
	return id
}

func (x *namesake) log(kind stream.ChangeKind, ns, to string, of, replaced byte) {
	ch := stream.Change{Kind: kind, NS: ns, To: to, UUID: binaryOf(idOf(of))}
	if replaced != 0 {
		ch.Replaced = binaryOf(idOf(replaced))
	}
	x.changes = append(x.changes, ch)
}

func (x *namesake) step() {
	was := x.holder
	switch n := x.IntN(7); {
	case was == 0 && n < 4:
		x.n++
		x.holder = x.n
		x.log(stream.ChangeCreate, "d.c", "", x.n, 0)
	case was != 0 && n < 3:
		x.n++
		x.holder, x.moved[was] = x.n, x.n
		x.log(stream.ChangeCreate, "d.c", "", x.n, 0)
		if x.IntN(2) == 0 {
			x.log(stream.ChangeCreateIndexes, "d.c", "", x.n, 0)
		}
		x.log(stream.ChangeDrop, "d.c", "", was, 0)
	case was != 0 && n == 3:
		x.holder, x.gone[was] = 0, true
		for range 1 + x.IntN(3) { // each shard with a part of it
			x.log(stream.ChangeDrop, "d.c", "", was, 0)
		}
	case was != 0 && n == 4:
		x.holder = 0
		x.log(stream.ChangeRename, "d.c", "d.other", was, 0)
	case was != 0 && n == 5:
		kinds := []stream.ChangeKind{stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod}
		x.log(kinds[x.IntN(len(kinds))], "d.c", "", was, 0)
	default:
		x.n++
		x.holder, x.gone[was] = x.n, was != 0
		x.log(stream.ChangeRename, "d.another", "d.c", x.n, was)
	}
}

// TestFollow: of every collection that is dropped it is known whether it was moved, and which collection it is in the
// end, whatever happens to its name later.
func TestFollow(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	for range 2000 {
		x := &namesake{Rand: r, moved: map[byte]byte{}, gone: map[byte]bool{}}
		for range 1 + r.IntN(20) {
			x.step()
		}
		var listed [][16]byte
		if x.holder != 0 {
			listed = append(listed, idOf(x.holder))
		}
		for i, ch := range x.changes {
			if ch.Kind != stream.ChangeDrop {
				continue
			}
			of := ch.UUID.Data[0]
			var want, last byte
			if want = x.moved[of]; want != 0 {
				for last = want; x.moved[last] != 0; {
					last = x.moved[last]
				}
				if x.gone[last] {
					last = 0
				}
			}
			first := i
			for want != 0 && x.changes[first].Kind != stream.ChangeCreate { // the copy was made right before
				first--
			}
			for from := first; from <= i; from++ {
				id := idOf(of)
				f := fate{ns: "d.c", latest: &id}
				f.follow(pastsOf(x.changes[from:]), listed)
				var next *[16]byte
				if n := len(f.copies); n > 0 {
					next = &f.copies[n-1]
				}
				if number(next) != want || number(f.latest) != last {
					t.Fatalf("change %d of %+v, from %d on: %d, %d, want %d, %d", i, x.changes, from, number(next),
						number(f.latest), want, last)
				}
			}
		}
	}
}

func number(id *[16]byte) byte {
	if id == nil {
		return 0
	}
	return id[0]
}
