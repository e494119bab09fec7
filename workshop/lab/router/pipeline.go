package router

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// maxMerge bounds what is merged, so that it fits into one command.
const maxMerge = 12 << 20

// plan is a pipeline for several shards: what each does, and what is done with
// their results; no merge means that these are simply joined.
type plan struct {
	shard []bson.Raw
	merge []bson.Raw
}

// perDocument are stages that look at one document at a time, or that make
// documents of each shard's own.
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

// stage makes a stage.
func stage(name string, value any) bson.Raw {
	return rawValue(bson.D{{Key: name, Value: value}}).Value
}

// mergeGroup are the stages that join groups of several shards; false when an
// accumulator's results cannot be joined.
func mergeGroup(spec bson.RawValue) ([]bson.Raw, bool) {
	doc, ok := spec.DocumentOK()
	if !ok {
		return nil, false
	}
	group, joined := bson.D{{Key: "_id", Value: "$_id"}}, bson.D{}
	for e, ok := range bsonraw.Fields(doc) {
		name := string(e.Name)
		if !ok || dotted(name) {
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

// merge has a shard run the second part of a pipeline on the results of the first.
// It reads no collection for them, and so needs no part in a transaction.
func (c *call) merge(ctx context.Context, cur *cursor, stages []bson.Raw) (*cursor, error) {
	docs, err := c.drain(ctx, cur)
	if err != nil {
		return nil, err
	}
	cmd := bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: array(append(c.r.features.literal(docs), stages...))},
		{Key: "cursor", Value: bson.D{}}}
	for _, e := range c.cmd {
		switch e.Key {
		case "collation", "let", "maxTimeMS", "allowDiskUse", "comment":
			cmd = append(cmd, e)
		}
	}
	db := c.db
	if !c.r.features.atLeast(5, 1) {
		db = "admin"
	}
	outside := &call{r: c.r, client: c.client, db: c.db}
	merged := &cursor{db: db, coll: "$cmd.aggregate", limit: -1}
	shard := cur.remotes[0].shard
	if err := outside.openIn(ctx, db, merged, []string{shard}, func(string) bson.D { return cmd }); err != nil {
		return nil, err
	}
	docs, err = outside.drain(ctx, merged)
	return &cursor{db: c.db, coll: c.coll, lsid: c.lsid, limit: -1, at: cur.at, remotes: []*remote{{shard: shard, buf: docs}}}, err
}

// drain reads a cursor to its end.
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

// literal are stages that make documents out of nothing. Before 5.1 there is no
// $documents: one document of another kind is replaced by them.
func (f features) literal(docs []bson.Raw) []bson.Raw {
	list := bson.D{{Key: "$literal", Value: array(docs)}}
	if f.atLeast(5, 1) {
		return []bson.Raw{stage("$documents", list)}
	}
	return []bson.Raw{
		stage("$currentOp", bson.D{}), stage("$limit", 1),
		stage("$project", bson.D{{Key: "_id", Value: 0}, {Key: "d", Value: list}}),
		stage("$unwind", "$d"), stage("$replaceRoot", bson.D{{Key: "newRoot", Value: "$d"}}),
	}
}
