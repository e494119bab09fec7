package test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func firstOf(filter bson.Raw) any {
	if filter == nil {
		return bson.D{}
	}
	return filter
}

// ended compares a collection of versions that the source has no more.
func (c *comparison) ended(ctx context.Context, e entry) error {
	cur, err := newestVersions(ctx, c.target, e)
	if err != nil {
		return err
	}
	left, _, err := rest(ctx, cur, cur.Next(ctx))
	if err == nil && len(left) > 0 {
		c.add(e.ns(), "%d documents have not ended, such as %s", len(left),
			strings.Join(first(slices.Sorted(maps.Keys(left))), ", "))
	}
	return err
}

// newestVersions has the server find the newest version of each document.
func newestVersions(ctx context.Context, client *mongo.Client, e entry) (*mongo.Cursor, error) {
	by := func(key string, v any) bson.D { return bson.D{{Key: key, Value: v}} }
	return client.Database(e.db).Collection(e.Name).Aggregate(ctx, bson.A{
		by("$sort", by("_id", -1)),
		by("$group", bson.D{{Key: "_id", Value: "$_id.k"},
			{Key: "doc", Value: by("$first", by("$ifNull", bson.A{"$doc", nil}))}}),
		by("$match", by("doc", by("$type", "object"))),
		by("$replaceRoot", by("newRoot", "$doc")),
		by("$sort", by("_id", 1)),
	}, options.Aggregate().SetAllowDiskUse(true))
}

// maxListed is how many documents of a collection are listed as different.
const maxListed = 3

// documents compares the documents pairwise, in order. Only where they begin
// to differ all are read into memory, to tell how.
func (c *comparison) documents(ctx context.Context, w, h entry) error {
	open := func(client *mongo.Client, e entry, filter bson.Raw) (*mongo.Cursor, error) {
		if stages := c.mapping(w.ns()); client == c.source && stages != nil {
			pipeline := bson.A{bson.D{{Key: "$match", Value: firstOf(filter)}},
				bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}}
			return client.Database(e.db).Collection(e.Name).
				Aggregate(ctx, append(pipeline, stages...), options.Aggregate().SetAllowDiskUse(true))
		}
		if client == c.target && c.history(w.ns()) {
			return newestVersions(ctx, client, e)
		}
		order := bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}
		if e.capped() {
			order = bson.E{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}
		}
		find := bson.D{{Key: "find", Value: e.Name}, order}
		if filter != nil {
			find = append(find, bson.E{Key: "filter", Value: filter})
		}
		return client.Database(e.db).RunCommandCursor(ctx, find)
	}
	ws, err := open(c.source, w, c.filter(w.ns()))
	if err != nil {
		return fmt.Errorf("documents of source %s: %w", w.ns(), err)
	}
	defer func() { _ = ws.Close(ctx) }()
	var left bson.Raw
	if field := c.marked(w.ns()); field != "" {
		if left, err = bson.Marshal(bson.D{{Key: field, Value: bson.D{{Key: "$exists", Value: false}}}}); err != nil {
			return err
		}
	}
	hs, err := open(c.target, h, left)
	if err != nil {
		return fmt.Errorf("documents of target %s: %w", h.ns(), err)
	}
	defer func() { _ = hs.Close(ctx) }()
	var more, moreToo bool
	n := 0
	for {
		more, moreToo = ws.Next(ctx), hs.Next(ctx)
		if err := firstError(ws.Err(), hs.Err()); err != nil {
			return fmt.Errorf("documents of %s: %w", w.ns(), err)
		}
		if !more && !moreToo {
			return nil
		}
		if !more || !moreToo || !bytes.Equal(ws.Current, hs.Current) {
			break
		}
		n++
	}
	want, wantOrder, err := rest(ctx, ws, more)
	if err != nil {
		return err
	}
	have, haveOrder, err := rest(ctx, hs, moreToo)
	if err != nil {
		return err
	}
	c.differing(w, n, want, have)
	if c.history(w.ns()) { // whose order is that of another collation
		return nil
	}
	if sameSet(wantOrder, haveOrder) && !slices.Equal(wantOrder, haveOrder) {
		c.add(w.ns(), "the order differs after %d documents: %s on the source, %s on the target",
			n, strings.Join(first(wantOrder), ", "), strings.Join(first(haveOrder), ", "))
	}
	return nil
}

// sameSet reports whether two lists hold the same: of documents that only one side
// has, differing has reported.
func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rest collects the documents from the cursor's current one on, if it has one,
// by _id.
func rest(ctx context.Context, cur *mongo.Cursor, more bool) (docs map[string]bson.Raw, order []string, err error) {
	docs = map[string]bson.Raw{}
	for ok := more; ok; ok = cur.Next(ctx) {
		id := cur.Current.Lookup("_id").String()
		docs[id] = bytes.Clone(cur.Current)
		order = append(order, id)
	}
	return docs, order, cur.Err()
}

func (c *comparison) differing(e entry, same int, want, have map[string]bson.Raw) {
	var missing, extra, changed []string
	for _, id := range slices.Sorted(maps.Keys(want)) {
		h, ok := have[id]
		switch {
		case !ok:
			missing = append(missing, id)
		case !bytes.Equal(h, want[id]):
			changed = append(changed, "\n"+firstDifference(want[id], h))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[id]; !ok {
			extra = append(extra, id)
		}
	}
	for _, x := range []struct {
		what string
		ids  []string
	}{{"not on the target", missing}, {"on the target alone", extra}, {"different", changed}} {
		if len(x.ids) > 0 {
			c.add(e.ns(), "%d documents are %s (the first %d are the same): %s", len(x.ids), x.what, same,
				strings.Join(first(x.ids), ", "))
		}
	}
}

func first(list []string) []string { return list[:min(len(list), maxListed)] }

// firstDifference shows two documents around the first byte that differs.
func firstDifference(want, have bson.Raw) string {
	at := 0
	for at < min(len(want), len(have)) && (at < 4 || want[at] == have[at]) { // the length comes first
		at++
	}
	show := func(doc bson.Raw) string {
		s := doc.String()
		if len(s) > 600 {
			s = s[:600] + "…"
		}
		lo, hi := max(0, min(at-16, len(doc))), min(at+16, len(doc))
		return fmt.Sprintf("%s (%d bytes, at %d: %s)", s, len(doc), at, hex.EncodeToString(doc[lo:hi]))
	}
	return "  source " + show(want) + "\n  target " + show(have)
}
