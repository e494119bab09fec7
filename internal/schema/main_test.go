package schema

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// src and dst are shared by all tests, which use databases of their own.
var src, dst *mongo.Cluster

var counter atomic.Int64

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" || lab.Short() {
		return m.Run() // in many processes, none of which needs a server
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var group errgroup.Group
	labs := make([]interface {
		URI() string
		Stop() error
	}, 2)
	for i, cluster := range []**mongo.Cluster{&src, &dst} {
		version := cmp.Or(os.Getenv([]string{"MILLRACE_TEST_SOURCE", "MILLRACE_TEST_TARGET"}[i]), "6.0")
		group.Go(func() (err error) {
			o := lab.Options{Version: version, LeanJournal: true, SetParameters: map[string]string{"enableTestCommands": "1"}}
			if sharded.Is(version) { // MILLRACE_TEST_TARGET=sharded:2x1 has a router be the target
				o.Version, o.Topology = "6.0", version
				labs[i], err = sharded.Start(ctx, sharded.Options{Options: o, Routers: 1})
			} else {
				labs[i], err = lab.Start(ctx, o)
			}
			if err != nil {
				return err
			}
			*cluster, err = mongo.Connect(ctx, labs[i].URI(), mongo.Options{AppName: "test"})
			return err
		})
	}
	err := group.Wait()
	defer func() {
		for _, l := range labs {
			if l != nil {
				_ = l.Stop()
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer src.Close()
	defer dst.Close()
	return m.Run()
}

// newDB gives a test a database name of its own.
func newDB() string { return fmt.Sprintf("t%d", counter.Add(1)) }

// js reads extended JSON.
func js(t *testing.T, text string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// do runs a command given as extended JSON, in which @ stands for the database;
// "admin " before it runs it there.
func do(t *testing.T, c *mongo.Cluster, db, text string) bson.Raw {
	t.Helper()
	raw, err := try(t, c, db, text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return raw
}

func try(t *testing.T, c *mongo.Cluster, db, text string) (bson.Raw, error) {
	t.Helper()
	lab.NeedServers(t)
	text = strings.ReplaceAll(text, "@", db)
	if cmd, ok := strings.CutPrefix(text, "admin "); ok {
		db, text = "admin", cmd
	}
	if strings.HasPrefix(text, "other ") {
		db, text = db+"x", strings.TrimPrefix(text, "other ")
	}
	return c.Command(t.Context(), db, js(t, text))
}

func newRules(t *testing.T, c transform.Config) *transform.Set {
	t.Helper()
	s, err := transform.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onlyDB keeps the collections of some databases.
func only(rules *transform.Set, dbs ...string) func(string) bool {
	return func(ns string) bool {
		db, _ := mongo.SplitNS(ns)
		for _, d := range dbs {
			if d == db {
				return rules.Match(ns)
			}
		}
		return false
	}
}

// scopeOf is what of the databases the rules keep: tests share the servers.
func scopeOf(rules *transform.Set, dbs ...string) Scope {
	return Scope{NS: only(rules, dbs...), DB: func(db string) bool { return slices.Contains(dbs, db) }}
}

// copyDocs copies the documents of a collection from the source.
func copyDocs(t *testing.T, coll Collection, rules *transform.Set) {
	t.Helper()
	if coll.Type == TypeView {
		return
	}
	ctx := t.Context()
	db, name := mongo.SplitNS(coll.DataNS())
	cur, err := src.Client.Database(db).Collection(name).Find(ctx, bson.D{},
		options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var docs []any
	for cur.Next(ctx) {
		docs = append(docs, append(bson.Raw(nil), cur.Current...))
	}
	if cur.Err() != nil {
		t.Fatal(cur.Err())
	}
	if len(docs) == 0 {
		return
	}
	db, name = mongo.SplitNS(rules.Target(coll.DataNS()))
	_, err = dst.Client.Database(db).Collection(name).InsertMany(ctx, docs,
		options.InsertMany().SetBypassDocumentValidation(true))
	if err != nil {
		t.Fatalf("copy %s: %v", coll.NS, err)
	}
}

// replica follows one or more databases of the source onto the target.
type replica struct {
	t      *testing.T
	dbs    []string
	rules  *transform.Set
	target *Target
	window bool
	twice  bool // every change is applied a second time, as after a restart
	at     mongo.OpTime
	resync []string
	names  *Names
}

func newReplica(t *testing.T, rules *transform.Set, dbs ...string) *replica {
	lab.NeedServers(t)
	r := &replica{t: t, dbs: dbs, rules: rules, names: NewNames(nil),
		target: NewTarget(dst, TargetOptions{Job: "job " + dbs[0]})}
	r.target.KeepRoom(TellsRollOff(src, dst))
	t.Cleanup(func() {
		for _, db := range dbs {
			_ = src.Client.Database(db).Drop(context.Background())
			for _, db := range []string{db, db + "to", db + "z"} { // where the rules of tests put it
				_ = dst.Client.Database(db).Drop(context.Background())
			}
		}
	})
	return r
}

// copy does the full copy.
func (r *replica) copy() {
	r.t.Helper()
	snap, err := TakeSnapshot(r.t.Context(), src, scopeOf(r.rules, r.dbs...), oplog.Changes(src))
	if err != nil {
		r.t.Fatal(err)
	}
	r.at = snap.At
	for _, c := range snap.Collections {
		r.names.put(Name{NS: c.NS, Target: r.rules.Target(c.NS), Type: c.Type, UUID: c.UUID})
		r.one(c, r.rules.Target(c.NS))
	}
}

func (r *replica) one(c Collection, ns string) {
	r.t.Helper()
	if err := r.target.Collections.Create(r.t.Context(), c, ns, r.rules); err != nil {
		r.t.Fatal(err)
	}
	copyDocs(r.t, c, r.rules)
	if err := r.target.Indexes.Build(r.t.Context(), ns, c.Indexes, BeforeConsistent); err != nil {
		r.t.Fatal(err)
	}
}

// follow applies what is in the source's oplog since the last position.
func (r *replica) follow() (effects []Effect) {
	r.t.Helper()
	ctx := r.t.Context()
	end, err := src.CommittedSeen(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	enough := errors.New("enough")
	err = oplog.New(src, oplog.Options{Keep: only(r.rules, r.dbs...)}).Run(ctx, oplog.Position(r.at, r.at),
		func(_ context.Context, b *stream.Batch) error {
			for _, ev := range b.Events {
				if !end.Before(ev.At) {
					effects = append(effects, r.event(ev)...)
				}
			}
			if b.End.Before(end) {
				return nil
			}
			return enough
		})
	if !errors.Is(err, enough) {
		r.t.Fatal(err)
	}
	r.at = end
	return effects
}

func (r *replica) event(ev stream.Event) []Effect {
	r.t.Helper()
	switch ev.Kind {
	case stream.SchemaChange:
	case stream.Insert, stream.Put:
		r.insert(ev)
		return nil
	default:
		return nil
	}
	ch := *ev.Change
	db, _ := mongo.SplitNS(ch.NS)
	if rename := ch.Kind == stream.ChangeRename; !rename && !slices.Contains(r.dbs, db) ||
		rename && !scopeOf(r.rules, r.dbs...).concerned(ch) {
		return nil
	}
	o := ApplyOptions{Rules: r.rules, Overlap: r.window, Names: r.names, MixedSchema: MakesMixedSchema(src.Info.Version)}
	before, err := r.target.Changes.Prepare(r.t.Context(), ch, o)
	if err != nil {
		r.t.Fatalf("make way: %+v: %v", ch, err)
	}
	o.Before = before
	got, err := r.target.Changes.Apply(r.t.Context(), ch, o)
	if err != nil {
		r.t.Fatalf("%+v: %v", ch, err)
	}
	r.names.Change(r.names.After(ch, r.rules))
	if got.Join != nil {
		r.joined(got)
	}
	if o.Maybe = true; r.twice {
		if _, err := r.target.Changes.Apply(r.t.Context(), ch, o); err != nil {
			r.t.Fatalf("again: %+v: %v", ch, err)
		}
		r.names.Change(r.names.After(ch, r.rules))
	}
	if got.Resync != nil {
		r.resynced(got, ch)
	}
	return []Effect{got}
}

func (r *replica) resynced(e Effect, ch stream.Change) {
	r.t.Helper()
	r.resync = append(r.resync, e.ResyncNS)
	toDB, _ := mongo.SplitNS(ch.To)
	c, ok, err := ListOne(r.t.Context(), src, toDB, *e.Resync)
	if err != nil {
		r.t.Fatal(err)
	}
	if ok {
		r.one(c, e.ResyncNS)
	}
}

// joined does what a join needs, twice, as after a crash before the last step.
func (r *replica) joined(e Effect) {
	r.t.Helper()
	ctx := r.t.Context()
	fromDB, from := mongo.SplitNS(e.Join.NS)
	toDB, to := mongo.SplitNS(e.JoinNS)
	merge := bson.D{{Key: "$merge",
		Value: bson.D{{Key: "into", Value: bson.D{{Key: "db", Value: toDB}, {Key: "coll", Value: to}}},
			{Key: "whenMatched", Value: "replace"}}}}
	for range 2 {
		if _, err := dst.Client.Database(fromDB).Collection(from).Aggregate(ctx, driver.Pipeline{merge}); err != nil {
			r.t.Fatal(err)
		}
		if there, err := r.target.Has(ctx, e.Join.NS); err != nil || !there {
			return
		}
		if err := r.target.Changes.TakeOver(ctx, e.Join.NS, e.JoinNS, Consistent); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *replica) insert(ev stream.Event) {
	r.t.Helper()
	db, coll := mongo.SplitNS(r.rules.Target(ev.NS))
	_, err := dst.Client.Database(db).Collection(coll).InsertOne(r.t.Context(), ev.Doc)
	if err != nil && !driver.IsDuplicateKeyError(err) {
		r.t.Fatal(err)
	}
}

// finish restores all that is held back and compares.
func (r *replica) finish() {
	r.t.Helper()
	ctx := r.t.Context()
	if err := r.target.Indexes.BuildDeferred(ctx); err != nil {
		r.t.Error(err)
	}
	if err := r.target.Expiries.Restore(ctx); err != nil {
		r.t.Error(err)
	}
	held, err := r.target.Deferred.List(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range held {
		r.t.Errorf("still held back: %+v", h)
	}
	r.same(DiffOptions{})
}

func (r *replica) same(o DiffOptions) {
	r.t.Helper()
	o.Keep = only(r.rules, r.dbs...)
	diffs, err := Diff(r.t.Context(), src, dst, r.rules, o)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range diffs {
		r.t.Errorf("differs: %v", d)
	}
}
