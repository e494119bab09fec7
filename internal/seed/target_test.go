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
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	buffers := &sync.Pool{New: func() any {
		b := directBuffer(BlockSize)
		return &b
	}}
	block := func(index int64) Block {
		data := bytes.Repeat([]byte{byte(index + 1)}, BlockSize)
		return Block{Index: index, Sum: sumOf(data), Data: data}
	}
	f := &targetFile{root: root, name: "a.wt", buffers: buffers}
	must(t, f.write(block(20))) // another worker's range comes first
	have, err := f.sums(0, rangeBlocks)
	must(t, err)
	if !slices.Equal(have, make([]Sum, rangeBlocks)) {
		t.Error("blocks that nobody has written yet were summed up")
	}
	for i := range int64(3) {
		must(t, f.write(block(i)))
	}
	must(t, f.close())

	f = &targetFile{root: root, name: "a.wt", buffers: buffers}
	have, err = f.sums(0, 4)
	must(t, err)
	if want := []Sum{block(0).Sum, block(1).Sum, block(2).Sum, sumOf(make([]byte, BlockSize))}; !slices.Equal(have, want) {
		t.Errorf("of an earlier run: %v, want %v", have, want)
	}
	must(t, f.close())
}
