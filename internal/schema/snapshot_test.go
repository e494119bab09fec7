package schema

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/testseed"

	"github.com/millrace/millrace/workshop/lab"
)

// TestSnapshotUnderChanges: a snapshot, plus the schema changes after its
// position, is the catalog, however many changes go on meanwhile.
func TestSnapshotUnderChanges(t *testing.T) {
	t.Parallel()
	db := newDB()
	rules := newRules(t, transform.Config{Exclude: []string{db + ".noise"}})
	r := newReplica(t, rules, db)
	r.run(db, []string{seed})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group errgroup.Group
	started := make(chan struct{})
	group.Go(func() error {
		// What is not kept does not disturb; what is kept comes in bursts.
		for i := 0; ; i++ {
			for _, cmd := range []bson.D{{{Key: "create", Value: "noise"}}, {{Key: "drop", Value: "noise"}}} {
				_, err := src.Command(ctx, db, cmd)
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the test has seen enough
				}
				if err != nil {
					return err
				}
			}
			if i == 3 {
				close(started)
			}
		}
	})
	<-started
	for _, name := range []string{"a", "b", "c2"} {
		do(t, src, db, `{"create":"`+name+`"}`)
		do(t, src, db, `{"createIndexes":"c","indexes":[{"key":{"`+name+`":1},"name":"`+name+`"}]}`)
	}
	r.copy()
	stop()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	r.run(db, []string{`{"create":"later"}`})
	r.follow()
	r.finish()
}

// TestSnapshotAmidChanges: a catalog that never comes to rest is listed as it stood at
// the snapshot's position: it is what the changes until then make of nothing.
func TestSnapshotAmidChanges(t *testing.T) {
	t.Parallel()
	testseed.Each(t, snapshotsAmidChanges)
}

func snapshotsAmidChanges(t *testing.T, seed uint64) {
	for round := range uint64(4) {
		db := newDB()
		newReplica(t, newRules(t, transform.Config{}), db)
		from, err := src.CommittedSeen(t.Context())
		ok(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var group errgroup.Group
		group.Go(func() error {
			alterAll(ctx, db, rand.New(rand.NewPCG(seed, round)))
			return nil
		})
		for n := 0; n < 15; {
			colls, err := List(t.Context(), src, scopeOf(nil, db))
			ok(t, err)
			n += len(colls)
		}
		snap, err := TakeSnapshot(t.Context(), src, scopeOf(nil, db), oplog.Changes(src))
		ok(t, err)
		stop()
		ok(t, group.Wait())
		got := map[string]string{}
		for _, c := range snap.Collections {
			var indexes []string
			for _, ix := range c.Indexes {
				indexes = append(indexes, ix.Name)
			}
			slices.Sort(indexes)
			got[c.NS] = fmt.Sprintf("%x %s", c.UUID.Data, indexes)
		}
		if want := madeBy(t, db, from, snap.At); !maps.Equal(got, want) {
			t.Errorf("at %s: %v, want %v", snap.At, got, want)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// madeBy is what the changes of a span make of an empty database: of each collection
// its UUID and the names of its indexes.
func madeBy(t *testing.T, db string, from, until mongo.OpTime) map[string]string {
	t.Helper()
	type coll struct {
		id      string
		indexes map[string]bool
	}
	all := map[string]*coll{}
	ok(t, oplog.Changes(src)(t.Context(), from, until, func(ch *stream.Change, _ mongo.OpTime) error {
		if in, _ := mongo.SplitNS(ch.NS); in != db && ch.NS != db {
			return nil
		}
		switch ch.Kind {
		case stream.ChangeCreate, stream.ChangeView:
			all[ch.NS] = &coll{fmt.Sprintf("%x", ch.UUID.Data), map[string]bool{}}
		case stream.ChangeDrop, stream.ChangeDropView:
			delete(all, ch.NS)
		case stream.ChangeRename:
			all[ch.To] = all[ch.NS]
			delete(all, ch.NS)
		case stream.ChangeCreateIndexes:
			for _, ix := range ch.Indexes {
				all[ch.NS].indexes[ix.Name] = true
			}
		case stream.ChangeDropIndexes:
			for _, ix := range ch.Indexes {
				delete(all[ch.NS].indexes, ix.Name)
			}
		case stream.ChangeDropAllViews:
			maps.DeleteFunc(all, func(_ string, c *coll) bool { return c.id == "" })
		}
		return nil
	}))
	is := map[string]string{}
	for ns, c := range all {
		is[ns] = fmt.Sprintf("%s %s", c.id, slices.Sorted(maps.Keys(c.indexes)))
	}
	return is
}

// alterAll makes, alters and drops collections and views without a pause.
func alterAll(ctx context.Context, db string, r *rand.Rand) {
	// Servers before 5.0 take thousands a second, for they do not wait for a majority.
	pace := time.NewTicker(3 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil {
		<-pace.C
		name, other := fmt.Sprintf("c%d", r.IntN(40)), fmt.Sprintf("c%d", r.IntN(40))
		at, cmd := db, bson.D{}
		switch r.IntN(8) {
		case 0, 1:
			cmd = bson.D{{Key: "create", Value: name}}
		case 2:
			cmd = bson.D{{Key: "create", Value: name}, {Key: "capped", Value: true},
				{Key: "size", Value: 4096 * (1 + r.IntN(9))}}
		case 3:
			cmd = bson.D{{Key: "drop", Value: name}}
		case 4:
			cmd = bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes",
				Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: other, Value: 1}}}, {Key: "name", Value: other}}}}}
		case 5:
			cmd = bson.D{{Key: "dropIndexes", Value: name}, {Key: "index", Value: other}}
		case 6:
			at, cmd = "admin", bson.D{{Key: "renameCollection", Value: db + "." + name}, {Key: "to", Value: db + "." + other},
				{Key: "dropTarget", Value: true}}
		case 7:
			cmd = bson.D{{Key: "create", Value: "v" + name}, {Key: "viewOn", Value: other}, {Key: "pipeline", Value: bson.A{}}}
		}
		if r.IntN(10) == 0 {
			cmd = bson.D{{Key: "drop", Value: "v" + name}}
		}
		if r.IntN(1000) == 0 {
			cmd = bson.D{{Key: "drop", Value: "system.views"}}
		}
		_, _ = src.Command(ctx, at, cmd) // many of them cannot be
	}
}

func TestSnapshotNamesTheObstacle(t *testing.T) {
	t.Parallel()
	db := newDB()
	newReplica(t, newRules(t, transform.Config{}), db)
	from, err := src.CommittedSeen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ cmd, want string }{
		{`{"create":"c"}`, "create of @.c"},
		{`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"a"}]}`, "createIndexes of @.c"},
		{`{"create":"v","viewOn":"c","pipeline":[]}`, "view of @.v"},
		{`{"drop":"v"}`, "dropView of @.v"},
		{`{"applyOps":[{"op":"c","ns":"@.$cmd","o":{"create":"d"}}]}`, "create of @.d"},
		{`admin {"renameCollection":"@.d","to":"@.e"}`, "renameCollection of @.d"},
		{`{"drop":"system.views"}`, "dropAllViews of @"},
		{`{"insert":"c","documents":[{"_id":1}]}`, ""},
	} {
		do(t, src, db, c.cmd)
		end, err := src.CommittedSeen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a := altered{}
		err = scopeOf(nil, db).alter(t.Context(), a, oplog.Changes(src), from, end)
		want := strings.ReplaceAll(c.want, "@", db)
		if err != nil || (len(a) == 0) != (want == "") || !strings.HasPrefix(a.String(), want) {
			t.Errorf("%s: %q, %v, want %q", c.cmd, a, err, want)
		}
		from = end
	}
}

// TestCreateInsideTransaction: since 4.4 a transaction can create collections
// and indexes; its entry holds them among its operations.
func TestCreateInsideTransaction(t *testing.T) {
	lab.NeedServers(t)
	t.Parallel()
	if !src.Info.Version.AtLeast(4, 4) {
		t.Skip("the source cannot")
	}
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	r.run(db, []string{seed})
	r.copy()
	err := src.Client.UseSession(t.Context(), func(ctx context.Context) error {
		_, err := driver.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			d := src.Client.Database(db)
			if err := d.RunCommand(ctx, js(t, `{"create":"intxn","capped":true,"size":4096}`)).Err(); err != nil {
				return nil, err
			}
			return nil, d.RunCommand(ctx,
				js(t, `{"createIndexes":"intxn","indexes":[{"key":{"a":1},"name":"a","unique":true}]}`)).Err()
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.follow()
	r.finish()
}

// TestUnfinishedBuildIsNotListed: its commit comes later in the oplog.
func TestUnfinishedBuildIsNotListed(t *testing.T) {
	db := newDB()
	rules := newRules(t, transform.Config{})
	r := newReplica(t, rules, db)
	r.run(db, []string{seed})
	fail := func(mode string) {
		do(t, src, db, `admin {"configureFailPoint":"hangAfterStartingIndexBuild","mode":"`+mode+`"}`)
	}
	fail("alwaysOn")
	defer fail("off")
	var group errgroup.Group
	group.Go(func() error {
		_, err := src.Command(t.Context(), db, js(t, `{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"a"}]}`))
		return err
	})
	under := NewTarget(src, TargetOptions{})
	for {
		building, err := buildsUnderWay(t.Context(), src, db+".c")
		if err != nil {
			t.Fatal(err)
		}
		if len(building) > 0 {
			break
		}
		if time.Sleep(10 * time.Millisecond); t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
	if _, err := under.o.Builds.Progress(t.Context()); err != nil {
		t.Error(err)
	}
	r.copy()
	if ix, _, err := indexes(t.Context(), dst, db+".c"); err != nil || len(ix) != 0 {
		t.Errorf("indexes copied: %v, %v", ix, err)
	}
	fail("off")
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	r.follow()
	r.finish()
}

// TestDuplicateIsExplained: a unique index that the data does not allow.
func TestDuplicateIsExplained(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	r.run(db, []string{seed, `{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"au","unique":true}]}`})
	r.copy()
	do(t, dst, db, `{"insert":"c","documents":[{"_id":99,"a":1}]}`)
	err := r.target.Indexes.BuildDeferred(t.Context())
	if err == nil || mongo.HintOf(err) == "" || !strings.Contains(err.Error(), db+".c") ||
		!strings.Contains(err.Error(), "au") {
		t.Fatalf("error: %v, hint: %s", err, mongo.HintOf(err))
	}
	held, err := r.target.Deferred.List(t.Context())
	if err != nil || len(held) != 1 || !held[0].Unbuilt {
		t.Errorf("held back after the failure: %+v, %v", held, err)
	}
	do(t, dst, db, `{"delete":"c","deletes":[{"q":{"_id":99},"limit":1}]}`)
	r.finish()
}

func TestBuildNeverCreates(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	spec := stream.Index{Name: "a", Spec: js(t, `{"v":2,"key":{"a":1},"name":"a"}`)}
	if err := r.target.Indexes.Build(t.Context(), db+".none", []stream.Index{spec}, Consistent); !IsGone(err) {
		t.Errorf("build on nothing: %v", err)
	}
	ch := stream.Change{Kind: stream.ChangeCreateIndexes, NS: db + ".none", Indexes: []stream.Index{spec}}
	if _, err := r.target.Changes.Apply(t.Context(), ch, ApplyOptions{Rules: r.rules, Names: r.names}); !IsGone(err) {
		t.Errorf("createIndexes of nothing: %v", err)
	}
	if e, err := r.target.Changes.Apply(t.Context(), ch, ApplyOptions{Rules: r.rules, Names: r.names, Overlap: true,
		Ahead: true}); err != nil || e.Applied {
		t.Errorf("createIndexes of nothing within the window: %+v, %v", e, err)
	}
	found, err := r.target.ListExisting(t.Context(), []string{db + ".none"})
	if err != nil || len(found) != 0 {
		t.Errorf("exists: %v, %v", found, err)
	}
}

// TestBuildAfterRestore: a build that is done again after the expiry was
// restored finds its index.
func TestBuildAfterRestore(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	r.run(db, []string{seed,
		`{"createIndexes":"c","indexes":[{"key":{"t":1},"name":"t","expireAfterSeconds":3600},{"key":{"a":1},"name":"a"}]}`})
	r.copy()
	r.finish()
	do(t, dst, db, `{"delete":"c","deletes":[{"q":{},"limit":0}]}`)
	r.copy()
	r.finish()
	err := r.target.Indexes.Build(t.Context(), db+".c",
		[]stream.Index{{Name: "a", Spec: js(t, `{"v":2,"key":{"other":1},"name":"a"}`)}}, Consistent)
	if err == nil || mongo.HintOf(err) == "" {
		t.Errorf("another index of that name: %v", err)
	}
}

// TestLegacyIndexSpecs: what servers of long ago stored, current ones take.
func TestLegacyIndexSpecs(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	do(t, dst, db, `{"create":"c"}`)
	var idx []stream.Index
	for _, spec := range []string{
		`{"v":0,"key":{"a":1},"name":"a","ns":"x.c","background":true,"dropDups":true,"safe":null}`,
		`{"v":1,"key":{"b":true},"name":"b","unique":0}`,
		`{"v":1,"key":{"c":""},"name":"c","sparse":"yes"}`,
		`{"v":1,"key":{"d":0,"e":null},"name":"d","expireAfterSeconds":{"$numberDouble":"NaN"}}`,
		`{"v":1,"key":{"f":-1.5},"name":"f","unique":1,"background":1,"storageEngine":{"mmapv1":{}},"$something":5}`,
		`{"v":1,"key":{"_fts":"text","_ftsx":1},"name":"text","weights":{"$**":1},"default_language":"english","language_override":"language","textIndexVersion":2}`,
		`{"v":1,"key":{"g":"2dsphere"},"name":"g","2dsphereIndexVersion":1}`,
	} {
		raw := js(t, spec)
		idx = append(idx, stream.Index{Name: str(raw, "name"), Spec: raw})
	}
	if err := r.target.Indexes.Build(t.Context(), db+".c", idx, BeforeConsistent); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.target.Indexes.BuildDeferred(t.Context()),
		r.target.Expiries.Restore(t.Context())); err != nil {
		t.Fatal(err)
	}
	built, _, err := indexes(t.Context(), dst, db+".c")
	if err != nil {
		t.Fatal(err)
	}
	diffs, err := diffIndexes(Collection{NS: db + ".c", Indexes: idx}, Collection{NS: db + ".c", Indexes: built},
		DiffOptions{})
	if err != nil || len(diffs) > 0 || len(built) != len(idx) {
		t.Errorf("%d built of %d: %v, %v", len(built), len(idx), diffs, err)
	}
}

// TestSizeOfWhatIsGone: a collection may be dropped between being listed and
// being measured; each version says so with another code.
func TestSizeOfWhatIsGone(t *testing.T) {
	t.Parallel()
	db := newDB()
	do(t, src, db, `{"create":"other"}`)
	if count, bytes, err := size(t.Context(), src, db+".gone"); err != nil || count != 0 || bytes != 0 {
		t.Errorf("%d documents, %d bytes, %v", count, bytes, err)
	}
	if builds, err := buildsUnderWay(t.Context(), src, db+".gone"); err != nil || len(builds) != 0 {
		t.Errorf("builds %v, %v", builds, err)
	}
}
