package placing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// bed is a sharded target, and a source.
type bed struct {
	*testing.T
	lab      *sharded.Cluster // of the target
	source   *mongo.Cluster
	sharded  *origin.Sharded // behind source, if it is a router
	target   *mongo.Cluster
	database string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t, lab: sharded.ForTest(t,
		sharded.Options{Options: lab.Options{Topology: "sharded:2x1", Version: os.Getenv("MILLRACE_TEST_VERSION")},
			Routers: 1})}
	b.target = b.connect(b.lab.URI())
	return b
}

func (b *bed) connect(uri string) *mongo.Cluster {
	b.Helper()
	c := dial.Cluster(b, uri, mongo.Options{})
	return c
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// from is the bed with a source.
func (b *bed) from(t *testing.T, source *mongo.Cluster, sharded *origin.Sharded, database string) *bed {
	other := *b
	other.T, other.source, other.sharded, other.database = t, source, sharded, database
	return &other
}

func (b *bed) placer(job string, rules ...string) *Placer {
	b.Helper()
	r, err := ParseRules(rules)
	b.ok(err)
	return New(b.target, Options{Job: job, Source: &Source{Cluster: b.source, Shards: b.sharded, Rules: r},
		Log: slog.New(slog.NewTextHandler(b.Output(), nil))})
}

// create makes on the target what the source has of the bed's database.
func (b *bed) create(ctx context.Context, p *Placer, ours bool) error {
	colls, err := schema.List(ctx, b.source,
		schema.Scope{NS: func(ns string) bool { return strings.HasPrefix(ns, b.database+".") }})
	if err != nil {
		return err
	}
	rules, err := transform.New(transform.Config{})
	b.ok(err)
	target := schema.NewTarget(b.target, schema.TargetOptions{Job: p.o.Job, Sharding: p})
	make := target.Collections.Create
	if ours {
		make = target.Collections.CreateOurs
	}
	for _, c := range colls {
		if err := make(ctx, c, c.NS, rules); err != nil {
			return err
		}
	}
	return nil
}

// stand is how a collection of the target is sharded: its key, the balancer, and per
// chunk the owner.
func (b *bed) stand(name string) string {
	b.Helper()
	ns := b.database + "." + name
	all, err := schema.Entries(b.Context(), b.target, []string{ns})
	b.ok(err)
	e, ok := all[ns]
	if !ok {
		return "unsharded"
	}
	chunks, err := New(b.target, Options{}).chunks(b.Context(), e)
	b.ok(err)
	text := shardkey.Text(e.Key)
	if e.NoBalance != nil && *e.NoBalance {
		text += " off"
	}
	var owners []string
	for _, c := range chunks {
		owners = append(owners, c.Shard)
	}
	return text + " " + strings.Join(owners, ",")
}

func (b *bed) wants(name, want string) {
	b.Helper()
	if got := b.stand(name); got != want {
		b.Errorf("%s: %s, want %s", name, got, want)
	}
}

// shares are how many of the source's documents are in the ranges of each shard.
func (b *bed) shares(name string) map[string]int64 {
	b.Helper()
	ns := b.database + "." + name
	all, err := schema.Entries(b.Context(), b.target, []string{ns})
	b.ok(err)
	e := all[ns]
	chunks, err := New(b.target, Options{}).chunks(b.Context(), e)
	b.ok(err)
	shares := map[string]int64{}
	for _, c := range chunks {
		cur, err := b.source.Client.Database(b.database).Collection(name).Find(b.Context(), bson.D{},
			options.Find().SetMin(c.Min).SetMax(c.Max).SetHint(e.Key))
		b.ok(err)
		for cur.Next(b.Context()) {
			shares[c.Shard]++
		}
		b.ok(cur.Err())
	}
	return shares
}

func (b *bed) fill(name string, n int, doc func(i int) bson.D) {
	b.Helper()
	var docs []any
	for i := range n {
		docs = append(docs, doc(i))
	}
	_, err := b.source.Client.Database(b.database).Collection(name).InsertMany(b.Context(), docs)
	b.ok(err)
}

func (b *bed) command(c *mongo.Cluster, db string, cmd bson.D) {
	b.Helper()
	_, err := c.Command(b.Context(), db, cmd)
	b.ok(err)
}

func (b *bed) index(name string, keys bson.D, unique bool) {
	b.Helper()
	_, err := b.source.Client.Database(b.database).Collection(name).Indexes().CreateOne(b.Context(),
		driver.IndexModel{Keys: keys, Options: options.Index().SetUnique(unique)})
	b.ok(err)
}

// TestPlacing does all that one target suffices for.
func TestPlacing(t *testing.T) {
	b := newBed(t)
	set := b.connect(lab.ForTest(t, lab.Options{}).URI())
	for name, test := range map[string]func(*bed){"kinds": kinds, "interrupted": interrupted, "existing": existing,
		"balancer": balancer, "indexes": indexes, "changes": changes, "beside": beside} {
		t.Run(name, func(t *testing.T) { test(b.from(t, set, nil, name)) })
	}
	b.noCursors(set)
	t.Run("sharded", func(t *testing.T) {
		c := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:3x1"}, Routers: 1})
		router := b.connect(c.URI())
		s, err := shards.Open(t.Context(), router, shards.Options{URI: c.URI()})
		b.ok(err)
		t.Cleanup(s.Close)
		other := b.from(t, router, origin.NewSharded(s), "d")
		fromSharded(other, c)
		sharding(other, c)
		zoneJoins(b.from(t, router, other.sharded, "j"), c)
		zonesCome(b.from(t, router, other.sharded, "z"), c)
	})
}

// noCursors wants none left on a source: they keep shards from deleting orphans, and chunks from moving.
func (b *bed) noCursors(c *mongo.Cluster) {
	b.Helper()
	cur, err := c.Client.Database("admin").Aggregate(b.Context(), bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "type", Value: "idleCursor"}}}}})
	b.ok(err)
	var left []bson.M
	b.ok(cur.All(b.Context(), &left))
	for _, one := range left {
		b.Errorf("a cursor of %v is open: %v", one["ns"], one["cursor"])
	}
}

func kinds(b *bed) {
	b.fill("ranged", 5000, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i * i}} })
	b.fill("compound", 5000, func(i int) bson.D {
		return bson.D{{Key: "_id", Value: i}, {Key: "a", Value: bson.D{{Key: "b", Value: i % 20}}}, {Key: "h", Value: i}}
	})
	b.index("ranged", bson.D{{Key: "k", Value: 1}}, false)
	for _, name := range []string{"hashed", "first", "plain", "named", "empty"} {
		b.fill(name, 10, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i}} })
	}
	b.command(b.source, b.database, bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true},
		{Key: "size", Value: 4096}})
	b.command(b.source, b.database, bson.D{{Key: "create", Value: "folded"},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}}})
	b.command(b.source, b.database, bson.D{{Key: "delete", Value: "empty"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	rule := func(name, key string) string { return b.database + "." + name + "=" + key }
	p := b.placer("kinds", rule("ranged", "k:1"), rule("compound", "a.b:1,h:hashed"), rule("hashed", "_id:hashed"),
		rule("first", "x:hashed,_id:1"),
		rule("named", "none"), rule("empty", "x:1"), rule("folded", "x:1"))
	b.ok(b.create(b.Context(), p, true))
	b.wants("ranged", "k:1 off s0,s1,s0,s1")
	b.wants("plain", "unsharded")
	b.wants("named", "unsharded")
	b.wants("capped", "unsharded")
	for name, key := range map[string]string{"empty": "x:1 off ", "folded": "x:1 off "} {
		if got := b.stand(name); got != key+"s0" && got != key+"s1" {
			b.Errorf("%s: %s", name, got)
		}
	}
	for name, key := range map[string]string{"hashed": "_id:hashed off ", "first": "x:hashed,_id:1 off ",
		"compound": "a.b:1,h:hashed off "} {
		if got := b.stand(name); !strings.HasPrefix(got, key) || strings.Count(got, "s0") != 2+strings.Count(key, "s0") ||
			strings.Count(got, "s1") != 2 {
			b.Errorf("%s: %s", name, got)
		}
	}
	for shard, n := range b.shares("ranged") {
		if n < 2100 || n > 2900 {
			b.Errorf("%s gets %d of 5000 documents", shard, n)
		}
	}
}

// interrupted: at each step the job is broken off, and what comes of it is always the
// same.
func interrupted(b *bed) {
	b.fill("c", 3000, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}} })
	b.index("c", bson.D{{Key: "k", Value: 1}}, true)
	steps := 0
	for at := 1; ; at++ {
		ctx, cancel := context.WithCancel(b.Context())
		n := 0
		p := b.placer(fmt.Sprint("broken", at), b.database+".c=k:1")
		p.step = func(string) {
			if n++; n == at {
				cancel()
			}
		}
		err := b.create(ctx, p, true)
		done := n < at
		cancel()
		if done {
			b.ok(err)
			steps = n
		}
		again := b.placer(p.o.Job, b.database+".c=k:1")
		b.ok(b.create(b.Context(), again, true))
		b.wants("c", "k:1 off s0,s1,s0,s1")
		b.ok(again.Release(b.Context()))
		if got := b.stand("c"); got != "k:1 s0,s1,s0,s1" {
			b.Errorf("broken off at step %d of %d: %s", at, n, got)
		}
		b.command(b.target, b.database, bson.D{{Key: "drop", Value: "c"}})
		if done {
			break
		}
	}
	if steps < 8 {
		b.Errorf("%d steps", steps)
	}
}

// existing: what the target has stays as it is, with another key it is an error that
// names both.
func existing(b *bed) {
	for _, name := range []string{"same", "other", "plain"} {
		b.fill(name, 10, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i}} })
		b.command(b.target, b.database, bson.D{{Key: "create", Value: name}})
	}
	shard := func(name, field string) {
		b.command(b.target, "admin", bson.D{{Key: "shardCollection", Value: b.database + "." + name},
			{Key: "key", Value: bson.D{{Key: field, Value: 1}}}})
	}
	shard("same", "x")
	shard("other", "y")
	rules := []string{b.database + ".same=x:1", b.database + ".other=x:1", b.database + ".plain=x:1"}
	same, other := b.stand("same"), b.stand("other")
	b.ok(b.create(b.Context(), b.placer("merging", rules...), false))
	b.wants("same", same)
	b.wants("other", other)
	b.wants("plain", "unsharded")
	err := b.create(b.Context(), b.placer("ours", rules...), true)
	if err == nil || !strings.Contains(err.Error(), b.database+".other is sharded by y:1 on the target, not by x:1") {
		b.Error(err)
	}
	b.ok(b.placer("ours").Release(b.Context()))
	b.wants("same", same)
}

// balancer: it leaves alone what a job makes until that is released, also after a
// rename, and never forgets what it was told before.
func balancer(b *bed) {
	for _, name := range []string{"a", "b", "c"} {
		b.fill(name, 10, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}} })
	}
	rules := []string{b.database + ".a=_id:hashed", b.database + ".b=_id:hashed", b.database + ".c=_id:hashed"}
	p := b.placer("balancer", rules...)
	b.command(b.target, b.database, bson.D{{Key: "create", Value: "b"}})
	b.command(b.target, "admin", bson.D{{Key: "shardCollection", Value: b.database + ".b"},
		{Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	_, err := b.target.Config("collections").UpdateByID(b.Context(), b.database+".b",
		bson.D{{Key: "$set", Value: bson.D{{Key: "noBalance", Value: true}}}})
	b.ok(err)
	b.ok(b.create(b.Context(), p, true))
	off := func(name string) bool { return strings.Contains(b.stand(name), " off ") }
	if !off("a") || !off("b") || !off("c") {
		b.Errorf("%s, %s, %s", b.stand("a"), b.stand("b"), b.stand("c"))
	}
	b.command(b.target, "admin", bson.D{{Key: "renameCollection", Value: b.database + ".a"},
		{Key: "to", Value: b.database + ".renamed"}})
	b.ok(p.Move(b.Context(), b.database+".a", b.database+".renamed"))
	b.command(b.target, b.database, bson.D{{Key: "drop", Value: "c"}})
	b.command(b.target, "admin", bson.D{{Key: "shardCollection", Value: b.database + ".c"},
		{Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	_, err = b.target.Config("collections").UpdateByID(b.Context(), b.database+".c",
		bson.D{{Key: "$set", Value: bson.D{{Key: "noBalance", Value: true}}}})
	b.ok(err)
	b.ok(New(b.target, Options{Job: "balancer"}).ForgetAll(b.Context()))
	if off("renamed") || !off("b") || !off("c") { // c is somebody else's by now
		b.Errorf("%s, %s, %s", b.stand("renamed"), b.stand("b"), b.stand("c"))
	}
	n, err := p.stored().CountDocuments(b.Context(), bson.D{{Key: "_id.job", Value: "balancer"}})
	if b.ok(err); n != 0 {
		b.Errorf("%d notes stay", n)
	}
}

// indexes: a collection has the source's indexes, and no other.
func indexes(b *bed) {
	for _, name := range []string{"unique", "longer", "none"} {
		b.fill(name, 10, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i}} })
	}
	b.index("unique", bson.D{{Key: "x", Value: 1}}, true)
	b.index("longer", bson.D{{Key: "x", Value: 1}, {Key: "y", Value: -1}}, false)
	p := b.placer("indexes", b.database+".unique=x:1", b.database+".longer=x:1", b.database+".none=x:1")
	b.ok(b.create(b.Context(), p, true))
	names := func(name string) (all []string) {
		specs, err := b.target.Client.Database(b.database).Collection(name).Indexes().ListSpecifications(b.Context())
		b.ok(err)
		for _, s := range specs {
			all = append(all, s.Name)
		}
		slices.Sort(all)
		return all
	}
	equal(b.T, "unique", names("unique"), "[_id_ "+standInName+"]")
	equal(b.T, "longer", names("longer"), "[_id_ x_1_y_-1]")
	equal(b.T, "none", names("none"), "[_id_ x_1]")
	b.ok(p.Settle(b.Context()))
	equal(b.T, "not settled", names("unique"), "[_id_ "+standInName+"]")
	colls, err := schema.List(b.Context(), b.source,
		schema.Scope{NS: func(ns string) bool { return ns == b.database+".unique" }})
	b.ok(err)
	target := schema.NewTarget(b.target, schema.TargetOptions{Job: "indexes", Sharding: p})
	b.ok(target.Indexes.Build(b.Context(), b.database+".unique", colls[0].Indexes, schema.BeforeConsistent))
	b.ok(target.Indexes.BuildDeferred(b.Context()))
	b.ok(p.Settle(b.Context()))
	equal(b.T, "settled", names("unique"), "[_id_ x_1]")
	made, err := p.Made(b.Context())
	b.ok(err)
	rules, err := transform.New(transform.Config{Include: []string{b.database}})
	b.ok(err)
	diffs, err := schema.Diff(b.Context(), b.source, b.target, rules, schema.DiffOptions{Made: made})
	if b.ok(err); len(diffs) > 1 || len(diffs) == 1 && !strings.Contains(diffs[0].String(), "longer: index x_1_y_-1") {
		b.Error(diffs)
	}
}

// fromSharded: keys and ranges are the source's.
func fromSharded(b *bed, source *sharded.Cluster) {
	ctx := b.Context()
	b.ok(source.CreateDatabase(ctx, "d", source.ShardNames()[0]))
	k := func(k int) bson.D { return bson.D{{Key: "k", Value: k}} }
	for _, name := range []string{"many", "empty", "ruled", "unsharded"} {
		b.ok(source.ShardCollection(ctx, "d."+name, sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
		for i := range 11 {
			b.ok(source.Split(ctx, "d."+name, k((i+1)*100)))
		}
		b.ok(source.MoveChunk(ctx, "d."+name, k(150), source.ShardNames()[1]))
	}
	b.ok(source.ShardCollection(ctx, "d.hashed", sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: 6}))
	b.fill("plain", 10, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}} })
	b.fill("many", 1200, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}} })
	p := b.placer("sharded", "d.ruled=_id:hashed", "d.unsharded=none")
	b.ok(b.create(ctx, p, true))
	for _, name := range []string{"many", "empty"} {
		if got := b.stand(name); !strings.HasPrefix(got, "k:1 off ") || strings.Count(got, "s0") != 2 ||
			strings.Count(got, "s1") != 2 {
			b.Errorf("%s: %s", name, got)
		}
	}
	b.wants("plain", "unsharded")
	b.wants("unsharded", "unsharded")
	for _, name := range []string{"hashed", "ruled"} {
		if got := b.stand(name); !strings.HasPrefix(got, "_id:hashed off ") || strings.Count(got, "s0") != 2 ||
			strings.Count(got, "s1") != 2 {
			b.Errorf("%s: %s", name, got)
		}
	}
	e, _, err := p.entry(ctx, "d.many")
	b.ok(err)
	have, err := p.chunks(ctx, e)
	b.ok(err)
	for _, c := range have[1:] {
		if c.Min.Lookup("k").Int32()%100 != 0 {
			b.Errorf("%s begins no chunk of the source", c.Min)
		}
	}
}

// sharding: a collection that is being sharded counts as sharded from its creation on.
func sharding(b *bed, source *sharded.Cluster) {
	b.ok(source.CreateDatabase(b.Context(), "new", source.ShardNames()[1]))
	primary := b.sharded.Cluster().Shards[1].Cluster
	p := b.placer("sharding")
	for i := range 20 {
		name := fmt.Sprint("c", i)
		done := make(chan error, 1)
		go func() {
			_, err := b.source.Command(b.Context(), "admin", bson.D{{Key: "shardCollection", Value: "new." + name},
				{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
			done <- err
		}()
		var coll schema.Collection
		for coll.NS == "" {
			specs, err := primary.Client.Database("new").ListCollectionSpecifications(b.Context(),
				bson.D{{Key: "name", Value: name}})
			b.ok(err)
			if len(specs) > 0 {
				coll = schema.Collection{NS: "new." + name, Type: schema.TypeCollection, UUID: *specs[0].UUID}
			}
		}
		if i%2 == 0 { // a user who may not read what coordinators note
			if seen, err := operates(b.Context(), primary, coll.NS); err != nil || !seen {
				b.Logf("the operation is over: %v", err)
			}
		}
		desired, err := p.o.Source.Desired(b.Context(), coll)
		b.ok(err)
		if desired.Key == nil {
			b.Errorf("%s counts as unsharded", coll.NS)
		}
		b.ok(<-done)
	}
}

// changes: what users do to indexes of the source does not stop at the index on the
// shard key, without which a sharded collection cannot be.
func changes(b *bed) {
	ns := b.database + ".c"
	p := b.placer("changes", ns+"=x:1", b.database+".over=x:1")
	rules, err := transform.New(transform.Config{})
	b.ok(err)
	target := schema.NewTarget(b.target, schema.TargetOptions{Job: "changes", Sharding: p, Log: p.o.Log})
	raw := func(d bson.D) bson.Raw {
		r, err := bson.Marshal(d)
		b.ok(err)
		return r
	}
	names := schema.NewNames(nil)
	apply := func(what, want string, ch stream.Change) {
		b.Helper()
		_, err := target.Changes.Apply(b.Context(), ch, schema.ApplyOptions{Rules: rules, Names: names})
		if err != nil && want != "" {
			b.Errorf("%s: %v", what, err)
		}
		if want == "" && (err == nil || !strings.Contains(mongo.HintOf(err), "has to begin with its shard key")) {
			b.Errorf("%s: %v", what, err)
		}
		specs, err := b.target.Client.Database(b.database).Collection("c").Indexes().ListSpecifications(b.Context())
		b.ok(err)
		var all []string
		for _, s := range specs[min(1, len(specs)):] {
			all = append(all, s.Name)
		}
		slices.Sort(all)
		if got := strings.Join(all, " "); want != "" && want != "-" && got != want {
			b.Errorf("%s: the target has %s, want %s", what, got, want)
		}
	}
	index := func(name string, key bson.D, unique bool) []stream.Index {
		return []stream.Index{{Name: name,
			Spec: raw(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: key}, {Key: "name", Value: name},
				{Key: "unique", Value: unique}})}}
	}
	x := bson.D{{Key: "x", Value: 1}}
	hide := func(hidden bool) bson.Raw {
		return raw(bson.D{{Key: "index", Value: bson.D{{Key: "name", Value: "x_1"}, {Key: "hidden", Value: hidden}}}})
	}
	drop := func(name string) stream.Change {
		return stream.Change{Kind: stream.ChangeDropIndexes, NS: ns, Indexes: []stream.Index{{Name: name}}}
	}
	make := func(ix []stream.Index) stream.Change {
		return stream.Change{Kind: stream.ChangeCreateIndexes, NS: ns, Indexes: ix}
	}
	const in = standInName
	apply("create", "x_1", stream.Change{Kind: stream.ChangeCreate, NS: ns, Options: raw(bson.D{})})
	apply("the same", "x_1", make(index("x_1", x, false)))
	apply("hide", in+" x_1", stream.Change{Kind: stream.ChangeCollMod, NS: ns, Options: hide(true)})
	apply("show", in+" x_1", stream.Change{Kind: stream.ChangeCollMod, NS: ns, Options: hide(false)})
	apply("drop", in, drop("x_1"))
	apply("another name", "foo "+in, make(index("foo", x, false)))
	apply("a third", "bar "+in, make(index("bar", x, false)))
	apply("drop all", "bar "+in, drop("*"))
	apply("unique", "bar "+in+" x_1", make(index("x_1", x, true)))
	apply("drop all with a unique one", "bar "+in, drop("*"))
	apply("drop the collection", "-", stream.Change{Kind: stream.ChangeDrop, NS: ns})
	apply("create again", "x_1", stream.Change{Kind: stream.ChangeCreate, NS: ns, Options: raw(bson.D{})})
	apply("unique under the name", in+" x_1", make(index("x_1", x, true)))
	apply("drop unique", in, drop("x_1"))
	apply("does not fit", "", make(index("y_1", bson.D{{Key: "y", Value: 1}}, true)))
}

// beside: an index that clashes with others than the one on the shard key takes none
// away, nor does one take those on the shard key away that are not in its way.
func beside(b *bed) {
	b.fill("c", 10, func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}} })
	b.index("c", bson.D{{Key: "k", Value: 1}}, false)
	p := b.placer("beside", b.database+".c=k:1")
	b.ok(b.create(b.Context(), p, true))
	target := schema.NewTarget(b.target, schema.TargetOptions{Job: "beside", Sharding: p, Log: p.o.Log})
	index := func(name, field string, direction int, options ...bson.E) stream.Index {
		spec, err := bson.Marshal(append(bson.D{{Key: "v", Value: 2},
			{Key: "key", Value: bson.D{{Key: field, Value: direction}}}, {Key: "name", Value: name}}, options...))
		b.ok(err)
		return stream.Index{Name: name, Spec: spec}
	}
	build := func(what, want string, fails bool, all ...stream.Index) {
		b.Helper()
		err := target.Indexes.Build(b.Context(), b.database+".c", all, schema.Consistent)
		if fails != (mongo.IsCode(err, mongo.CodeIndexOptionsConflict) || mongo.IsCode(err, mongo.CodeIndexKeySpecsClash)) ||
			!fails && err != nil {
			b.Errorf("%s: %v", what, err)
		}
		specs, err := b.target.Client.Database(b.database).Collection("c").Indexes().ListSpecifications(b.Context())
		b.ok(err)
		var have []string
		for _, s := range specs {
			have = append(have, s.Name)
		}
		slices.Sort(have)
		equal(b.T, what, have, want)
	}
	same := index("k_1", "k", 1)
	german := index("k_de", "k", 1, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}})
	some := index("k_some", "k", 1, bson.E{Key: "partialFilterExpression",
		Value: bson.D{{Key: "k", Value: bson.D{{Key: "$gt", Value: 3}}}}})
	back := index("k_-1", "k", -1)
	all := "[_id_ b_1 k_-1 k_1 k_de k_some]"
	build("all", all, false, same, index("b_1", "b", 1), german, some, back)
	build("another of the name", all, true, index("b_1", "c", 1))
	build("another of the keys", all, true, index("other", "b", 1))
	build("beside what is there", all, true, same, index("b_1", "c", 1))
	build("unlike one that is not plain", all, true, index("k_de", "k", 1,
		bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}}))
	build("in the way", "[_id_ b_1 foo k_-1 k_de k_some "+standInName+"]", false, index("foo", "k", 1))
}
