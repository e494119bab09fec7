package verify

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestDocumentsOfAnotherCollection: single documents are compared in the collection in
// which they were found, whatever has its name before the comparison or during it.
func TestDocumentsOfAnotherCollection(t *testing.T) {
	src, dst := cluster(t, "6.0", "rs:1"), cluster(t, "5.0", "rs:1")
	db := "documents" + bson.NewObjectID().Hex()
	for _, c := range []*mongo.Cluster{src, dst} {
		t.Cleanup(func() { _ = c.Client.Database(db).Drop(context.Background()) })
		for _, name := range []string{"c", "other"} {
			insert(t, c, db+"."+name, kit.Raw(bson.D{{Key: "_id", Value: 1}}),
				kit.Raw(bson.D{{Key: "_id", Value: 2}, {Key: "of", Value: c.Info.Version.String()}}))
		}
	}
	insert(t, dst, db+".extra", kit.Raw(bson.D{{Key: "_id", Value: 1}}))
	rules, err := transform.New(transform.Config{Include: []string{db + ".*"}})
	if err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) {
		t.Helper()
		if _, err := src.Command(t.Context(), "admin", bson.D{{Key: "renameCollection", Value: db + "." + from},
			{Key: "to", Value: db + "." + to}}); err != nil {
			t.Error(err)
		}
	}
	compare := func(o Options) (*Report, error) {
		o.Online = true
		o.Recheck.For, o.Recheck.Quiet, o.Recheck.Every = time.Second, 200*time.Millisecond, 20*time.Millisecond
		return New(src, dst, o).compareClusters(t.Context(), rules, nil)
	}
	uuids := map[string]bson.Binary{}
	if r, err := compare(Options{Found: func(d Difference, _, _ [][]byte) { uuids[d.NS] = d.UUID }}); err != nil ||
		len(uuids) != 3 || len(uuids[db+".extra"].Data) != 0 {
		t.Fatalf("%+v, %v: %x", r, err, uuids)
	}
	of := func(ns string, id int32) Options {
		kind, value, err := bson.MarshalValue(id)
		if err != nil {
			t.Fatal(err)
		}
		return Options{Documents: map[string]Documents{db + "." + ns: {UUID: uuids[db+"."+ns],
			IDs: []bson.RawValue{{Type: kind, Value: value}}}}}
	}
	for what, want := range map[string]struct {
		of    Options
		count int64
	}{"same": {of("c", 1), 0}, "different": {of("c", 2), 1}, "extra": {of("extra", 1), 1}} {
		if r, err := compare(want.of); err != nil || r.Count != want.count {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	rejected := func(what string, o Options, want string) {
		t.Helper()
		if r, err := compare(o); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(mongo.HintOf(err), "verify again") {
			t.Errorf("%s: %+v, %v, want %q", what, r, err, want)
		}
	}
	during := of("c", 2)
	var once sync.Once
	during.Recheck.Hold = func() bool {
		once.Do(func() { rename("c", "moved"); rename("other", "c") })
		return false
	}
	rejected("during", during, "another collection")
	rejected("before", of("c", 1), "another collection")
	rejected("gone", of("other", 1), "no collection of that name")
	rename("moved", "extra")
	rejected("new", of("extra", 1), "not the one in which they were found")
	gone := of("c", 1)
	for _, c := range []*mongo.Cluster{src, dst} {
		if err := c.Client.Database(db).Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rejected("all gone", gone, db+".c: the source has no collection of that name")
}
