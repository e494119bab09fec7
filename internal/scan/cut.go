package scan

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

const (
	oversample = 16   // sampled _ids a slice, so that slices are of one size
	maxSample  = 4096 // unless that were under two a slice
	candidates = 8    // earlier bounds that are kept to fall back to

	// sampleable bytes may be read completely. Above 5 % servers read and sort all documents.
	sampleable = 16 << 20
	// shardsSampled is how many shards each may have so little of a collection that the limit counts.
	shardsSampled = 8
)

// Bound is the end of one slice and the start of the next.
type Bound struct {
	at   bson.Raw
	back []int64
}

// Slices returns the parts between ascending bounds, each like the one given.
func Slices(like Slice, bounds []Bound) []Slice {
	plan := make([]Slice, len(bounds)+1)
	for i := range plan {
		s := like
		s.N, s.Of = i, len(plan)
		if i > 0 {
			s.Lower, s.Back = bounds[i-1].at, bounds[i-1].back
		}
		if i < len(bounds) {
			s.Upper = bounds[i].at
		}
		plan[i] = s
	}
	return plan
}

const cutTries = 5

// Cut returns the bounds of n slices, fewer if the server gives no more. It changes the strategy
// from ByRecord to ByID if the server refuses record order.
func (r *Reader) Cut(ctx context.Context, c *schema.Collection, strategy Strategy,
	n int) (bounds []Bound, served Strategy, err error) {
	if n < 2 || !strategy.Resumable() {
		return nil, strategy, nil
	}
	for range cutTries { // a rename kills the queries under way
		if bounds, served, err = r.cut(ctx, c, strategy, n); !mongo.IsCode(err, mongo.CodeQueryPlanKilled) {
			break
		}
	}
	return bounds, served, err
}

func (r *Reader) cut(ctx context.Context, c *schema.Collection, strategy Strategy, n int) ([]Bound, Strategy, error) {
	ids, strategy, err := r.sampleNow(ctx, c, strategy, min(n*oversample, max(maxSample, 2*n)))
	if err != nil || len(ids) == 0 {
		return nil, strategy, err
	}
	var marks []bson.Raw
	if strategy == ByRecord {
		if marks, err = r.locate(ctx, c, ids); err != nil {
			return nil, strategy, err
		}
		slices.SortFunc(marks, func(a, b bson.Raw) int { return cmp.Compare(Record(a), Record(b)) })
	} else {
		for _, id := range ids {
			marks = append(marks, mark(strategy, 0, bsonraw.FromRaw(id)))
		}
	}
	return choose(marks, n), strategy, nil
}

func choose(marks []bson.Raw, n int) []Bound {
	n = min(n, len(marks)+1)
	var out []Bound
	for i := 1; i < n; i++ {
		at := i * len(marks) / n
		b := Bound{at: marks[at]}
		for j := at - 1; j >= 0 && j >= at-candidates; j-- {
			if rid := Record(marks[j]); rid != 0 {
				b.back = append(b.back, rid)
			}
		}
		out = append(out, b)
	}
	return out
}

// Rejoin joins slices in record order if the document at the bound between them is gone, or not
// owned: a slice ends exactly at a document.
func (r *Reader) Rejoin(ctx context.Context, c *schema.Collection, parts []Slice) ([]Slice, error) {
	var ids []bson.RawValue
	for _, s := range parts {
		if len(s.Upper) > 0 {
			ids = append(ids, bsonraw.RawValue(markID(s.Upper)))
		}
	}
	marks, err := r.locate(ctx, c, ids)
	if err != nil {
		return nil, err
	}
	there := map[int64]bool{}
	for _, m := range marks {
		there[Record(m)] = true
	}
	var out []Slice
	for i, s := range parts {
		if i > 0 && !there[Record(s.Lower)] {
			out[len(out)-1].Upper = s.Upper
			continue
		}
		out = append(out, s)
	}
	for i := range out {
		out[i].N, out[i].Of = i, len(out)
	}
	return out, nil
}

func (r *Reader) sampleNow(ctx context.Context, c *schema.Collection, strategy Strategy,
	size int) ([]bson.RawValue, Strategy, error) {
	for i := 1; ; i++ {
		name, err := r.Name(ctx, c, strategy)
		if strategy == ByRecord && Refused(err) {
			strategy = ByID
			continue
		}
		if err != nil || name == "" {
			return nil, strategy, err
		}
		ids, err := r.sample(ctx, c, name, size)
		if i < cutTries && mongo.IsCode(err, mongo.CodeSampleFailed) {
			continue
		}
		if optional(err) {
			ids, err = nil, nil
		}
		return ids, strategy, err
	}
}

// optional reports a refused sample: that costs parallelism, not the reading.
func optional(err error) bool {
	var ce driver.CommandError
	return errors.As(err, &ce) && mongo.Classify(err) == mongo.ClassFatal && ce.Code != mongo.CodeUnauthorized
}

// Name returns the present name of the collection: aggregate takes no UUID. It also finds out
// whether the server takes the strategy.
func (r *Reader) Name(ctx context.Context, c *schema.Collection, strategy Strategy) (string, error) {
	if _, err := r.named(ctx, c); err != nil {
		return "", err
	}
	cmd := r.Find(c, bson.E{Key: "limit", Value: 1}, bson.E{Key: "projection", Value: idAlone()})
	if strategy == ByRecord {
		cmd = append(cmd, natural(), requestToken())
	}
	db, _ := mongo.SplitNS(c.DataNS())
	body, err := r.Command(ctx, db, cmd)
	if err != nil {
		return "", err
	}
	ns, _ := bson.Raw(body).Lookup("cursor", "ns").StringValueOK()
	_, name := mongo.SplitNS(ns)
	return name, nil
}

func (r *Reader) sample(ctx context.Context, c *schema.Collection, name string, size int) ([]bson.RawValue, error) {
	if c.Bytes > sampleable {
		most := c.Count / 25
		if r.Routers != nil { // each shard samples as much
			most /= shardsSampled
		}
		size = int(max(min(int64(size), most), 2))
	}
	db, _ := mongo.SplitNS(c.DataNS())
	cmd := r.Owned.Mark(bson.D{
		{Key: "aggregate", Value: name},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: size}}}},
			bson.D{{Key: "$project", Value: idAlone()}},
			bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: size}}},
	})
	if r.Routers != nil && c.Collated() { // whoever merges what shards return
		cmd = append(cmd, bson.E{Key: "collation", Value: c.Options.Lookup("collation")})
	}
	var ids []bson.RawValue
	err := r.Each(ctx, db, cmd, 0, func(doc []byte) error {
		id := bsonraw.IDOf(doc) // servers refuse bounds at the very ends
		if id.Type != 0 && id.Type != bsoncore.TypeMinKey && id.Type != bsoncore.TypeMaxKey {
			v := bsonraw.RawValue(id)
			if len(ids) == 0 || !ids[len(ids)-1].Equal(v) { // equal neighbours are one bound
				ids = append(ids, bson.RawValue{Type: v.Type, Value: bytes.Clone(v.Value)})
			}
		}
		return nil
	})
	return ids, err
}

// locate finds the record ids of the documents that still have these _ids.
func (r *Reader) locate(ctx context.Context, c *schema.Collection, ids []bson.RawValue) (marks []bson.Raw, err error) {
	const perQuery = 1000 // so that large _ids fit into a command
	db, _ := mongo.SplitNS(c.DataNS())
	for part := range slices.Chunk(ids, perQuery) {
		err := r.Each(ctx, db, r.Find(c,
			bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: part}}}}},
			bson.E{Key: "projection", Value: idOfDocument()},
			bson.E{Key: "showRecordId", Value: true}, bson.E{Key: "batchSize", Value: len(part) + 1},
		), 0, func(doc []byte) error {
			rid, ok := recordOf(doc)
			if !ok {
				return errNoRecord
			}
			marks = append(marks, mark(ByRecord, rid, bsonraw.IDOf(doc)))
			return nil
		})
		// An _id that servers have but no longer store cannot be asked for. It costs the bounds
		// around it.
		if err != nil && !mongo.IsCode(err, mongo.CodeBadValue) {
			return nil, err
		}
	}
	return marks, nil
}

func idAlone() bson.D { return bson.D{{Key: "_id", Value: 1}} }

// idOfDocument has a field that the index lacks, so that the server takes the _ids from the documents.
// An index of 4.4 and newer returns any NaN as the same.
func idOfDocument() bson.D { return append(idAlone(), bson.E{Key: "\x01", Value: 1}) }

func natural() bson.E      { return bson.E{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}} }
func requestToken() bson.E { return bson.E{Key: "$_requestResumeToken", Value: true} }

// SizeOf returns the size and the number of documents of a collStats reply.
func SizeOf(stats bson.Raw) (bytes, docs int64) {
	bytes, _ = stats.Lookup("size").AsInt64OK()
	if docs, _ = stats.Lookup("count").AsInt64OK(); docs == 0 {
		docs, _ = stats.Lookup("timeseries", "bucketCount").AsInt64OK()
	}
	return bytes, docs
}
