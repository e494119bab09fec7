package oplog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestFilter: a source that keeps one collection of many lets the server leave out the others, emits what it emits
// without a filter, and its position follows the writes that were left out. Meanwhile its cursors die, it stops and
// starts, and collections are renamed into and out of what it keeps, within databases and between them.
func TestFilter(t *testing.T) {
	testseed.Each(t, func(t *testing.T, seed uint64) {
		c := connect(t, sharedURI)
		w := &sharing{t: t, c: c, rng: rand.New(rand.NewPCG(seed, 0))}
		for _, db := range []string{w.db(), w.db() + "2"} {
			ok(t, c.Client.Database(db).Drop(t.Context()))
		}
		start := position(t, c)
		o := Options{Keep: w.keep, JoinRenames: true, Await: time.Millisecond}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		followers := make([]*follower, 4)
		for i := range followers {
			o.ReadAheadBytes, o.Prefixes = 0, nil
			if i%2 == 1 {
				o.ReadAheadBytes = 50_000
			}
			if i > 1 {
				o.Prefixes = w.prefixes()
			}
			f := &follower{Options: o, cluster: connect(t, sharedURI), sample: 20_000, slow: i == 1, restarts: i > 1,
				rng: rand.New(rand.NewPCG(seed, uint64(i)))}
			followers[i] = f
			all.Go(func() { f.err = f.follow(ctx, from(start)) })
		}
		for range 200 {
			w.step()
		}
		for _, db := range []string{w.db(), w.db() + "2"} { // then no rename is in doubt, and a filter may be used
			_, err := c.Client.Database(db).Collection("out0").InsertOne(t.Context(), doc("end"))
			ok(t, err)
		}
		for range 40 {
			w.write("out0", 50)
		}
		end := position(t, c)
		for _, f := range followers {
			f.calm.Store(true)
		}
		caughtUp, enough := context.WithTimeout(ctx, time.Minute)
		defer enough()
		ok(t, lab.Poll(caughtUp, 10*time.Millisecond, func() (bool, error) {
			for _, f := range followers {
				if at := f.at.Load(); at == nil || at.Before(end) {
					return false, nil
				}
			}
			return true, nil
		}))
		stop()
		all.Wait()
		everything := New(c, o)
		everything.sample = math.MaxInt64
		bs, err := readOr(t, everything, from(start), end)
		ok(t, err)
		want := withAt(bs)
		for _, prefixes := range [][]string{nil, w.prefixes()} {
			o.Prefixes = prefixes
			late := New(c, o)
			late.sample = 20_000
			bs, err = readOr(t, late, from(start), end)
			ok(t, err)
			kit.SameLines(t, withAt(bs), want)
			if some, all := late.Stats().Bytes, everything.Stats().Bytes; some > all*95/100 {
				t.Errorf("prefixes %q: the filtered source received %d bytes of %d", prefixes, some, all)
			}
		}
		for i, f := range followers {
			if !errors.Is(f.err, context.Canceled) {
				t.Errorf("follower %d: %v", i, f.err)
			}
			if len(f.got) > len(want) { // what came after end
				f.got = f.got[:len(want)]
			}
			kit.SameLines(t, f.got, want)
		}
	})
}

// sharing writes to collections of which few are kept.
type sharing struct {
	t    *testing.T
	c    *mongo.Cluster
	rng  *rand.Rand
	next int
}

func (w *sharing) db() string { return "sharefilter" }

func (w *sharing) keep(ns string) bool {
	_, coll := mongo.SplitNS(ns)
	return strings.HasPrefix(ns, w.db()) && strings.HasPrefix(coll, "kept")
}

func (w *sharing) prefixes() []string {
	return []string{w.db() + ".kept", w.db() + "2.kept", w.db() + ".tmp", w.db() + "2.tmp"}
}

func (w *sharing) write(coll string, n int) {
	docs := make([]any, n)
	for i := range docs {
		w.next++
		docs[i] = doc(w.next, "x", strings.Repeat("x", w.rng.IntN(2000)))
	}
	_, err := w.c.Client.Database(w.db()).Collection(coll).InsertMany(w.t.Context(), docs)
	ok(w.t, err)
}

func (w *sharing) name() string {
	kind := "out"
	if w.rng.IntN(5) == 0 {
		kind = "kept"
	}
	return fmt.Sprint(kind, w.rng.IntN(4))
}

// step writes, renames or lets cursors die.
func (w *sharing) step() {
	ctx, db := w.t.Context(), w.c.Client.Database(w.db())
	admin := w.c.Client.Database("admin")
	switch w.rng.IntN(40) {
	case 0, 1, 7, 8:
		w.rename(w.db()+"."+w.name(), w.db()+"."+w.name())
	case 2:
		w.rename(w.db()+"."+w.name(), w.db()+"2."+w.name())
	case 3:
		w.rename(w.db()+"2."+w.name(), w.db()+"."+w.name())
	case 4, 9:
		ok(w.t, w.c.Client.UseSession(ctx, func(ctx context.Context) error {
			_, err := driver.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
				for _, name := range []string{"out0", "kept0", "out1"} {
					w.next++
					if _, err := db.Collection(name).InsertOne(ctx, doc(w.next)); err != nil {
						return nil, err
					}
				}
				return nil, nil
			})
			return err
		}))
	case 5, 10:
		ok(w.t, admin.RunCommand(ctx, bson.D{
			{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"getMore"}}, {Key: "appName", Value: w.t.Name()},
				{Key: "errorCode", Value: 43}}}}).Err())
	case 6, 11:
		_, err := db.Collection(w.name()).DeleteMany(ctx, bson.D{})
		ok(w.t, err)
	default:
		w.write(w.name(), 1+w.rng.IntN(30))
	}
}

// rename renames a collection, if there is one.
func (w *sharing) rename(from, to string) {
	err := w.c.Client.Database("admin").RunCommand(w.t.Context(), bson.D{{Key: "renameCollection", Value: from},
		{Key: "to", Value: to}, {Key: "dropTarget", Value: true}}).Err()
	var refused driver.CommandError
	if err != nil && (!errors.As(err, &refused) || from != to && refused.Name != "NamespaceNotFound") {
		w.t.Fatal(err)
	}
}

func TestSuccessor(t *testing.T) {
	for prefix, want := range map[string]string{"a.": "a/", "a.\u007f": "a.\u0080", "a\ud7ff": "a\ue000",
		"a\U0010ffff": "b", "\U0010ffff": ""} {
		if got := successor(prefix); got != want || want != "" && got <= prefix+"\U0010ffff" {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

// TestFilterGrows: while entries are still coming that were read before the filter was known, it does not fill with
// what it leaves out already.
func TestFilterGrows(t *testing.T) {
	f := &filter{sample: 1000, prefixes: []string{"a."}}
	few := []string{"a.big", "b.big", "a.large"}
	for range 10_000 {
		for _, ns := range few {
			f.skip(&nsInfo{name: ns}, 1000)
			f.judge(1000)
		}
	}
	if got := *f.names.Load(); !slices.Equal(got, []string{"a.large", "a.big"}) {
		t.Errorf("%q", got)
	}
}
