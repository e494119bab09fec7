package schema

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestOmissions: what no job brings to a target is listed, if the rules choose it.
func TestOmissions(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	if !src.Info.Version.AtLeast(5, 0) {
		t.Skip("a server without time series")
	}
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{Include: []string{db, mongo.StateDB + ".mine*"},
		Exclude: []string{db + ".excluded"}}), db)
	r.run(db, []string{seed, `{"create":"v","viewOn":"c","pipeline":[]}`,
		`{"create":"series","timeseries":{"timeField":"t"}}`,
		`{"create":"lost","timeseries":{"timeField":"t"}}`, `{"create":"excluded","timeseries":{"timeField":"t"}}`,
		`{"create":"system.users"}`,
		`admin {"applyOps":[{"op":"d","ns":"@.system.views","o":{"_id":"@.lost"}},{"op":"d","ns":"@.system.views","o":{"_id":"@.excluded"}}]}`})
	do(t, src, mongo.StateDB, `{"insert":"mine","documents":[{"_id":1}]}`)
	do(t, src, mongo.StateDB, `{"insert":"jobs","documents":[{"_id":"of another job"}]}`)
	t.Cleanup(func() { _ = src.Client.Database(mongo.StateDB).Collection("mine").Drop(t.Context()) })
	list, err := Omissions(t.Context(), src, r.rules)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range list {
		got = append(got, o.NS)
	}
	want := []string{mongo.StateDB + ".mine", db + ".system.buckets.lost", db + ".system.users"}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%v, want %v", list, want)
	}
}

func opened(t *testing.T, uri string) *mongo.Cluster {
	return dial.Cluster(t, uri, mongo.Options{AppName: "millrace-test"})
}

// TestUnreadableView: a view that the server cannot read keeps it from listing anything of
// the database, and is named.
func TestUnreadableView(t *testing.T) {
	t.Parallel()
	c := opened(t, lab.ForTest(t, lab.Options{}).URI())
	for _, cmd := range []string{seed, `{"create":"v","viewOn":"c","pipeline":[]}`,
		`admin {"applyOps":[{"op":"i","ns":"@.system.views","o":{"_id":"@.broken","viewOn":"c","pipeline":5}}]}`} {
		do(t, c, "shop", cmd)
	}
	_, err := List(t.Context(), c, scopeOf(newRules(t, transform.Config{}), "shop"))
	if err == nil || !strings.Contains(err.Error(), "unreadable view shop.broken:") || mongo.HintOf(err) == "" {
		t.Errorf("%v, hint %q", err, mongo.HintOf(err))
	}
}

// TestPartialIndexes: an index that a shard lacks is listed with that shard.
func TestPartialIndexes(t *testing.T) {
	t.Parallel()
	l := sharded.ForTest(t, sharded.Options{Routers: 1})
	c := opened(t, l.URI())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(t, c, "p", `{"insert":"c","documents":[{"_id":1},{"_id":-1}]}`)
	must(l.ShardCollection(t.Context(), "p.c", sharded.Sharding{Key: bson.D{{Key: "_id", Value: 1}}}))
	must(l.Split(t.Context(), "p.c", bson.D{{Key: "_id", Value: 0}}))
	names := l.ShardNames()
	must(l.MoveChunk(t.Context(), "p.c", bson.D{{Key: "_id", Value: -1}}, names[0]))
	must(l.MoveChunk(t.Context(), "p.c", bson.D{{Key: "_id", Value: 1}}, names[1]))
	do(t, c, "p", `{"createIndexes":"c","indexes":[{"key":{"all":1},"name":"everywhere"}]}`)
	one, err := l.Direct(names[1])
	must(err)
	must(one.Database("p").RunCommand(t.Context(),
		js(t, `{"createIndexes":"c","indexes":[{"key":{"x":1},"name":"partly"}]}`)).Err())
	list, err := PartialIndexes(t.Context(), c, func(ns string) bool { return ns == "p.c" })
	if err != nil || len(list) != 1 || !strings.Contains(list[0].String(),
		"p.c: the index partly exists on some shards only, not on "+names[0]) {
		t.Errorf("%v, %v", list, err)
	}
}
