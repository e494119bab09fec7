package spool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/workshop/lab"
)

// fullDisk makes a spool in small segments on a disk that then has no room. A
// record that is large is half written when it is refused.
func fullDisk(t *testing.T) (s *Spool, d *lab.Disk, dir string) {
	t.Helper()
	d, end, err := lab.NewDisk(t.TempDir(), 8)
	if errors.Is(err, lab.ErrNoDisk) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end() })
	dir = filepath.Join(d.Path(), "spool")
	s = open(t, dir, Options{SegmentBytes: 100_000})
	fill(t, s, 1, 3, 10_000)
	// Room for one more page, which the refused record takes.
	if err := os.WriteFile(filepath.Join(d.Path(), "page"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(d.Path(), "page")); err != nil {
		t.Fatal(err)
	}
	return s, d, dir
}

// TestFullDisk: what a refused record left behind is in nobody's way, whatever
// is written next, and whether or not the process ends in between.
func TestFullDisk(t *testing.T) {
	refused := Record{First: 7, Last: 8, Payload: make([]byte, 60_000)}
	for name, next := range map[string]int{"a shorter record": 100, "the same size": 60_000,
		"one for the next segment": 90_000} {
		t.Run(name, func(t *testing.T) {
			s, d, dir := fullDisk(t)
			for range 2 {
				if err := s.Append(refused); !errors.Is(err, ErrNoSpace) {
					t.Fatalf("a full disk: %v", err)
				}
			}
			if got := keys(t, s.From(0)); !slices.Equal(got, []uint64{1, 3, 5}) {
				t.Errorf("while the disk is full: %v", got)
			}
			if err := d.Free(); err != nil {
				t.Fatal(err)
			}
			fill(t, s, 7, 1, next)
			fill(t, s, 9, 5, 80_000) // closes the segment
			want := []uint64{1, 3, 5, 7, 9, 11, 13, 15, 17}
			if got := keys(t, s.From(0)); !slices.Equal(got, want) {
				t.Errorf("before a restart: %v", got)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := keys(t, open(t, dir, Options{}).From(0)); !slices.Equal(got, want) {
				t.Errorf("after a restart: %v", got)
			}
		})
	}
}

// TestFullDiskAndKilled: the process ends before it can cut off what the refused
// record left.
func TestFullDiskAndKilled(t *testing.T) {
	s, d, dir := fullDisk(t)
	g := s.segments[0]
	if err := writeRecord(s.file, g.size, Record{First: 7, Last: 8, Payload: make([]byte, 60_000)}); err == nil {
		t.Fatal("the disk is not full")
	}
	if info, err := os.Stat(s.path(1)); err != nil || info.Size() <= g.size {
		t.Fatalf("nothing is torn: %v, %v", info, err)
	}
	if err := errors.Join(s.unlock(), d.Free()); err != nil { // as a kill does
		t.Fatal(err)
	}
	s = open(t, dir, Options{SegmentBytes: 100_000})
	fill(t, s, 7, 1, 100)
	fill(t, s, 9, 5, 80_000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, open(t, dir, Options{}).From(0)); !slices.Equal(got, []uint64{1, 3, 5, 7, 9, 11, 13, 15, 17}) {
		t.Errorf("%v", got)
	}
}

// TestMissingSegments: a segment that is not there, or has nothing in it, is
// damage, for the others do not follow each other.
func TestMissingSegments(t *testing.T) {
	for name, lose := range map[string]func(string) error{
		"removed": os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"cut":     func(path string) error { return os.Truncate(path, 150) },
	} {
		dir := t.TempDir()
		s := open(t, dir, Options{SegmentBytes: 200})
		fill(t, s, 1, 10, 68)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := lose(filepath.Join(dir, "0000000000000002"+suffix)); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(dir, Options{}); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: opened: %v", name, err)
			if err == nil {
				_ = s.Close()
			}
		}
	}
}
