package spool

import (
	"fmt"
	"os"
)

// Reader reads records in order. It belongs to one goroutine; the spool may
// grow meanwhile.
type Reader struct {
	s      *Spool
	key    uint64 // records that end before it are passed over
	number uint64 // of the segment being read
	offset int64
	file   *os.File
}

// From returns a reader whose first record is the one that has key or, when
// none does, the next.
func (s *Spool) From(key uint64) *Reader { return &Reader{s: s, key: key} }

// Next returns the next record, false when there is none yet.
func (r *Reader) Next() (Record, bool, error) {
	for {
		end, ok, err := r.locate()
		if err != nil || !ok {
			return Record{}, false, err
		}
		rec, err := readRecord(r.file, r.offset, end)
		if err != nil {
			return Record{}, false, fmt.Errorf("%w: %s at byte %d: %w", ErrDamaged, r.s.path(r.number), r.offset, err)
		}
		r.offset += rec.size()
		if rec.Last >= r.key {
			return rec, true, nil
		}
	}
}

// locate opens the first segment with something left to read and reports how far
// it is written.
func (r *Reader) locate() (end int64, ok bool, err error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, g := range r.s.segments {
		read := g.number < r.number || g.number == r.number && r.offset == g.size
		if read || g.size == 0 || r.number == 0 && g.last < r.key {
			continue
		}
		if g.number != r.number {
			r.Close()
			r.number, r.offset = g.number, 0
		}
		if r.file == nil {
			if r.file, err = os.Open(r.s.path(g.number)); err != nil {
				return 0, false, fmt.Errorf("read spool: %w", err)
			}
		}
		return g.size, true, nil
	}
	return 0, false, nil
}

// Close releases the file.
func (r *Reader) Close() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}
