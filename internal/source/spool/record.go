package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cespare/xxhash/v2"
)

// Record is a payload with the keys of its first and last entry. Keys grow from record to record.
type Record struct {
	First, Last uint64
	Payload     []byte
}

const (
	headerSize = 32
	// maxPayload exceeds any reply of a server, and bounds what a damaged header requests.
	maxPayload = 64 << 20
)

var errTorn = errors.New("record is not complete")

func (r Record) size() int64 { return headerSize + int64(len(r.Payload)) }

func (r Record) header(b *[headerSize]byte) {
	binary.LittleEndian.PutUint64(b[0:], uint64(len(r.Payload)))
	binary.LittleEndian.PutUint64(b[8:], r.First)
	binary.LittleEndian.PutUint64(b[16:], r.Last)
	binary.LittleEndian.PutUint64(b[24:], checksum(b[:24], r.Payload))
}

func writeRecord(f io.WriterAt, offset int64, r Record) error {
	var head [headerSize]byte
	r.header(&head)
	if _, err := f.WriteAt(head[:], offset); err != nil {
		return err
	}
	_, err := f.WriteAt(r.Payload, offset+headerSize)
	return err
}

func checksum(head, payload []byte) uint64 {
	d := xxhash.New()
	_, _ = d.Write(head)
	_, _ = d.Write(payload)
	return d.Sum64()
}

// readRecord reads the record at offset of a segment that ends at end; errTorn if it is incomplete.
func readRecord(f io.ReaderAt, offset, end int64) (Record, error) {
	var head [headerSize]byte
	if end-offset < headerSize {
		return Record{}, errTorn
	}
	if _, err := f.ReadAt(head[:], offset); err != nil {
		return Record{}, err
	}
	n := binary.LittleEndian.Uint64(head[0:])
	if n > maxPayload || int64(n) > end-offset-headerSize {
		return Record{}, errTorn
	}
	r := Record{
		First: binary.LittleEndian.Uint64(head[8:]), Last: binary.LittleEndian.Uint64(head[16:]),
		Payload: make([]byte, n),
	}
	if _, err := f.ReadAt(r.Payload, offset+headerSize); err != nil {
		return Record{}, err
	}
	if checksum(head[:24], r.Payload) != binary.LittleEndian.Uint64(head[24:]) || r.Last < r.First {
		return Record{}, fmt.Errorf("%w: its checksum is another", errTorn)
	}
	return r, nil
}

// Reader reads records in order. It belongs to one goroutine; the spool may grow.
type Reader struct {
	s      *Spool
	key    uint64 // records that end before it are passed over
	number uint64 // of the segment being read
	offset int64
	file   *os.File
}

// From returns a reader that starts at the record with key, or at the next one.
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

// locate opens the first segment with unread records and returns its written size.
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
