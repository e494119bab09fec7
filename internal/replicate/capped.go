package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/tail"
)

// cappedStarts finds, for each capped collection of the target, up to which
// position its inserts need not be replayed: that of its newest document. What
// was inserted before it is there, or has rolled off; inserted again it would
// come to stand behind newer documents. Keyed by target namespace; a
// collection whose newest document is older than from is not in it.
func (j *Job) cappedStarts(ctx context.Context, from, until mongo.OpTime) (map[string]mongo.OpTime, error) {
	ends, err := j.cappedEnds(ctx)
	if err != nil || len(ends) == 0 {
		return nil, err
	}
	var sources, ids bson.A
	for src, end := range ends {
		sources, ids = append(sources, src), append(ids, end.doc.Lookup("_id"))
	}
	see := func(op, ns string, at mongo.OpTime, o, o2 bson.Raw) {
		if end := ends[ns]; end != nil {
			end.see(op, at, o, o2)
		}
	}
	if s := j.spooler.source(); tail.Spooled(s, from) { // the oplog may begin later
		if err := tail.SpooledWrites(s, from, until, see); err != nil {
			return nil, fmt.Errorf("look for inserts into capped collections: %w", err)
		}
	}
	if err := j.oplogOf(ctx, from, until, sources, ids, see); err != nil {
		return nil, fmt.Errorf("look for inserts into capped collections: %w", err)
	}
	starts := map[string]mongo.OpTime{}
	for _, end := range ends {
		if end.found {
			starts[end.target] = end.start
		}
	}
	return starts, nil
}

// oplogOf calls see for the plain operations on documents of some _ids.
func (j *Job) oplogOf(ctx context.Context, from, until mongo.OpTime, sources, ids bson.A, see func(op, ns string, at mongo.OpTime, o, o2 bson.Raw)) error {
	some := bson.D{{Key: "$in", Value: ids}}
	cur, err := j.src.Client.Database("local", options.Database().SetReadConcern(readconcern.Majority())).Collection("oplog.rs").
		Find(ctx, bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: from.TS}, {Key: "$lte", Value: until.TS}}},
			{Key: "ns", Value: bson.D{{Key: "$in", Value: sources}}},
			{Key: "$or", Value: bson.A{bson.D{{Key: "o._id", Value: some}}, bson.D{{Key: "o2._id", Value: some}}}},
		})
	if err != nil {
		return err
	}
	for cur.Next(ctx) {
		var e struct {
			mongo.OpTime `bson:",inline"`
			Op           string   `bson:"op"`
			NS           string   `bson:"ns"`
			O            bson.Raw `bson:"o"`
			O2           bson.Raw `bson:"o2"`
		}
		if err := cur.Decode(&e); err != nil {
			return errors.Join(err, cur.Close(ctx))
		}
		see(e.Op, e.NS, e.OpTime, slices.Clone(e.O), slices.Clone(e.O2))
	}
	return cur.Err()
}

// cappedEnd follows the newest document of a capped collection through the
// oplog. Its _id does not tell when it was inserted: it may have been deleted and
// inserted again since, or the collection made anew, and to start behind that
// would lose what lies between. What the document holds tells.
type cappedEnd struct {
	target string   // namespace
	doc    bson.Raw // on the target
	seen   mongo.OpTime
	now    bson.Raw // with the same _id on the source; nil when unknown
	at     mongo.OpTime
	start  mongo.OpTime // when it was inserted
	found  bool
}

// see takes the next operation on the collection; one that it has seen, in the
// spool and again in the oplog, says nothing new.
func (c *cappedEnd) see(op string, at mongo.OpTime, o, o2 bson.Raw) {
	if !c.seen.Before(at) {
		return
	}
	c.seen = at
	id := c.doc.Lookup("_id")
	switch {
	case op == "i" && o.Lookup("_id").Equal(id):
		c.now, c.at = o, at
	case op == "u" && c.now != nil && o2.Lookup("_id").Equal(id):
		c.now = updated(c.now, o)
	case op == "d" && o.Lookup("_id").Equal(id):
		c.now = nil
	}
	if !c.found && c.now != nil && bytes.Equal(c.now, c.doc) {
		c.start, c.found = c.at, true
	}
}

// updated applies an oplog update; nil if it cannot be applied.
func updated(doc, o bson.Raw) bson.Raw {
	d, kind, err := delta.Read(o)
	if err != nil {
		return nil
	}
	if kind == delta.Replacement {
		return o
	}
	out, _, err := delta.Apply(nil, doc, d)
	if err != nil {
		return nil
	}
	return out
}

// cappedEnds reads the last document of each capped collection of the target that
// is ours, keyed by source namespace.
func (j *Job) cappedEnds(ctx context.Context) (map[string]*cappedEnd, error) {
	dbs, err := j.dst.Client.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("list databases of the target: %w", err)
	}
	out := map[string]*cappedEnd{}
	for _, db := range dbs {
		if !j.rules.MatchTargetDB(db) {
			continue
		}
		// Not ListCollectionNames: asked for names only, the server has no
		// options to filter by and finds nothing.
		specs, err := j.dst.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "options.capped", Value: true}})
		if err != nil {
			return nil, fmt.Errorf("list capped collections of %s: %w", db, err)
		}
		for _, spec := range specs {
			name := spec.Name
			src, ok := j.rules.Source(db + "." + name)
			if !ok || !j.keep(src) {
				continue
			}
			raw, err := j.dst.Client.Database(db).Collection(name).FindOne(ctx, bson.D{},
				options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Raw()
			if errors.Is(err, driver.ErrNoDocuments) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read newest document of %s.%s: %w", db, name, err)
			}
			out[src] = &cappedEnd{target: db + "." + name, doc: raw}
		}
	}
	return out, nil
}
