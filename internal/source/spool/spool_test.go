package spool

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/test/testseed"
)

func open(t *testing.T, dir string, o Options) *Spool {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// fill appends records of two keys each, from key on.
func fill(t *testing.T, s *Spool, key, n uint64, size int) {
	t.Helper()
	for i := range n {
		first := key + 2*i
		if err := s.Append(Record{First: first, Last: first + 1,
			Payload: bytes.Repeat([]byte{byte(first)}, size)}); err != nil {
			t.Fatal(err)
		}
	}
}

// keys reads what the reader gives now.
func keys(t *testing.T, r *Reader) (out []uint64) {
	t.Helper()
	for {
		rec, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return out
		}
		if len(rec.Payload) > 0 && rec.Payload[0] != byte(rec.First) {
			t.Fatalf("record %d has the payload of another", rec.First)
		}
		out = append(out, rec.First)
	}
}

func TestReadsFromAnyKey(t *testing.T) {
	s := open(t, t.TempDir(), Options{SegmentBytes: 200})
	fill(t, s, 10, 20, 50) // 10, 12 … 48 in several segments
	for _, c := range []struct{ from, first uint64 }{{0, 10}, {10, 10}, {11, 10}, {12, 12}, {33, 32}, {49, 48}} {
		r := s.From(c.from)
		if got := keys(t, r); got[0] != c.first || got[len(got)-1] != 48 {
			t.Errorf("from %d: %v", c.from, got)
		}
		r.Close()
	}
	r := s.From(50)
	if got := keys(t, r); len(got) != 0 {
		t.Errorf("behind the end: %v", got)
	}
	fill(t, s, 50, 3, 50)
	if got := keys(t, r); !slices.Equal(got, []uint64{50, 52, 54}) {
		t.Errorf("what came later: %v", got)
	}
	r.Close()
}

func TestBoundsAndTrim(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{MaxBytes: 1000, SegmentBytes: 200})
	if _, _, ok := s.Bounds(); ok {
		t.Error("an empty spool has bounds")
	}
	fill(t, s, 1, 10, 68) // 100 bytes each
	if err := s.Append(Record{First: 100, Last: 100}); !errors.Is(err, ErrFull) || s.Room(0) {
		t.Errorf("a full spool took a record: %v", err)
	}
	if err := s.Trim(6); err != nil { // segments end at 4, 8 …
		t.Fatal(err)
	}
	if first, last, ok := s.Bounds(); first != 5 || last != 20 || !ok || s.Bytes() != 800 {
		t.Errorf("%d to %d, %d bytes", first, last, s.Bytes())
	}
	if err := s.Append(Record{First: 20, Last: 21}); err == nil {
		t.Error("keys went back")
	}
	fill(t, s, 21, 2, 68)
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// TestCrash cuts a spool's newest segment anywhere: what was whole is there,
// and it goes on.
func TestCrash(t *testing.T) { testseed.Each(t, crash) }

func crash(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		dir := t.TempDir()
		s := open(t, dir, Options{SegmentBytes: 500})
		fill(t, s, 1, 20, 30+rnd.IntN(60))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		newest := s.path(s.segments[len(s.segments)-1].number)
		info, err := os.Stat(newest)
		if err != nil {
			t.Fatal(err)
		}
		cut := rnd.Int64N(info.Size())
		if err := os.Truncate(newest, cut); err != nil {
			t.Fatal(err)
		}
		whole := cut / (info.Size() / records(s))
		again := open(t, dir, Options{SegmentBytes: 500})
		want := 20 - records(s) + whole
		_, last, _ := again.Bounds()
		if got := keys(t, again.From(0)); int64(len(got)) != want || last != uint64(2*want) {
			t.Fatalf("cut at %d of %d: %d records to %d, want %d", cut, info.Size(), len(got), last, want)
		}
		fill(t, again, last+1, 3, 10)
		if got := keys(t, again.From(0)); int64(len(got)) != want+3 {
			t.Fatalf("%d records after going on, want %d", len(got), want+3)
		}
	}
}

// records counts those of the newest segment.
func records(s *Spool) int64 {
	g := s.segments[len(s.segments)-1]
	return int64(g.last-g.first+1) / 2
}

func TestDamageIsTold(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{SegmentBytes: 200})
	fill(t, s, 1, 10, 68)
	path := filepath.Join(dir, "0000000000000002"+suffix)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[150] ^= 1
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.From(0)
	defer r.Close()
	for err = nil; err == nil; {
		_, _, err = r.Next()
	}
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("read: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("opened: %v", err)
	}
}

func TestOwnerAndLock(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{Owner: "a"})
	fill(t, s, 1, 3, 10)
	if _, err := Open(dir, Options{Owner: "a"}); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{Owner: "a"})
	if got := keys(t, s.From(0)); len(got) != 3 {
		t.Errorf("after closing: %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{Owner: "b"})
	if got := keys(t, s.From(0)); len(got) != 0 {
		t.Errorf("another owner's: %v", got)
	}
}

func FuzzOpen(f *testing.F) {
	var b bytes.Buffer
	for i := range uint64(3) {
		r := Record{First: i * 2, Last: i*2 + 1, Payload: []byte("payload")}
		var head [headerSize]byte
		r.header(&head)
		b.Write(head[:])
		b.Write(r.Payload)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:50])
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, ownerFile), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "0000000000000001"+suffix), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, Options{})
		if err != nil {
			return
		}
		defer s.Close()
		r := s.From(0)
		defer r.Close()
		for {
			if _, ok, err := r.Next(); err != nil || !ok {
				return
			}
		}
	})
}
