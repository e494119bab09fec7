package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// aggregate runs a pipeline: whole on one shard if that has all the documents,
// else in a part on the shards and a part that merges their results.
func aggregate(ctx context.Context, c *call) (bson.D, error) {
	stages, err := c.stages()
	if err != nil {
		return nil, err
	}
	if c.coll == "" {
		return c.aggregateDatabase(ctx, stages)
	}
	return c.aggregateOn(ctx, c.coll, stages)
}

// stages are the pipeline's, none of a kind that cannot be done.
func (c *call) stages() ([]bson.Raw, error) {
	list, ok := get(c.cmd, "pipeline").ArrayOK()
	if !ok {
		return nil, fail(codeFailedToParse, "FailedToParse", "aggregate needs a pipeline")
	}
	stages := documents(list)
	for _, s := range stages {
		if stageName(s) == "$changeStream" {
			return nil, unsupported("change streams")
		}
	}
	return stages, nil
}

// stageName is a stage's operator.
func stageName(stage bson.Raw) string {
	body, _ := bsonraw.Body(stage)
	e, _, _ := bsonraw.Next(body)
	return string(e.Name)
}

// stageValue is what a stage's operator is given.
func stageValue(stage bson.Raw) bson.RawValue {
	body, _ := bsonraw.Body(stage)
	e, _, _ := bsonraw.Next(body)
	return valueOf(e)
}

// aggregateDatabase runs a pipeline that reads no collection: one shard makes it, but
// for a list of operations.
func (c *call) aggregateDatabase(ctx context.Context, stages []bson.Raw) (bson.D, error) {
	if len(stages) > 0 && stageName(stages[0]) == "$currentOp" {
		return c.currentOp(ctx, stages)
	}
	cur := &cursor{db: c.db, coll: "$cmd.aggregate", from: "$cmd.aggregate", lsid: c.lsid, limit: -1}
	shards := c.r.upstream.names()[:1]
	t, err := c.r.catalog.table(ctx, c.db, "")
	if err != nil {
		return nil, err
	}
	if t.db.exists {
		shards = t.owners()
	}
	if err := c.openAt(ctx, cur, shards, func(string) bson.D { return c.cmd }); err != nil {
		return nil, err
	}
	return c.first(ctx, cur)
}

// aggregateOn runs a pipeline on a collection, which for a view is not the one that
// the client has named.
func (c *call) aggregateOn(ctx context.Context, coll string, stages []bson.Raw) (bson.D, error) {
	collation, _ := get(c.cmd, "collation").DocumentOK()
	var cur *cursor
	var p *plan
	err := c.routed(ctx, coll, func(t *table) error {
		cur = &cursor{db: c.db, coll: c.coll, from: coll, lsid: c.lsid, limit: -1}
		if !t.db.exists {
			return nil
		}
		shards := t.shardsFor(leadingMatch(stages), collation)
		p = &plan{shard: stages}
		if len(shards) > 1 {
			var err error
			if p, err = splitPipeline(stages); err != nil {
				return err
			}
			if truth(get(c.cmd, "explain")) {
				return unsupported("explain over several shards")
			}
		}
		cmd := with(c.cmd, "aggregate", coll)
		cmd = with(cmd, "pipeline", array(p.shard))
		if p.merge != nil {
			cmd = with(cmd, "cursor", bson.D{})
		}
		if len(shards) > 1 {
			cmd = pinned(cmd, c.r.clock)
		}
		return c.open(ctx, t, cur, shards, cmd)
	})
	if view, ok := viewOf(err); ok {
		return c.aggregateOn(ctx, view.coll, append(view.pipeline[:len(view.pipeline):len(view.pipeline)], stages...))
	}
	if err != nil {
		return nil, err
	}
	if p != nil && p.merge != nil {
		if cur, err = c.merge(ctx, cur, p.merge); err != nil {
			return nil, err
		}
	}
	return c.first(ctx, cur)
}

// leadingMatch is the filter that a pipeline begins with.
func leadingMatch(stages []bson.Raw) bson.Raw {
	if len(stages) > 0 && stageName(stages[0]) == "$match" {
		if filter, ok := stageValue(stages[0]).DocumentOK(); ok {
			return filter
		}
	}
	return emptyDocument()
}

// view is what a view on a sharded collection stands for.
type view struct {
	coll     string
	pipeline []bson.Raw
}

// viewOf reads the error of a shard that a view is on a sharded collection, which
// only a router can read.
func viewOf(err error) (view, bool) {
	resolved, ok := rawOf(err).Lookup("resolvedView").DocumentOK()
	if !ok {
		return view{}, false
	}
	_, coll, _ := cutNamespace(text(resolved.Lookup("ns")))
	list, _ := resolved.Lookup("pipeline").ArrayOK()
	return view{coll: coll, pipeline: documents(list)}, true
}

// findOnView is a find as an aggregation.
func (c *call) findOnView(ctx context.Context, v view) (bson.D, error) {
	stages := v.pipeline
	for _, s := range []struct{ field, stage string }{
		{"filter", "$match"}, {"sort", "$sort"}, {"skip", "$skip"}, {"limit", "$limit"}, {"projection", "$project"},
	} {
		value := get(c.cmd, s.field)
		doc, isDoc := value.DocumentOK()
		if value.Type == 0 || isDoc && len(doc) <= 5 || !isDoc && number(value) == 0 {
			continue
		}
		stages = append(stages, rawValue(bson.D{{Key: s.stage, Value: value}}).Value)
	}
	cursor := bson.D{}
	if size := get(c.cmd, "batchSize"); size.Type != 0 {
		cursor = append(cursor, bson.E{Key: "batchSize", Value: size})
	}
	c.cmd = append(bson.D{{Key: "aggregate", Value: v.coll}, {Key: "pipeline", Value: bson.A{}}, {Key: "cursor", Value: cursor}},
		without(c.cmd, "find", "filter", "sort", "skip", "limit", "projection", "batchSize", "singleBatch")...)
	return c.aggregateOn(ctx, v.coll, stages)
}

// countOnView is a count as an aggregation.
func (c *call) countOnView(ctx context.Context, v view) (bson.D, error) {
	q := get(c.cmd, "query")
	c.cmd = with(without(c.cmd, "count", "query", "fields", "batchSize"), "filter", q)
	c.cmd = append(bson.D{{Key: "find", Value: v.coll}}, c.cmd...)
	if q.Type == 0 {
		c.cmd = without(c.cmd, "filter")
	}
	d, err := c.findOnView(ctx, v)
	n := int64(0)
	for err == nil {
		raw, _ := bson.Marshal(d)
		docs, id, _ := readBatch(raw)
		if n += int64(len(docs)); id == 0 {
			break
		}
		c.cmd = bson.D{{Key: "getMore", Value: rawValue(id)}, {Key: "collection", Value: rawValue(c.coll)}}
		d, err = getMore(ctx, c)
	}
	return bson.D{{Key: "n", Value: n}}, err
}
