package shards

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// deletedFirst finds out which of the documents that are gone the donor had deleted,
// too: its delete found nothing here, and so nothing tells of it. The stream has told
// of it then, and maybe of another document of that _id.
func (j *judge) deletedFirst(ctx context.Context, all []*stray, p *replay, at bson.Timestamp) error {
	there := &replay{docs: map[string]*states{}, key: p.key, of: p.of}
	var gone []*stray
	for _, s := range all {
		if d := p.docs[s.id.String()]; d.told != nil && d.is == nil && d.known {
			gone = append(gone, s)
			there.docs[s.id.String()] = &states{told: d.told, is: d.told}
		}
	}
	donor := j.shards[p.of.from]
	if len(gone) == 0 || donor == nil {
		return nil
	}
	filter := bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gte", Value: p.of.since}, {Key: "$lte", Value: at}}},
		{Key: "$or", Value: bson.A{
			written(gone), bson.D{{Key: "op", Value: "c"}, {Key: "o.applyOps", Value: bson.D{{Key: "$exists", Value: true}}}},
			bson.D{{Key: "op", Value: "c"}, {Key: "o.commitTransaction", Value: bson.D{{Key: "$exists", Value: true}}}},
		}},
	}
	err := entries(ctx, donor, filter, at, func(e bson.Raw) error {
		ops, err := committed(ctx, donor, e)
		for _, one := range ops {
			there.donor(one)
		}
		return err
	})
	for id, d := range there.docs {
		if d.is == nil {
			p.docs[id].told = nil
		}
	}
	return mongo.Wrap(err, "shard %s, which had them before", p.of.from)
}

// committed are the operations that take effect with an entry: itself, or those of the
// transaction that it commits, of which the earlier entries are asked for.
func committed(ctx context.Context, c *mongo.Cluster, e bson.Raw) (all []bson.Raw, err error) {
	if later(e, "prepare") || later(e, "partialTxn") {
		return nil, nil
	}
	for {
		o, _ := e.Lookup("o").DocumentOK()
		if _, commits := bsonraw.Field(o, "commitTransaction"); !commits {
			ops, err := operations(e)
			if err != nil {
				return nil, err
			}
			all = slices.Concat(ops, all)
			if op, _ := e.Lookup("op").StringValueOK(); op != "c" {
				return all, nil // a write that is retried names those before it, too
			}
		}
		t, i, ok := e.Lookup("prevOpTime", "ts").TimestampOK()
		if !ok || t == 0 {
			return all, nil
		}
		e, err = c.Client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{{Key: "ts", Value: bson.Timestamp{T: t, I: i}}}).Raw()
		if err != nil {
			return nil, fmt.Errorf("read the entry %d.%d of a transaction: %w", t, i, err)
		}
	}
}

// later reports an entry of a transaction whose operations take effect with a later one.
func later(e bson.Raw, mark string) bool {
	yes, _ := e.Lookup("o", mark).BooleanOK()
	return yes
}

// donor takes what the donor did to one of the documents: whether it still has it is
// what counts, not what is in it. It may have another by now with the same _id.
func (p *replay) donor(op bson.Raw) {
	kind, _ := op.Lookup("op").StringValueOK()
	o, _ := op.Lookup("o").DocumentOK()
	o2, _ := op.Lookup("o2").DocumentOK()
	id := o.Lookup("_id")
	if kind == "u" {
		id = o2.Lookup("_id")
	}
	d := p.docs[id.String()]
	if d == nil {
		return
	}
	here := kind == "i" && p.has(o)
	if kind == "u" {
		now := o
		if !whole(o) {
			var err error
			if now, err = updated(p.keyOnly(o2), o); err != nil {
				now = nil
			}
		}
		here = now == nil && !p.elsewhere(o2) || now != nil && p.has(now)
	}
	if d.is = nil; here {
		d.is = d.told
	}
}

// keyOnly is a document that has the fields of a document key alone.
func (p *replay) keyOnly(key bson.Raw) bson.Raw {
	doc := bson.D{}
	for i := range p.key {
		if e, ok := bsonraw.Field(key, p.key[i].Path); ok {
			doc = with(doc, strings.Split(p.key[i].Path, "."), bson.RawValue{Type: e.Type, Value: e.Value})
		}
	}
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(err) // made of what was read
	}
	return raw
}

// with sets a field at a path.
func with(doc bson.D, path []string, v bson.RawValue) bson.D {
	i := slices.IndexFunc(doc, func(e bson.E) bool { return e.Key == path[0] })
	if i < 0 {
		i, doc = len(doc), append(doc, bson.E{Key: path[0]})
	}
	if len(path) == 1 {
		doc[i].Value = v
		return doc
	}
	in, _ := doc[i].Value.(bson.D)
	doc[i].Value = with(in, path[1:], v)
	return doc
}
