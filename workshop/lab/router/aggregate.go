package router

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// aggregate runs a pipeline on one shard if that has all documents, else in a shard part and a merging part.
func aggregate(ctx context.Context, c *call) (bson.D, error) {
	stages, err := c.stages()
	if err != nil {
		return nil, err
	}
	if len(stages) > 0 && stageName(stages[0]) == "$changeStream" {
		return c.watch(ctx, stages)
	}
	if c.coll == "" {
		return c.aggregateDatabase(ctx, stages)
	}
	return c.aggregateOn(ctx, c.coll, stages)
}

func (c *call) stages() ([]bson.Raw, error) {
	list, ok := get(c.cmd, "pipeline").ArrayOK()
	if !ok {
		return nil, fail(codeFailedToParse, "FailedToParse", "aggregate needs a pipeline")
	}
	return documents(list), nil
}

func stageName(stage bson.Raw) string { return string(firstField(stage).Name) }

// stageValue is what a stage's operator is given.
func stageValue(stage bson.Raw) bson.RawValue { return valueOf(firstField(stage)) }

func firstField(doc []byte) bsonraw.Element {
	body, _ := bsonraw.Body(doc)
	e, _, _ := bsonraw.Next(body)
	return e
}

// aggregateDatabase runs a pipeline that reads no collection: one shard makes it, but for a list of operations.
func (c *call) aggregateDatabase(ctx context.Context, stages []bson.Raw) (bson.D, error) {
	if len(stages) > 0 && stageName(stages[0]) == "$currentOp" {
		return c.currentOp(ctx, stages)
	}
	cur := c.cursor("$cmd.aggregate")
	shards := c.r.upstream.names()[:1]
	t, err := c.r.catalog.table(ctx, c.db, "")
	if err != nil {
		return nil, err
	}
	if t.db.exists {
		shards = t.owners()
	}
	return c.first(ctx, cur, c.openAt(ctx, cur, shards, func(string) bson.D { return c.cmd }))
}

// aggregateOn runs a pipeline on a collection, which for a view is not the one that the client has named.
func (c *call) aggregateOn(ctx context.Context, coll string, stages []bson.Raw) (bson.D, error) {
	collation, _ := get(c.cmd, "collation").DocumentOK()
	var cur *cursor
	var p *plan
	err := c.routed(ctx, coll, func(t *table) error {
		cur = c.cursor(c.coll)
		cur.from = coll
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
	if err == nil && p != nil && p.merge != nil {
		cur, err = c.merge(ctx, cur, p.merge)
	}
	return c.first(ctx, cur, err)
}

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

// viewOf reads the error of a shard that a view is on a sharded collection, which only a router can read.
func viewOf(err error) (view, bool) {
	resolved, ok := rawOf(err).Lookup("resolvedView").DocumentOK()
	if !ok {
		return view{}, false
	}
	_, coll, _ := cutNamespace(text(resolved.Lookup("ns")))
	return view{coll: coll, pipeline: listed(resolved, "pipeline")}, true
}

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
	c.cmd = append(bson.D{{Key: "aggregate", Value: v.coll}, {Key: "pipeline", Value: bson.A{}},
		{Key: "cursor", Value: cursor}},
		without(c.cmd, "find", "filter", "sort", "skip", "limit", "projection", "batchSize", "singleBatch")...)
	return c.aggregateOn(ctx, v.coll, stages)
}

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

// maxMerge bounds what is merged, so that it fits into one command.
const maxMerge = 12 << 20

// plan is a pipeline for several shards: what each does, and what merges the results; nil joins them.
type plan struct {
	shard []bson.Raw
	merge []bson.Raw
}

// perDocument are stages that look at one document at a time, or that make documents of each shard's own.
func perDocument(name string) bool {
	switch name {
	case "$match", "$project", "$addFields", "$set", "$unset", "$unwind", "$replaceRoot", "$replaceWith", "$redact",
		"$collStats", "$indexStats", "$planCacheStats":
		return true
	}
	return false
}

// splitPipeline splits a pipeline at its first stage that needs all documents.
func splitPipeline(stages []bson.Raw) (*plan, error) {
	at := slices.IndexFunc(stages, func(s bson.Raw) bool { return !perDocument(stageName(s)) })
	if at < 0 {
		return &plan{shard: stages}, nil
	}
	for _, s := range stages[at:] {
		if name := stageName(s); name == "$out" || name == "$merge" {
			return nil, unsupported(name + " of an aggregation over several shards")
		}
	}
	before, first, rest := stages[:at:at], stages[at], stages[at+1:]
	switch stageName(first) {
	case "$sort":
		shard := append(before, first)
		if len(rest) > 0 && stageName(rest[0]) == "$limit" {
			shard = append(shard, rest[0])
		}
		return &plan{shard: shard, merge: stages[at:]}, nil
	case "$limit", "$sample":
		return &plan{shard: append(before, first), merge: stages[at:]}, nil
	case "$skip":
		if len(rest) > 0 && stageName(rest[0]) == "$limit" {
			most := number(stageValue(first)) + number(stageValue(rest[0]))
			before = append(before, stage("$limit", most))
		}
		return &plan{shard: before, merge: stages[at:]}, nil
	case "$count":
		name := text(stageValue(first))
		total := bson.D{{Key: "_id", Value: nil}, {Key: name, Value: bson.D{{Key: "$sum", Value: "$" + name}}}}
		merge := []bson.Raw{stage("$group", total), stage("$project", bson.D{{Key: "_id", Value: 0}})}
		return &plan{shard: append(before, first), merge: append(merge, rest...)}, nil
	case "$group":
		if merge, ok := mergeGroup(stageValue(first)); ok {
			return &plan{shard: append(before, first), merge: append(merge, rest...)}, nil
		}
	}
	return &plan{shard: before, merge: stages[at:]}, nil
}

func stage(name string, value any) bson.Raw {
	return rawValue(bson.D{{Key: name, Value: value}}).Value
}

// mergeGroup returns stages that join groups of several shards; false when an accumulator cannot be joined.
func mergeGroup(spec bson.RawValue) ([]bson.Raw, bool) {
	doc, ok := spec.DocumentOK()
	if !ok {
		return nil, false
	}
	group, joined := bson.D{{Key: "_id", Value: "$_id"}}, bson.D{}
	for e, ok := range bsonraw.Fields(doc) {
		name := string(e.Name)
		if !ok || strings.Contains(name, ".") {
			return nil, false
		}
		if name == "_id" {
			continue
		}
		switch op := stageName(e.Value); {
		case e.Type != bson.TypeEmbeddedDocument:
			return nil, false
		case op == "$sum" || op == "$min" || op == "$max":
			group = append(group, bson.E{Key: name, Value: bson.D{{Key: op, Value: "$" + name}}})
		case op == "$count":
			group = append(group, bson.E{Key: name, Value: bson.D{{Key: "$sum", Value: "$" + name}}})
		case op == "$push" || op == "$addToSet":
			group = append(group, bson.E{Key: name, Value: bson.D{{Key: "$push", Value: "$" + name}}})
			joined = append(joined, bson.E{Key: name, Value: joinArrays(op, name)})
		default:
			return nil, false
		}
	}
	merge := []bson.Raw{stage("$group", group)}
	if len(joined) > 0 {
		merge = append(merge, stage("$addFields", joined))
	}
	return merge, true
}

// joinArrays is the expression that makes one array of an array of arrays.
func joinArrays(op, name string) bson.D {
	join := "$concatArrays"
	if op == "$addToSet" {
		join = "$setUnion"
	}
	return bson.D{{Key: "$reduce", Value: bson.D{
		{Key: "input", Value: "$" + name}, {Key: "initialValue", Value: bson.A{}},
		{Key: "in", Value: bson.D{{Key: join, Value: bson.A{"$$value", "$$this"}}}},
	}}}
}

// merge has a shard run the second part of a pipeline on the results, outside any transaction.
func (c *call) merge(ctx context.Context, cur *cursor, stages []bson.Raw) (*cursor, error) {
	docs, err := c.drain(ctx, cur)
	if err != nil {
		return nil, err
	}
	cmd := bson.D{{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: array(append(c.r.features.literal(docs), stages...))},
		{Key: "cursor", Value: bson.D{}}}
	for _, e := range c.cmd {
		switch e.Key {
		case "collation", "let", "maxTimeMS", "allowDiskUse", "comment":
			cmd = append(cmd, e)
		}
	}
	db := c.db
	if !c.r.features.AtLeast(5, 1) {
		db = "admin"
	}
	outside := &call{r: c.r, client: c.client, db: c.db}
	merged := &cursor{db: db, coll: "$cmd.aggregate", limit: -1}
	shard := cur.remotes[0].shard
	if err := outside.openAt(ctx, merged, []string{shard}, func(string) bson.D { return cmd }); err != nil {
		return nil, err
	}
	docs, err = outside.drain(ctx, merged)
	return &cursor{db: c.db, coll: c.coll, lsid: c.lsid, limit: -1, at: cur.at,
		remotes: []*remote{{shard: shard, buf: docs}}}, err
}

func (c *call) drain(ctx context.Context, cur *cursor) ([]bson.Raw, error) {
	var all []bson.Raw
	size := 0
	for !cur.done() {
		docs, err := cur.next(ctx, c, -1)
		for _, d := range docs {
			size += len(d)
		}
		if err == nil && size > maxMerge {
			err = unsupported("an aggregation that merges more than 12 MB")
		}
		if err != nil {
			cur.kill(ctx, c.r.upstream)
			return nil, err
		}
		all = append(all, docs...)
	}
	return all, nil
}

// literal returns stages that make documents. Before 5.1, without $documents, they replace one of $currentOp.
func (f features) literal(docs []bson.Raw) []bson.Raw {
	list := bson.D{{Key: "$literal", Value: array(docs)}}
	if f.AtLeast(5, 1) {
		return []bson.Raw{stage("$documents", list)}
	}
	return []bson.Raw{
		stage("$currentOp", bson.D{}), stage("$limit", 1),
		stage("$project", bson.D{{Key: "_id", Value: 0}, {Key: "d", Value: list}}),
		stage("$unwind", "$d"), stage("$replaceRoot", bson.D{{Key: "newRoot", Value: "$d"}}),
	}
}

// sortKey is the field in which shards return a document's sort key, an array ({$meta: "sortKey"}).
const sortKey = "$sortKey"

// directions are those of a sort's parts; nil when there is nothing to merge by.
func directions(sort bson.Raw) []int {
	var order []int
	for e, ok := range bsonraw.Fields(sort) {
		switch {
		case !ok || string(e.Name) == "$natural":
			return nil
		case e.Type == bson.TypeEmbeddedDocument || number(valueOf(e)) < 0: // a score: the highest first
			order = append(order, -1)
		default:
			order = append(order, 1)
		}
	}
	return order
}

// compare orders two documents by their sort keys.
func (c *cursor) compare(a, b bson.Raw) int {
	ka, kb := sortValues(a), sortValues(b)
	for i, direction := range c.order {
		if i >= len(ka) || i >= len(kb) {
			return 0
		}
		if n := shardkey.Compare(ka[i], kb[i]); n != 0 {
			return n * direction
		}
	}
	return 0
}

func sortValues(doc bson.Raw) []bson.RawValue {
	e, _ := bsonraw.Field(doc, sortKey)
	return values(e.Value)
}

// withoutSortKey is a document as the client wants it.
func withoutSortKey(doc bson.Raw) bson.Raw {
	out := make(bson.Raw, 4, len(doc))
	for e, ok := range bsonraw.Fields(doc) {
		if ok && string(e.Name) != sortKey {
			out = append(out, e.Raw...)
		}
	}
	out = append(out, 0)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}

func array(docs []bson.Raw) bson.RawValue {
	size := 5
	for _, d := range docs {
		size += len(d) + 8
	}
	out := make([]byte, 4, size)
	for i, d := range docs {
		out = append(out, byte(bson.TypeEmbeddedDocument))
		out = append(strconv.AppendInt(out, int64(i), 10), 0)
		out = append(out, d...)
	}
	out = append(out, 0)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return bson.RawValue{Type: bson.TypeArray, Value: out}
}

// cursorReply is a reply with a batch, the first or a next one.
func cursorReply(c *cursor, batch string, id int64, docs []bson.Raw) bson.D {
	d := bson.D{{Key: batch, Value: array(docs)}, {Key: "id", Value: id}, {Key: "ns", Value: c.db + "." + c.coll}}
	if c.at.Type != 0 {
		d = append(d, bson.E{Key: "atClusterTime", Value: c.at})
	}
	if c.changes != nil {
		d = append(d, bson.E{Key: "postBatchResumeToken", Value: c.changes.token()})
	}
	return bson.D{{Key: "cursor", Value: d}}
}
