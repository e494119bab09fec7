package transform

import (
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

// TestTally: what each rule has seen in the copy and in the changes, and made of it.
func TestTally(t *testing.T) {
	rules := mustNew(t, Config{Filter: []string{`a.b={"n":{"$gte":2}}`},
		Fields: []string{`a.*={"rename":{"old":"new"},"convert":{"price":{"to":"int","otherwise":"fail"}}}`},
		Skip:   []string{"a.b=replace"}, SoftDelete: []string{"a.b=gone"}})
	counters := NewCounters(rules)
	doc := func(id, n int, more ...bson.E) bson.Raw {
		return kit.Raw(append(bson.D{{Key: "_id", Value: id}, {Key: "n", Value: n}}, more...))
	}
	keep, mapper := rules.Route("a.b").Keep(counters), rules.Route("a.b").Mapper(bson.Timestamp{}, counters)
	for _, d := range []bson.Raw{doc(1, 1), doc(2, 2), doc(3, 3, bson.E{Key: "old", Value: 1}),
		doc(4, 4, bson.E{Key: "price", Value: "free"})} {
		if keep(d) {
			before := []byte("before")
			_, _ = mapper(before, d)
		}
	}
	at := mongo.OpTime{TS: bson.Timestamp{T: 1}}
	b := &stream.Batch{Events: []stream.Event{
		{Kind: stream.Insert, NS: "a.b", Doc: doc(5, 5), Key: stream.Key{ID: idOf(5)}, At: at},
		{Kind: stream.Insert, NS: "a.b", Doc: doc(6, 1), Key: stream.Key{ID: idOf(6)}, At: at},
		{Kind: stream.Replace, NS: "a.b", Doc: doc(5, 6), Key: stream.Key{ID: idOf(5)}, At: at},
		{Kind: stream.Delete, NS: "a.b", Key: stream.Key{ID: idOf(5)}, At: at},
	}}
	if _, err := NewStage(rules, stream.Position{}, counters, nil).Batch(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	counters.Unread(rules.Route("a.b"))(700)
	filter, mapped, skip, soft := counters.List()[0], counters.Fields()[0], counters.Skips()[0], counters.Marks()[0]
	filter.Rule, mapped.Rule, skip.Rule, soft.Rule = "", "", "", ""
	for _, c := range []struct{ got, want any }{
		{filter, FilterCount{Seen: 7, Copied: 3, LeftOut: 1, Unread: 700, Kept: 2, Dropped: 1}},
		{mapped, FieldsCount{Seen: 4, Copied: 3, Changed: 1, Written: 1, Failed: 1}},
		{skip, SkipCount{Seen: 4, Kept: 3, Skipped: map[string]int64{"replace": 1}}},
		{soft, MarkCount{Marked: 1}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%+v\nwant %+v", c.got, c.want)
		}
	}
}
