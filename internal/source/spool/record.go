package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
)

// Record is a payload and the keys of the first and the last entry in it. Keys
// grow from record to record.
type Record struct {
	First, Last uint64
	Payload     []byte
}

const (
	headerSize = 32
	// maxPayload is far above what a reply of the server may bring, and bounds
	// what a damaged header can ask for.
	maxPayload = 64 << 20
)

var errTorn = errors.New("record is not complete")

func (r Record) size() int64 { return headerSize + int64(len(r.Payload)) }

// header lays the record's header out in b.
func (r Record) header(b *[headerSize]byte) {
	binary.LittleEndian.PutUint64(b[0:], uint64(len(r.Payload)))
	binary.LittleEndian.PutUint64(b[8:], r.First)
	binary.LittleEndian.PutUint64(b[16:], r.Last)
	binary.LittleEndian.PutUint64(b[24:], checksum(b[:24], r.Payload))
}

// writeRecord writes a record at offset.
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

// readRecord reads the record at offset of a segment that ends at end: errTorn
// where no complete record is.
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
