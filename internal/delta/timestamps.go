package delta

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

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
