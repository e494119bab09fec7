package seed

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Only a directory of ours whose owner is dead is swept.
func TestScratchOfTheDeadIsSwept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	there := func(dir string) bool { _, err := os.Lstat(dir); return err == nil }
	alive, err := newScratch()
	must(t, err)
	dead, err := newScratch()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dead.dir, "log"), []byte("x"), 0o600))
	must(t, dead.owner.Close()) // as a process's end does
	foreign := filepath.Join(os.TempDir(), scratchPrefix+"foreign")
	must(t, os.Mkdir(foreign, 0o700))
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, ownerFile), nil, 0o600))
	link := filepath.Join(os.TempDir(), scratchPrefix+"link")
	must(t, os.Symlink(outside, link))
	next, err := newScratch()
	must(t, err)
	if there(dead.dir) {
		t.Error("what a dead process left is still there")
	}
	for _, dir := range []string{alive.dir, foreign, link, filepath.Join(outside, ownerFile), next.dir} {
		if !there(dir) {
			t.Errorf("%s was removed", dir)
		}
	}
	for _, s := range []*scratch{alive, next} {
		must(t, s.remove())
		if there(s.dir) {
			t.Errorf("%s is still there", s.dir)
		}
	}
}

// A spool has no name, so that nothing is left of it after a kill.
func TestSpoolHasNoName(t *testing.T) {
	dir := t.TempDir()
	s, err := newSpool(dir, "x")
	must(t, err)
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) > 0 {
		t.Errorf("%v", entries)
	}
	block := []byte("a block")
	must(t, s.add("a.wt", 3, sumOf(block), block))
	buf := make([]byte, smallestBlock)
	n, ok, err := s.read("a.wt", 3, sumOf(block), buf)
	if err != nil || !ok || string(buf[:n]) != string(block) || s.has("a.wt", 3, 1) ||
		!s.has("a.wt", 3, sumOf(block)) {
		t.Errorf("%q, %v, %v", buf[:n], ok, err)
	}
	must(t, s.remove())
}

// What is held in memory and what does not fit there are read alike.
func TestSpoolHoldsInMemory(t *testing.T) {
	s, err := newSpool(t.TempDir(), "x")
	must(t, err)
	defer s.remove()
	block := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 1000+i*5) }
	add := func(i int) { must(t, s.add("a.wt", int64(i), sumOf(block(i)), block(i))) }
	add(0)
	s.buffer()
	s.memory = s.memory[:100_000]
	const n = 60
	var g errgroup.Group
	for i := 1; i < n; i++ {
		g.Go(func() error { return s.add("a.wt", int64(i), sumOf(block(i)), block(i)) })
	}
	must(t, g.Wait())
	if s.to <= s.from || s.end < 130_000 {
		t.Errorf("held from %d to %d of %d", s.from, s.to, s.end)
	}
	must(t, s.flush())
	add(n)
	buf := make([]byte, smallestBlock)
	for i := range n + 1 {
		got, ok, err := s.read("a.wt", int64(i), sumOf(block(i)), buf)
		if err != nil || !ok || !bytes.Equal(buf[:got], block(i)) {
			t.Errorf("block %d: %d bytes, %v, %v", i, got, ok, err)
		}
	}
}
