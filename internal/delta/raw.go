package delta

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// BSON type bytes of bsonspec.org, untyped: a byte to append as well as a bson.Type.
const (
	typeDouble     = 0x01
	typeString     = 0x02
	typeObject     = 0x03
	typeArray      = 0x04
	typeBool       = 0x08
	typeNull       = 0x0A
	typeCode       = 0x0D
	typeSymbol     = 0x0E
	typeCodeScope  = 0x0F
	typeInt32      = 0x10
	typeTimestamp  = 0x11
	typeInt64      = 0x12
	typeDecimal128 = 0x13
)

type field = bsonraw.Element

func openField(dst []byte, name string) ([]byte, int) {
	return bsonraw.OpenDocument(bsonraw.AppendHeader(dst, typeObject, name))
}

func closeOrDrop(dst []byte, start int, name string) []byte {
	if len(dst) == start+4 {
		return dst[:start-len(name)-2]
	}
	return bsonraw.CloseDocument(dst, start)
}

func appendValue(dst []byte, typ bson.Type, name, val []byte) []byte {
	return append(bsonraw.AppendHeader(dst, typ, name), val...)
}

// arrayIndex reads an array index. The server takes "01" for 1 (observed on 6.0.5).
func arrayIndex(s []byte) (int, bool) {
	n, err := strconv.ParseUint(string(s), 10, 64)
	return int(n), err == nil && n <= maxSize
}

func decimalName(dst []byte, idx int) []byte { return strconv.AppendInt(dst, int64(idx), 10) }

func putInt32(b []byte, n int) { binary.LittleEndian.PutUint32(b, uint32(n)) }

// inlineEntries is how many changes of one (sub)document need no allocation.
const inlineEntries = 16

type entry struct {
	name   []byte
	val    []byte
	lo, hi int32 // rankPaths: the range of dotted paths below this name
	typ    bson.Type
	op     uint8 // rank of the section, or rankPaths
	seen   bool  // the document has the field
}

// rankPaths marks an entry that stands for a group of dotted $v:1 paths.
const rankPaths = rankSub + 1

// diffEntries lists the changes of an object diff: sections d, u, i, s... in this order, none of
// the first three twice.
//
// Lists are passed and returned, never stored through a pointer, so that their inline space stays
// on the stack.
func diffEntries(list []entry, diff []byte) ([]entry, error) {
	b, ok := bsonraw.Body(diff)
	if !ok || len(b) == 0 {
		return nil, fmt.Errorf("%w: empty diff", ErrMalformed)
	}
	for rank := 0; len(b) > 0; {
		f, rest, ok := bsonraw.Next(b)
		if !ok {
			return nil, fmt.Errorf("%w: truncated diff", ErrMalformed)
		}
		r, err := sectionRank(f)
		if err != nil {
			return nil, err
		}
		if r < rank || r == rank && r != rankSub {
			return nil, fmt.Errorf("%w: section %q out of order", ErrMalformed, f.Name)
		}
		if rank, b = r, rest; r == rankSub {
			list = append(list, entry{name: f.Name[1:], val: f.Value, typ: f.Type, op: rankSub})
			continue
		}
		for g, ok := range bsonraw.Fields(f.Value) {
			if !ok {
				return nil, fmt.Errorf("%w: section %q", ErrMalformed, f.Name)
			}
			list = append(list, entry{name: g.Name, val: g.Value, typ: g.Type, op: uint8(r)})
		}
	}
	return list, nil
}

// index finds entries by name: linear while there are few, by hash beyond.
type index struct {
	list  []entry
	table []int32 // place in list + 1, at the hash of the name or after it
}

func indexOf(list []entry) index {
	if len(list) <= inlineEntries {
		return index{list: list}
	}
	size := 1
	for size < 2*len(list) {
		size *= 2
	}
	x := index{list: list, table: make([]int32, size)}
	for i := range list {
		at := xxhash.Sum64(list[i].name) & uint64(size-1)
		for x.table[at] != 0 {
			at = (at + 1) & uint64(size-1)
		}
		x.table[at] = int32(i + 1)
	}
	return x
}

func (x *index) find(name []byte) int {
	if x.table == nil {
		for i := range x.list {
			if string(x.list[i].name) == string(name) {
				return i
			}
		}
		return -1
	}
	mask := uint64(len(x.table) - 1)
	for at := xxhash.Sum64(name) & mask; x.table[at] != 0; at = (at + 1) & mask {
		if i := int(x.table[at] - 1); string(x.list[i].name) == string(name) {
			return i
		}
	}
	return -1
}

func checkUnique(list []entry) error {
	x := indexOf(list)
	for i := range list {
		if x.find(list[i].name) != i {
			return fmt.Errorf("%w: field %q is changed twice", ErrMalformed, list[i].name)
		}
	}
	return nil
}

// AppendTimestampRepair appends an update, as an oplog `o` document, that restores the empty
// timestamps of doc, Timestamp(0, 0), after a complete write. Without any, ok is false and dst is
// unchanged.
//
// On insert, replacement, and applyOps of both, servers (4.4.2 and 6.0.5) replace them by their clock
// in top-level fields other than _id. They keep them in $set, pipelines and diffs.
func AppendTimestampRepair(dst []byte, doc bson.Raw) (out []byte, d Delta, ok bool) {
	if !MayHoldEmptyTimestamp(doc) {
		return dst, Delta{}, false
	}
	start := len(dst)
	dst, at := openDiff(dst)
	dst, diffAt := bsonraw.OpenDocument(dst)
	dst, section := openField(dst, "u")
	for f, valid := range bsonraw.Fields(doc) {
		if !valid {
			return dst[:start], Delta{}, false
		}
		if f.Type == typeTimestamp && string(f.Value) == "\x00\x00\x00\x00\x00\x00\x00\x00" && string(f.Name) != "_id" {
			dst = append(dst, f.Raw...)
		}
	}
	if len(dst) == section+4 {
		return dst[:start], Delta{}, false
	}
	dst = bsonraw.CloseDocument(bsonraw.CloseDocument(bsonraw.CloseDocument(dst, section), diffAt), at)
	return dst, diffDelta(dst[start:]), true
}

// MayHoldEmptyTimestamp reports whether AppendTimestampRepair has to look at a document: nearly
// none has as many zeros in a row. The search costs a small part of walking the fields while the
// document is in the processor's caches.
func MayHoldEmptyTimestamp(doc bson.Raw) bool { return holdsZeros(doc, 9) }

// holdsZeros reports n zero bytes in a row, by looking at every n-th byte.
func holdsZeros(b []byte, n int) bool {
	for i := n - 1; i < len(b); i += n {
		if b[i] != 0 {
			continue
		}
		from, to := i, i+1
		for from > 0 && b[from-1] == 0 {
			from--
		}
		for to < len(b) && b[to] == 0 {
			to++
		}
		if to-from >= n {
			return true
		}
	}
	return false
}
