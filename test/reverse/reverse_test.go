// Package reverse_test goes there and back: a job cuts over, another one leads it back, and a
// third one goes there again, while users write and change schemas, and jobs are killed.
package reverse_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// side is a cluster with a client of it.
type side struct {
	uri string
	*driver.Client
}

// bed has two clusters, between which jobs go there and back.
type bed struct {
	*testing.T
	bin      string
	old, new side
	names    []string // rules of names of the first job, as flags
	fields   []string // and of fields
	back     []string // and of the way back
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) side(uri string) side { return side{uri, kit.Client(b.T, uri)} }

func (s side) do(t *testing.T, db, command string) {
	t.Helper()
	var cmd bson.D
	err := bson.UnmarshalExtJSON([]byte(command), false, &cmd)
	if err == nil {
		err = s.Database(db).RunCommand(t.Context(), cmd).Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// run starts a job and waits until it follows.
func (b *bed) run(command, name string, to side, args ...string) *test.Process {
	b.Helper()
	p := test.Start(b.T, b.bin, append([]string{command, "--log-level", "debug"}, args...)...)
	p.AwaitPhase(to.Client, name, "following")
	return p
}

// original are the sides of a job as reverse takes them.
func original(from, to side) []string { return []string{"--source", from.uri, "--target", to.uri} }

// cutOver finalizes a job.
func (b *bed) cutOver(p *test.Process) {
	b.Helper()
	b.ok(p.Finalize(b.Context()))
	b.ok(p.Wait(waitLimit))
}

// waitLimit bounds the wait for the end of a command.
const waitLimit = 4 * time.Minute

// same wants nothing to differ.
func (b *bed) same(from, to side, rules []string) {
	b.Helper()
	args := append([]string{"verify", "--recheck-for", "20s"}, original(from, to)...)
	p := test.Start(b.T, b.bin, append(args, rules...)...)
	if err := p.Wait(waitLimit); err != nil {
		b.Fatalf("verify: %v\n%s", err, p.Output())
	}
}

// killed starts a job that leads back, kills it and starts it again.
func (b *bed) killed(name string, from, to side, args ...string) *test.Process {
	b.Helper()
	args = append(args, original(to, from)...)
	p := test.Start(b.T, b.bin, append([]string{"reverse"}, args...)...)
	p.AwaitPhase(to.Client, name, "overlap")
	p.Kill()
	return b.run("reverse", name, to, args...)
}

// refused wants a command to end with exit code 2 and a text.
func (b *bed) refused(want string, args ...string) {
	b.Helper()
	p := test.Start(b.T, b.bin, args...)
	<-p.Done()
	if p.ExitCode() != 2 || !strings.Contains(p.Output(), want) {
		b.Errorf("%v ended with %d, want %s:\n%s", args, p.ExitCode(), want, p.Output())
	}
}

// TestReplicaSets: with renamed databases, collections and fields, schema changes after the
// cut-over, a transaction over it, and jobs that are killed.
func TestReplicaSets(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, bin: test.BuildMillrace(t), names: []string{"--include", "shop,crm.*", "--rename", "shop=store",
		"--rename", "crm.people=crm.persons"},
		fields: []string{"--fields", `shop.orders={"rename":{"tel":"fax","fax":"tel"}}`},
		back: []string{"--include", "store.*,crm.*", "--exclude", "crm.people", "--rename", "store=shop", "--rename",
			"crm.persons=crm.people", "--fields", `store.orders={"rename":{"tel":"fax","fax":"tel"}}`}}
	b.old, b.new = b.side(lab.ForTest(t, lab.Options{}).URI()), b.side(lab.ForTest(t, lab.Options{}).URI())
	shop := b.old.Database("shop")
	insert(t, shop, "orders", 0, 300)
	insert(t, shop, "gone", 0, 10)
	insert(t, shop, "moved", 0, 10)
	insert(t, b.old.Database("crm"), "people", 0, 50)
	b.old.do(t, "shop", `{"create":"log","capped":true,"size":65536,"max":20}`)
	insert(t, shop, "log", 0, 30)
	b.old.do(t, "shop", `{"createIndexes":"moved","indexes":[{"key":{"n":1},"name":"n","unique":true}]}`)
	b.old.do(t, "shop", `{"createIndexes":"gone","indexes":[{"key":{"at":1},"name":"at","expireAfterSeconds":100000}]}`)

	there := append(append(original(b.old, b.new), b.names...), b.fields...)
	p := b.run("sync", "shop", b.new, append(there, "--job", "shop")...)
	b.refused("ends when it is finalized", append([]string{"reverse", "--job", "shop", "--dry-run"},
		original(b.old, b.new)...)...)
	commit := straddling(t, b.new, "store")
	b.cutOver(p)
	b.same(b.old, b.new, append(b.names, b.fields...))
	commit()

	b.changes(b.new.Database("store"), b.new)
	insert(t, b.new.Database("crm"), "persons", 50, 60)
	p = b.killed("shop-back", b.new, b.old, "--job", "shop")
	insert(t, b.new.Database("store"), "later", 0, 20)
	update(t, b.new.Database("store"), "orders", 100)
	b.cutOver(p)
	b.same(b.new, b.old, b.back)
	over := bson.D{{Key: "_id", Value: bson.D{{Key: "$type", Value: "string"}}}}
	if n, err := shop.Collection("orders").CountDocuments(t.Context(), over); err != nil || n != 2 {
		t.Errorf("of the transaction over the cut-over %d documents came back: %v", n, err)
	}

	insert(t, shop, "orders", 1000, 1100) // and there again
	b.old.do(t, "shop", `{"drop":"later"}`)
	p = b.killed("shop-back2", b.old, b.new, "--job", "shop-back")
	update(t, shop, "orders", 50)
	b.cutOver(p)
	b.same(b.old, b.new, append(b.names, b.fields...))
}

// changes are what users do after the cut-over.
func (b *bed) changes(db *driver.Database, on side) {
	t := b.T
	t.Helper()
	insert(t, db, "orders", 300, 400)
	update(t, db, "orders", 200)
	_, err := db.Collection("orders").DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 20}}}})
	b.ok(err)
	insert(t, db, "log", 30, 45)
	on.do(t, db.Name(), `{"createIndexes":"orders","indexes":[{"key":{"n":1},"name":"n"}]}`)
	on.do(t, db.Name(), `{"drop":"gone"}`)
	insert(t, db, "gone", 5, 15)
	on.do(t, "admin", fmt.Sprintf(`{"renameCollection":"%[1]s.moved","to":"%[1]s.elsewhere"}`, db.Name()))
	insert(t, db, "moved", 100, 110)
	insert(t, db, "elsewhere", 10, 20)
	insert(t, db, "made", 0, 10)
	on.do(t, db.Name(), `{"createIndexes":"made","indexes":[{"key":{"n":1},"name":"n","unique":true}]}`)
	on.do(t, db.Name(), `{"collMod":"made","validator":{"n":{"$exists":true}}}`)
}

func insert(t *testing.T, db *driver.Database, coll string, from, to int) {
	t.Helper()
	var docs []any
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i}, {Key: "tel", Value: fmt.Sprint("t", i)},
			{Key: "fax", Value: i * 2}, {Key: "at", Value: bson.NewDateTimeFromTime(bson.NewObjectID().Timestamp())}})
	}
	if _, err := db.Collection(coll).InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

func update(t *testing.T, db *driver.Database, coll string, below int) {
	t.Helper()
	_, err := db.Collection(coll).UpdateMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: below}}}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "$set", Value: bson.D{{Key: "tel", Value: "new"}}}})
	if err != nil {
		t.Fatal(err)
	}
}

// straddling begins a transaction, which commit ends.
func straddling(t *testing.T, on side, db string) (commit func()) {
	t.Helper()
	coll := on.Database(db).Collection("orders")
	s, err := on.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	ctx := driver.NewSessionContext(t.Context(), s)
	docs := []any{bson.D{{Key: "_id", Value: "over"}}, bson.D{{Key: "_id", Value: "over2"}}}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := s.CommitTransaction(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.EndSession(context.Background())
	}
}

// TestLosses: what cannot be inverted, and what was written to the old cluster, refuses until it
// is accepted by name. Another job of those clusters is none to reverse.
func TestLosses(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, bin: test.BuildMillrace(t)}
	b.old, b.new = b.side(lab.ForTest(t, lab.Options{}).URI()), b.side(lab.ForTest(t, lab.Options{}).URI())
	insert(t, b.old.Database("shop"), "orders", 0, 20)
	// Also where an older version has finalized, which stored the position alone.
	there := append(original(b.old, b.new), "--job", "shop", "--fields", `shop.orders={"drop":["tel"]}`, "--filter",
		`shop.orders={"n":{"$lt":10}}`)
	b.cutOver(b.run("sync", "shop", b.new, there...))
	b.ok(b.new.Database("millrace").Collection("waysback").Drop(t.Context()))
	reverse := append([]string{"reverse", "--job", "shop"}, original(b.old, b.new)...)
	watch := test.Start(t, b.bin, append(reverse, "--watch")...)
	kit.Until(t, "the way back is watched", func() bool {
		return strings.Contains(watch.Output(), "the way back is open")
	})
	watch.Kill()
	b.refused("loss: drop", reverse...)
	b.refused("loss: filter", append(reverse, "--accept-loss", "drop", "--dry-run")...)
	b.refused(`"other" is not a loss`, append(reverse, "--accept-loss", "other")...)
	b.refused("no such job", append([]string{"reverse", "--job", "other"}, original(b.old, b.new)...)...)
	b.refused("other clusters", "sync", "--job", "x", "--mode", "incremental", "--start-at", "job:shop", "--source",
		b.new.uri, "--target", lab.ForTest(t, lab.Options{}).URI())
	accepted := []string{"--accept-loss", "drop,filter"}
	insert(t, b.old.Database("shop"), "orders", 90, 91)
	b.refused("loss: target-changes", append(reverse, accepted...)...)
	accepted[1] += ",target-changes"
	insert(t, b.new.Database("shop"), "orders", 100, 110)
	update(t, b.new.Database("shop"), "orders", 5)
	p := b.run("reverse", "shop-back", b.old, append(reverse[1:], accepted...)...)
	b.cutOver(p)
	if n, err := b.old.Database("shop").Collection("orders").CountDocuments(t.Context(), bson.D{}); err != nil || n != 31 {
		t.Errorf("the old cluster has %d documents: %v", n, err)
	}
	b.refused("job shop-back was finalized at", append(reverse, "--restart", "--accept-loss",
		"drop,filter", "--dry-run")...)
	again := test.Start(t, b.bin, append(reverse, append(accepted, "--restart", "--dry-run")...)...)
	b.ok(again.Wait(waitLimit))
}

// TestShards: between sharded clusters, whose chunks move, with transactions over shards.
func TestShards(t *testing.T) {
	b := &bed{T: t, bin: test.BuildMillrace(t), names: []string{"--include", "d.*"}, back: []string{"--include", "d.*"}}
	labs := map[*side]*sharded.Cluster{}
	for _, s := range []*side{&b.old, &b.new} {
		labs[s] = sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1",
			SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}, Routers: 1})
		*s = b.side(labs[s].URI())
	}
	c := labs[&b.old]
	b.ok(c.CreateDatabase(t.Context(), "d", c.ShardNames()[0]))
	b.ok(c.ShardCollection(t.Context(), "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(c.Split(t.Context(), "d.ranged", bson.D{{Key: "k", Value: 300}}))
	b.ok(c.MoveChunk(t.Context(), "d.ranged", bson.D{{Key: "k", Value: 300}}, c.ShardNames()[1]))
	hashed := sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 4}
	b.ok(c.ShardCollection(t.Context(), "d.hashed", hashed))
	b.old.do(t, "d", `{"create":"plain"}`)
	seed := testseed.Of(t)
	write := func(on side, n int) {
		t.Helper()
		w := load.New(on.Client, "d", seed, n)
		for range 150 {
			b.ok(w.Step(t.Context()))
		}
	}
	write(b.old, 0)
	p := b.run("sync", "d", b.new, append(append(original(b.old, b.new), b.names...), "--job", "d")...)
	write(b.old, 1)
	b.cutOver(p)
	b.same(b.old, b.new, b.names)

	to := labs[&b.new]
	write(b.new, 2)
	b.ok(to.MoveChunk(t.Context(), "d.ranged", bson.D{{Key: "k", Value: 10}}, to.ShardNames()[1]))
	b.new.do(t, "d", `{"createIndexes":"ranged","indexes":[{"key":{"n":1},"name":"n"}]}`)
	b.new.do(t, "d", `{"drop":"plain"}`)
	b.new.do(t, "d", `{"create":"plain"}`)
	write(b.new, 3)
	p = b.killed("d-back", b.new, b.old, "--job", "d")
	write(b.new, 4)
	b.ok(to.MoveChunk(t.Context(), "d.ranged", bson.D{{Key: "k", Value: 10}}, to.ShardNames()[0]))
	b.cutOver(p)
	b.same(b.new, b.old, b.back)

	write(b.old, 5)
	p = b.run("reverse", "d-back2", b.new, append(original(b.new, b.old), "--job", "d-back")...)
	write(b.old, 6)
	b.cutOver(p)
	b.same(b.old, b.new, b.names)
}
