package seed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// splitter does to a source what may begin before the position of the files and end after it.
type splitter struct {
	t      *testing.T
	client *driver.Client
	db     *driver.Database
}

func newSplitter(m *migration) *splitter {
	m.t.Helper()
	c := kit.Client(m.t, m.set.URI())
	s := &splitter{t: m.t, client: c, db: c.Database("split")}
	for name, pad := range map[string]int{"large": 10, "prepared": 10, "retried": 10, "built": 100, "unbuilt": 100,
		"expiring": 100, "from": 9000} {
		s.fill(name, pad)
	}
	return s
}

// splitDocs is how many documents the collections have: those of from need two batches of $out.
const splitDocs = 2500

func (s *splitter) fill(name string, pad int) {
	s.t.Helper()
	var docs []any
	for i := range splitDocs {
		docs = append(docs, kit.D("_id", i, "n", i, "half", i/2, "at", bson.DateTime(1), "pad", strings.Repeat("x", pad)))
	}
	_, err := s.db.Collection(name).InsertMany(s.t.Context(), docs)
	must(s.t, err)
}

func (s *splitter) failPoint(name string, mode any) {
	s.t.Helper()
	must(s.t, s.client.Database("admin").
		RunCommand(s.t.Context(), kit.D("configureFailPoint", name, "mode", mode)).Err())
}

// transaction runs do in a transaction, which end commits or aborts. With prepare it is prepared before.
func (s *splitter) transaction(ctx context.Context, prepare bool,
	do func(context.Context) error) (end func(context.Context, bool) error, err error) {
	session, err := s.client.StartSession()
	if err != nil {
		return nil, err
	}
	if err := session.StartTransaction(); err != nil {
		return nil, err
	}
	within := func(ctx context.Context) context.Context { return driver.NewSessionContext(ctx, session) }
	admin := s.client.Database("admin")
	if err = do(within(ctx)); err == nil && prepare {
		var r struct {
			TS bson.Timestamp `bson:"prepareTimestamp"`
		}
		err = admin.RunCommand(within(ctx), kit.D("prepareTransaction", 1, "writeConcern", kit.D("w", "majority"))).Decode(&r)
		end = func(ctx context.Context, commit bool) error {
			defer session.EndSession(ctx)
			if !commit {
				return session.AbortTransaction(within(ctx))
			}
			return admin.RunCommand(within(ctx), kit.D("commitTransaction", 1, "commitTimestamp", r.TS)).Err()
		}
	} else {
		end = func(ctx context.Context, commit bool) error {
			defer session.EndSession(ctx)
			if !commit {
				return session.AbortTransaction(ctx)
			}
			return session.CommitTransaction(ctx)
		}
	}
	if err != nil {
		session.EndSession(ctx)
	}
	return end, err
}

// larger is a transaction of several oplog entries.
func (s *splitter) larger(coll string, from int) func(context.Context) error {
	return func(ctx context.Context) error {
		for i := range 5 {
			doc := kit.D("_id", from+i, "pad", strings.Repeat("y", 5<<20))
			if _, err := s.db.Collection(coll).ReplaceOne(ctx, doc[:1], doc, options.Replace().SetUpsert(true)); err != nil {
				return err
			}
		}
		_, err := s.db.Collection(coll).UpdateMany(ctx, kit.D("_id", kit.D("$lt", 100)), kit.D("$inc", kit.D("txn", 1)))
		return err
	}
}

func (s *splitter) out(ctx context.Context) error {
	c, err := s.db.Collection("from").Aggregate(ctx, bson.A{kit.D("$out", "out")})
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// staged reports that $out has written a part of its documents.
func (s *splitter) staged() bool {
	names, err := s.db.ListCollectionNames(s.t.Context(), kit.D("name", bson.Regex{Pattern: `^tmp\.agg_out`}))
	must(s.t, err)
	if len(names) == 0 {
		return false
	}
	n, err := s.db.Collection(names[0]).EstimatedDocumentCount(s.t.Context())
	must(s.t, err)
	return n > 0
}

func (s *splitter) index(ctx context.Context, coll, field string, o *options.IndexOptionsBuilder) error {
	_, err := s.db.Collection(coll).Indexes().
		CreateOne(ctx, driver.IndexModel{Keys: kit.D(field, 1), Options: o})
	return err
}

// TestMigrationByFilesSplit: transactions that are prepared, a $out and index builds begin before the position of the
// files, and end after it.
func TestMigrationByFilesSplit(t *testing.T) {
	t.Parallel()
	m := newMigrationOf(newGroundOf(t, lab.Options{Topology: "rs:2", Version: "6.0", TestCommands: true,
		ElectionTimeout: time.Minute}), 2)
	s := newSplitter(m)
	commit, err := s.transaction(t.Context(), true, s.larger("large", 10_000))
	must(t, err)
	abort, err := s.transaction(t.Context(), true, s.larger("prepared", 10_000))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	const hangOut, hangBuild = "hangWhileBuildingDocumentSourceOutBatch", "hangIndexBuildBeforeCommit"
	s.failPoint(hangOut, kit.D("skip", splitDocs*9/10))
	wg.Go(func() {
		if err := s.out(ctx); err != nil {
			t.Errorf("$out: %v", err)
		}
	})
	kit.Until(t, "$out has written documents", s.staged)
	s.failPoint(hangBuild, "alwaysOn")
	building := make(chan struct{})
	m.beforeLock(func() { // a lock waits for earlier builds
		defer close(building)
		for coll, o := range map[string]*options.IndexOptionsBuilder{"built": options.Index(),
			"unbuilt": options.Index().SetUnique(true), "expiring": options.Index().SetExpireAfterSeconds(3600)} {
			field := map[string]string{"built": "n", "unbuilt": "half", "expiring": "at"}[coll]
			wg.Go(func() {
				if err := s.index(ctx, coll, field, o); (err != nil) != (coll == "unbuilt") {
					t.Errorf("index of %s: %v", coll, err)
				}
			})
		}
		// One that waits for its end is not always among the current operations.
		kit.Until(t, "all members have voted for the indexes", func() bool {
			n, err := s.client.Database("config").Collection("system.indexBuilds").
				CountDocuments(ctx, kit.D("commitReadyMembers", kit.D("$size", 2)))
			return err == nil && n == 3
		})
	})
	m.start("1GB")
	m.begin()
	m.following()
	<-building
	must(t, commit(t.Context(), true))
	must(t, abort(t.Context(), false))
	s.failPoint(hangOut, "off")
	s.failPoint(hangBuild, "off")
	wg.Wait()
	m.finalized(test.CompareOptions{})
	m.everywhere("split")
}

// beforeLock has the agent reach the member by a proxy, and calls do once, before the member gets the lock command.
func (m *migration) beforeLock(do func()) {
	m.t.Helper()
	p := lab.ProxyForTest(m.t, m.member.Host())
	var once sync.Once
	p.Tap(func() (sent, received func([]byte)) {
		return func(b []byte) {
			if bytes.Contains(b, []byte("\x10fsync\x00")) && bytes.Contains(b, []byte("\x08lock\x00")) {
				once.Do(do)
			}
		}, func([]byte) {}
	})
	m.proxy = p.Addr()
}

// TestMigrationByFilesSplitAtRandom migrates a source again and again, while it is written to in all ways that take
// several oplog entries.
func TestMigrationByFilesSplitAtRandom(t *testing.T) {
	lab.Nightly(t)
	seed := testseed.Of(t)
	g := newGroundOf(t, lab.Options{Topology: "rs:3", Version: "6.0", TestCommands: true, ElectionTimeout: time.Minute})
	var s *splitter
	for round := range testseed.Rounds(t, 10) {
		g := *g
		g.port = freePort(t)
		m := newMigrationOf(&g, 1)
		if s == nil {
			s = newSplitter(m)
			test.LoadChurn(t, s.client.Database("churn"))
		}
		churn := test.StartChurn(t, s.client.Database("churn"), test.ChurnOptions{Seed: seed + uint64(round),
			SchemaEvery: 50 * time.Millisecond, Pause: 5 * time.Millisecond, Expected: elected})
		stop := s.start(rand.New(rand.NewPCG(seed, uint64(round))))
		m.start("1GB")
		pause(rand.New(rand.NewPCG(seed, uint64(round))), 2000)
		m.begin()
		m.following()
		churn.Stop()
		t.Logf("round %d: %s; %d operations", round, stop(), churn.Operations())
		m.finalized(test.CompareOptions{})
		m.source.Kill()
		for _, h := range m.hosts {
			m.killMember(h)
		}
		if t.Failed() {
			return
		}
	}
}

// work is what a writer does again and again.
type work struct {
	name string
	do   func(ctx context.Context, r *rand.Rand, n int) error
	done int
}

// start starts writers. stop ends them and returns how often each has done its work.
func (s *splitter) start(r *rand.Rand) (stop func() string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	works := s.works()
	for i := range works {
		w, own := &works[i], rand.New(rand.NewPCG(r.Uint64(), 1))
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				err := w.do(context.WithoutCancel(ctx), own, n)
				_, refused := errors.AsType[driver.CommandError](err) // as for another writer's sake
				switch {
				case err == nil:
					w.done++
				case !refused && !elected(err):
					s.t.Errorf("%s: %v", w.name, err)
				}
				pause(own, 60)
			}
		})
	}
	stop = sync.OnceValue(func() string {
		cancel()
		wg.Wait()
		var parts []string
		for _, w := range works {
			parts = append(parts, fmt.Sprintf("%s %d", w.name, w.done))
		}
		return strings.Join(parts, ", ")
	})
	s.t.Cleanup(func() { stop() })
	return stop
}

// pause waits until a random moment.
func pause(r *rand.Rand, mostMS int) { time.Sleep(time.Duration(r.IntN(mostMS)) * time.Millisecond) }

func (s *splitter) works() []work {
	admin := s.client.Database("admin")
	run := func(ctx context.Context, db *driver.Database, cmd ...any) error {
		return db.RunCommand(ctx, kit.D(cmd...)).Err()
	}
	return []work{
		{name: "large transactions", do: func(ctx context.Context, r *rand.Rand, n int) error {
			end, err := s.transaction(ctx, false, s.larger("large", 10_000+n%3*10))
			if err != nil {
				return err
			}
			return end(ctx, r.IntN(5) > 0)
		}},
		{name: "prepared transactions", do: func(ctx context.Context, r *rand.Rand, n int) error {
			end, err := s.transaction(ctx, true, func(ctx context.Context) error {
				_, err := s.db.Collection("prepared").UpdateMany(ctx, kit.D("_id", kit.D("$gt", r.IntN(splitDocs))),
					kit.D("$inc", kit.D("n", 1)))
				return err
			})
			if err != nil {
				return err
			}
			pause(r, 3000)
			return end(ctx, r.IntN(3) > 0)
		}},
		{name: "retried writes", do: func(ctx context.Context, r *rand.Rand, n int) error {
			coll := s.db.Collection("retried")
			var docs []any
			for i := range 50 {
				docs = append(docs, kit.D("_id", fmt.Sprint(r.Uint64(), i)))
			}
			if _, err := coll.InsertMany(ctx, docs); err != nil {
				return err
			}
			id := kit.D("_id", r.IntN(splitDocs))
			if r.IntN(2) == 0 {
				err := coll.FindOneAndUpdate(ctx, id, kit.D("$inc", kit.D("n", 1))).Err()
				return err
			}
			err := coll.FindOneAndReplace(ctx, id, kit.D("r", r.IntN(100)), options.FindOneAndReplace().SetUpsert(true)).Err()
			if errors.Is(err, driver.ErrNoDocuments) {
				err = nil
			}
			return err
		}},
		{name: "index builds", do: func(ctx context.Context, r *rand.Rand, n int) error {
			coll := []string{"built", "unbuilt", "expiring"}[r.IntN(3)]
			switch r.IntN(4) {
			case 0:
				return s.index(ctx, coll, "n", options.Index())
			case 1:
				return s.index(ctx, coll, "half", options.Index().SetUnique(true)) // it fails
			case 2:
				return s.index(ctx, coll, "at", options.Index().SetExpireAfterSeconds(1<<30+int32(n)))
			}
			return s.db.Collection(coll).Indexes().DropAll(ctx)
		}},
		{name: "changed expiries", do: func(ctx context.Context, r *rand.Rand, n int) error {
			return run(ctx, s.db, "collMod", "expiring", "index",
				kit.D("keyPattern", kit.D("at", 1), "expireAfterSeconds", 1<<30+n))
		}},
		{name: "changed options", do: func(ctx context.Context, r *rand.Rand, n int) error {
			if r.IntN(2) == 0 {
				return run(ctx, s.db, "collMod", "built", "index",
					kit.D("keyPattern", kit.D("n", 1), "hidden", r.IntN(2) == 0))
			}
			return run(ctx, s.db, "collMod", "retried", "validator", kit.D("x", kit.D("$ne", n)), "validationLevel",
				[]string{"off", "moderate"}[r.IntN(2)])
		}},
		{name: "$out", do: func(ctx context.Context, _ *rand.Rand, _ int) error { return s.out(ctx) }},
		{name: "renames between databases", do: func(ctx context.Context, r *rand.Rand, n int) error {
			a, b := "split.moved", "splat.moved"
			if n%2 == 1 {
				a, b = b, a
			}
			err := run(ctx, admin, "renameCollection", a, "to", b)
			if err != nil {
				_, err = s.db.Collection("moved").InsertOne(ctx, kit.D("n", n))
			}
			return err
		}},
		{name: "renames", do: func(ctx context.Context, r *rand.Rand, n int) error {
			if _, err := s.db.Collection("fresh").InsertOne(ctx, kit.D("n", n)); err != nil {
				return err
			}
			return run(ctx, admin, "renameCollection", "split.fresh", "to", "split.stale", "dropTarget", true)
		}},
		{name: "conversions to capped", do: func(ctx context.Context, r *rand.Rand, n int) error {
			coll := s.db.Collection("converted")
			if err := coll.Drop(ctx); err != nil {
				return err
			}
			var docs []any
			for i := range 500 {
				docs = append(docs, kit.D("_id", i, "n", n))
			}
			if _, err := coll.InsertMany(ctx, docs); err != nil {
				return err
			}
			return run(ctx, s.db, "convertToCapped", "converted", "size", 1<<20)
		}},
	}
}
