package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
)

// Two shards may have different documents of one _id, under different shard keys. All
// documents of one _id are compared as one: their bytes one after the other, sorted.

// together adds a document to those of its _id.
func together(have, doc []byte) []byte {
	all := append(apart(have), doc)
	slices.SortFunc(all, bytes.Compare)
	return slices.Concat(all...)
}

// apart are the documents that were joined.
func apart(docs []byte) (all [][]byte) {
	for len(docs) >= 4 {
		n := int(binary.LittleEndian.Uint32(docs))
		if n < 5 || n > len(docs) {
			break
		}
		all = append(all, docs[:n:n])
		docs = docs[n:]
	}
	return all
}

// several reports that a side may have several documents of one _id.
func (e *Engine) several() bool {
	return e.clusters[source].Info.Kind == mongo.KindSharded || e.clusters[target].Info.Kind == mongo.KindSharded
}

// doubts are _ids of documents that do not match as they came, because a stream may have
// paired one of several with another.
type doubts struct {
	keys []string
	size int // of the documents, at most
}

// doubt has documents be looked at by their _id.
func (j *join) doubt(ctx context.Context, key string, size int) error {
	if j.e.o.Online {
		return j.mismatch(ctx, key, size)
	}
	j.doubts.keys = append(j.doubts.keys, key)
	if j.doubts.size += size; j.doubts.size < j.e.limits.batch && len(j.doubts.keys) < 1000 {
		return nil
	}
	return j.settle(ctx)
}

// settle decides the doubts.
func (j *join) settle(ctx context.Context) error {
	keys := j.doubts.keys
	j.doubts = doubts{}
	if len(keys) == 0 {
		return nil
	}
	return j.pairs(ctx, keys, func(_ int, a, b []byte) error { return j.found(ctx, a, b) })
}
