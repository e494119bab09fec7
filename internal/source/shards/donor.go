package shards

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
)

// dropDonorDeletes finds documents that are gone because the donor deleted them. The stream has emitted
// that delete, and maybe later events of another document with that _id.
func (f *ownerFilter) dropDonorDeletes(ctx context.Context, all []*orphanWrite, r *replay, at bson.Timestamp) error {
	onDonor := &replay{docs: map[string]*docState{}, key: r.key, migration: r.migration}
	var gone []*orphanWrite
	for _, w := range all {
		if d := r.docs[w.id.String()]; d.donated != nil && d.present == nil && d.known {
			gone = append(gone, w)
			onDonor.docs[w.id.String()] = &docState{donated: d.donated, present: d.donated}
		}
	}
	donor := f.shards[r.migration.From]
	if len(gone) == 0 || donor == nil {
		return nil
	}
	exists := bson.D{{Key: "$exists", Value: true}}
	filter := bson.D{between(r.migration.Start, at), {Key: "$or", Value: bson.A{
		writesTo(gone), bson.D{{Key: "op", Value: "c"}, {Key: "o.applyOps", Value: exists}},
		bson.D{{Key: "op", Value: "c"}, {Key: "o.commitTransaction", Value: exists}},
	}}}
	err := ownership.EachEntry(ctx, donor, filter, at, func(e bson.Raw) error {
		ops, err := committedOps(ctx, donor, e)
		for _, one := range ops {
			onDonor.applyDonor(one)
		}
		return err
	})
	for id, d := range onDonor.docs {
		if d.present == nil {
			r.docs[id].donated = nil
		}
	}
	return mongo.Wrap(err, "shard %s, which had them before", r.migration.From)
}

// committedOps returns the operations that take effect with an entry: its own, or those of the
// transaction that it commits, including earlier entries.
func committedOps(ctx context.Context, c *mongo.Cluster, raw bson.Raw) (all []bson.Raw, err error) {
	for _, flag := range []string{"prepare", "partialTxn"} { // take effect with a later entry
		if set, _ := raw.Lookup("o", flag).BooleanOK(); set {
			return nil, nil
		}
	}
	for {
		e := ownership.ParseEntry(raw)
		if _, commits := bsonraw.Field(e.O, "commitTransaction"); !commits {
			ops, err := ownership.Operations(raw)
			if err != nil {
				return nil, err
			}
			all = slices.Concat(ops, all)
			if e.Op != "c" {
				return all, nil // retryable writes also have a prevOpTime
			}
		}
		t, i, ok := raw.Lookup("prevOpTime", "ts").TimestampOK()
		if !ok || t == 0 {
			return all, nil
		}
		raw, err = c.Oplog().FindOne(ctx, bson.D{{Key: "ts", Value: bson.Timestamp{T: t, I: i}}}).Raw()
		if err != nil {
			return nil, fmt.Errorf("read the entry %d.%d of a transaction: %w", t, i, err)
		}
	}
}

// applyDonor applies an operation of the donor. Only whether the donor still has the document of the
// chunk counts; it may have another one with the same _id.
func (r *replay) applyDonor(op bson.Raw) {
	e := ownership.ParseEntry(op)
	d := r.docs[e.Key().Lookup("_id").String()]
	if d == nil {
		return
	}
	here := e.Op == "i" && r.contains(e.O)
	if e.Op == "u" {
		now := e.O
		if !e.Replaces() {
			var err error
			if now, err = applyUpdate(r.keyOnly(e.O2), e.O); err != nil {
				now = nil
			}
		}
		here = now == nil && !r.isElsewhere(e.O2) || now != nil && r.contains(now)
	}
	if d.present = nil; here {
		d.present = d.donated
	}
}

// keyOnly returns a document with the shard key fields of a document key.
func (r *replay) keyOnly(key bson.Raw) bson.Raw {
	doc := bson.D{}
	for i := range r.key {
		if e, ok := bsonraw.Field(key, r.key[i].Path); ok {
			doc = setPath(doc, strings.Split(r.key[i].Path, "."), bson.RawValue{Type: e.Type, Value: e.Value})
		}
	}
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(err) // values that were read can be marshaled
	}
	return raw
}

// setPath sets a field at a path.
func setPath(doc bson.D, path []string, v bson.RawValue) bson.D {
	i := slices.IndexFunc(doc, func(e bson.E) bool { return e.Key == path[0] })
	if i < 0 {
		i, doc = len(doc), append(doc, bson.E{Key: path[0]})
	}
	if len(path) == 1 {
		doc[i].Value = v
		return doc
	}
	in, _ := doc[i].Value.(bson.D)
	doc[i].Value = setPath(in, path[1:], v)
	return doc
}
