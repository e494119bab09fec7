package seed

import (
	"bytes"
	"os"
	"slices"
	"sync"
	"testing"
)

// What this run writes is not read to know its checksums; what an earlier one
// left is.
func TestSumsOfWhatIsThere(t *testing.T) {
	const size = int64(smallestBlock)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	buffers := &sync.Pool{New: func() any {
		b := directBuffer(stretchBytes)
		return &b
	}}
	block := func(index int64) Block {
		data := bytes.Repeat([]byte{byte(index + 1)}, int(size))
		return Block{Index: index, Sum: sumOf(data), Data: data}
	}
	f := &targetFile{root: root, name: "a.wt", block: size, buffers: buffers}
	write := func(index int64) {
		s := stretch{f: f}
		must(t, s.add(block(index)))
		must(t, s.end())
	}
	write(20) // another worker's range comes first
	have, err := f.sums(0, 16)
	must(t, err)
	if !slices.Equal(have, make([]Sum, 16)) {
		t.Error("blocks that nobody has written yet were summed up")
	}
	for i := range int64(3) {
		write(i)
	}
	must(t, f.close())

	f = &targetFile{root: root, name: "a.wt", block: size, buffers: buffers}
	have, err = f.sums(0, 4)
	must(t, err)
	if want := []Sum{block(0).Sum, block(1).Sum, block(2).Sum, sumOf(make([]byte, size))}; !slices.Equal(have, want) {
		t.Errorf("of an earlier run: %v, want %v", have, want)
	}
	must(t, f.close())
}
