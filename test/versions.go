package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// VersionsOf is a collection of the source whose versions the target holds. It must have
// had its name since the copy.
type VersionsOf struct {
	Source, Target string // namespaces
	Most           int    // versions of which the documents are compared, the newest
}

// CompareVersions compares versions with what the source tells by itself: each with the
// document as it was at the version's time, for as long as the source remembers that, and
// the list of them with the source's oplog since the end of the copy.
func CompareVersions(ctx context.Context, source, target *mongo.Client, of VersionsOf) (diffs []Difference, err error) {
	db, coll := splitNS(of.Target)
	cur, err := target.Database(db).Collection(coll).
		Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var list []bson.Raw
	if err := cur.All(ctx, &list); err != nil {
		return nil, err
	}
	differ := func(format string, args ...any) {
		diffs = append(diffs, Difference{of.Source, fmt.Sprintf(format, args...)})
	}
	for i := max(len(list)-of.Most, 0); i < len(list); i++ {
		id, at := list[i].Lookup("_id").Document(), timeOf(list[i])
		if i+1 < len(list) { // the last of one time counts
			next := list[i+1].Lookup("_id").Document()
			if timeOf(list[i+1]) == at && bytes.Equal(next.Lookup("k").Value, id.Lookup("k").Value) {
				continue
			}
		}
		was, err := asOf(ctx, source, of.Source, id.Lookup("k"), at)
		var se mongo.ServerError
		if errors.As(err, &se) && se.HasErrorCode(snapshotTooOld) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if doc, _ := list[i].Lookup("doc").DocumentOK(); !bytes.Equal(was, doc) {
			differ("version %s is %.1000s, the document was %.1000s", id, doc, was)
		}
	}
	since, err := copiedUntil(ctx, target, of.Source)
	if err != nil {
		return nil, err
	}
	want, err := changesSince(ctx, source, of.Source, since)
	if err != nil {
		return nil, err
	}
	var have []string
	for _, v := range list {
		if op := v.Lookup("op").StringValue(); op != "copy" {
			have = append(have, fmt.Sprint(v.Lookup("_id", "k"), " ", op[:1]))
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		differ("since %v there are %d versions of %d changes: %.3000v, %.3000v", since, len(have), len(want), have, want)
	}
	return diffs, nil
}

func splitNS(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}

// snapshotTooOld is what a source says that is too busy for the five minutes that it
// remembers.
const snapshotTooOld = 239

// timeOf is of which time a version tells.
func timeOf(v bson.Raw) (at bson.Timestamp) {
	at.T, at.I = v.Lookup("_id", "t").Timestamp()
	if later, err := v.LookupErr("at"); err == nil {
		at.T, at.I = later.Timestamp()
	}
	return at
}

// asOf reads a document as it was at a time, nil for none.
func asOf(ctx context.Context, source *mongo.Client, ns string, id bson.RawValue, at bson.Timestamp) (bson.Raw, error) {
	db, coll := splitNS(ns)
	cur, err := source.Database(db).RunCommandCursor(ctx,
		bson.D{{Key: "find", Value: coll},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}},
			{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at}}}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(ctx) }()
	if cur.Next(ctx) {
		return bytes.Clone(cur.Current), nil
	}
	return nil, cur.Err()
}

// copiedUntil is where the copy of the job ended that writes versions of a collection.
func copiedUntil(ctx context.Context, target *mongo.Client, ns string) (bson.Timestamp, error) {
	cur, err := target.Database("millrace").Collection("jobs").
		Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "createdAt", Value: -1}}))
	if err != nil {
		return bson.Timestamp{}, err
	}
	var jobs []struct {
		Rules  string
		Copied bson.Raw
	}
	if err := cur.All(ctx, &jobs); err != nil {
		return bson.Timestamp{}, err
	}
	db, _ := splitNS(ns)
	for _, job := range jobs {
		rules := bytes.Split([]byte(job.Rules), []byte("; "))
		if slices.ContainsFunc(rules, func(rule []byte) bool {
			return string(rule) == "history "+ns ||
				string(rule) == "history "+db+".*"
		}) {
			t, i, _ := job.Copied.Lookup("ts").TimestampOK()
			return bson.Timestamp{T: t, I: i}, nil
		}
	}
	return bson.Timestamp{}, fmt.Errorf("no job has a history of %s", ns)
}

// changesSince lists from the source's oplog which documents of a collection were changed
// after a time, and how: replacements by their first letter.
func changesSince(ctx context.Context, source *mongo.Client, ns string, since bson.Timestamp) (out []string,
	err error) {
	cur, err := source.Database("local").Collection("oplog.rs").
		Find(ctx, bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: since}}},
			{Key: "$or", Value: bson.A{bson.D{{Key: "ns", Value: ns}}, bson.D{{Key: "o.applyOps.ns", Value: ns}}}}})
	if err != nil {
		return nil, err
	}
	var entries []bson.Raw
	if err := cur.All(ctx, &entries); err != nil {
		return nil, err
	}
	add := func(e bson.Raw) {
		op, id := e.Lookup("op").StringValue(), e.Lookup("o", "_id")
		if op == "u" {
			if id = e.Lookup("o2", "_id"); e.Lookup("o", "_id").Type != 0 {
				op = "r"
			}
		}
		if e.Lookup("ns").StringValue() == ns && op != "c" && op != "n" {
			out = append(out, fmt.Sprint(id, " ", op))
		}
	}
	for _, e := range entries {
		ops, ok := e.Lookup("o", "applyOps").ArrayOK()
		if !ok {
			add(e)
			continue
		}
		inner, err := ops.Values()
		if err != nil {
			return nil, err
		}
		for _, one := range inner {
			add(one.Document())
		}
	}
	return out, nil
}
