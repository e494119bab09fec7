package oplog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestShared: sources of one oplog emit what each emits alone, while some are slow, their cursors die, and they
// stop and start. Once all are at the end, one cursor is left.
func TestShared(t *testing.T) {
	testseed.Each(t, func(t *testing.T, seed uint64) {
		c := connect(t, sharedURI)
		const db, rounds = "sharing", 60
		rng := rand.New(rand.NewPCG(seed, 0))
		coll := c.Client.Database(db).Collection("c")
		ok(t, coll.Drop(t.Context()))
		ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
		start := position(t, c)

		shared := &Shared{}
		followers := make([]*follower, 6)
		var all sync.WaitGroup
		defer all.Wait()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for i := range followers {
			f := &follower{Options: Options{Keep: only(db), Shared: shared, Await: 50 * time.Millisecond},
				cluster: connect(t, sharedURI), slow: i/2 == 1, restarts: i/2 == 2, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
			if i%2 == 1 {
				f.ReadAheadBytes, f.BatchBytes = 100_000, 20_000
			}
			followers[i] = f
			all.Go(func() { f.err = f.follow(ctx, from(start)) })
		}
		for i := range rounds {
			docs := make([]any, 1+rng.IntN(200))
			for j := range docs {
				docs[j] = doc(fmt.Sprint(i, "/", j), "x", strings.Repeat("x", rng.IntN(2000)))
			}
			_, err := coll.InsertMany(t.Context(), docs)
			ok(t, err)
			if rng.IntN(4) == 0 {
				ok(t, c.Client.Database("admin").RunCommand(t.Context(), bson.D{
					{Key: "configureFailPoint", Value: "failCommand"},
					{Key: "mode", Value: bson.D{{Key: "times", Value: 1 + rng.IntN(3)}}},
					{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"getMore"}}, {Key: "appName", Value: t.Name()},
						{Key: "errorCode", Value: 43}}}}).Err())
			}
		}
		end := position(t, c)
		for _, f := range followers {
			f.calm.Store(true)
		}
		ok(t, lab.Poll(t.Context(), 100*time.Millisecond, func() (bool, error) {
			for _, f := range followers {
				if at := f.at.Load(); at == nil || at.Before(end) {
					return false, nil
				}
			}
			n, err := oplogCursors(t, c)
			return n == 1, err
		}))
		stop()
		all.Wait()
		want := withAt(read(t, c, Options{Keep: only(db)}, from(start), end))
		for i, f := range followers {
			if !errors.Is(f.err, context.Canceled) {
				t.Errorf("follower %d: %v", i, f.err)
			}
			kit.SameLines(t, f.got, want)
		}
		if len(shared.feeds) > 0 {
			t.Errorf("%d feeds are left", len(shared.feeds))
		}
	})
}

// TestSilentLeader: who waits for a leader that stands still leads after a minute, and what the leader reads later
// is not shared.
func TestSilentLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &feed{readers: 2, changed: make(chan struct{})}
		at := mongo.OpTime{TS: bson.Timestamp{T: 5, I: 1}, Term: 1}
		still, waits := &reader{from: at, skip: 1}, &reader{from: at, skip: 1}
		if _, found, err := f.next(t.Context(), still); found || err != nil || f.leader != still {
			t.Fatalf("nobody leads: %v %v", found, err)
		}
		began := time.Now()
		if _, found, err := f.next(t.Context(), waits); found || err != nil || f.leader != waits {
			t.Fatalf("the silent one leads still: %v %v", found, err)
		}
		if waited := time.Since(began); waited != replyTimeout {
			t.Errorf("after %s", waited)
		}
		later := at
		later.TS.I++
		f.publish(still, reply{after: at, last: later})
		if f.end != at || len(f.replies) > 0 {
			t.Errorf("%v at %s", f.replies, f.end)
		}
	})
}

// TestJoinedBehind: who joins behind a reader with a filter reads by itself, and the reader need not wait for it.
func TestJoinedBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &feed{readers: 1, changed: make(chan struct{})}
		at := func(second uint32) mongo.OpTime {
			return mongo.OpTime{TS: bson.Timestamp{T: second, I: 1}, Term: 1}
		}
		filtered, behind := &reader{from: at(1), skip: 1}, &reader{from: at(5), skip: 1}
		if _, found, err := f.next(t.Context(), filtered); found || err != nil || f.leader != filtered {
			t.Fatalf("nobody leads: %v %v", found, err)
		}
		filtered.from = at(9)
		f.ahead(filtered)
		f.readers = 2
		if _, found, err := f.next(t.Context(), behind); found || err != nil || f.leader != nil {
			t.Fatalf("the one behind does not read by itself: %v %v", found, err)
		}
		began := time.Now()
		if _, found, err := f.next(t.Context(), filtered); found || err != nil || f.leader != filtered || f.end != at(9) {
			t.Fatalf("the one ahead does not lead: %v %v", found, err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("after %s", waited)
		}
	})
}

// follower runs a source again after each failure.
type follower struct {
	Options
	cluster        *mongo.Cluster
	sample         int64 // as in filter; 0 is the usual one
	slow, restarts bool
	rng            *rand.Rand
	calm           atomic.Bool // no more pauses and restarts
	at             atomic.Pointer[mongo.OpTime]
	got            []string
	err            error
}

var errRestart = errors.New("restart")

func (f *follower) follow(ctx context.Context, pos stream.Position) error {
	for {
		o := New(f.cluster, f.Options)
		o.sample = cmp.Or(f.sample, o.sample)
		err := o.Run(ctx, pos, func(_ context.Context, b *stream.Batch) error {
			f.got = append(f.got, withAt([]*stream.Batch{b})...)
			pos = stream.Position{At: b.End, Mark: b.Mark}
			f.at.Store(&b.End)
			switch {
			case f.calm.Load():
			case f.slow && f.rng.IntN(3) == 0:
				time.Sleep(time.Duration(f.rng.IntN(100)) * time.Millisecond)
			case f.restarts && f.rng.IntN(10) == 0:
				return errRestart
			}
			return nil
		})
		if !errors.Is(err, errRestart) && mongo.Classify(err) != mongo.ClassRetry {
			return err
		}
	}
}

// oplogCursors counts the tailing cursors on the oplog that were used in the last two seconds. The fault leaves
// others behind.
func oplogCursors(t *testing.T, c *mongo.Cluster) (int, error) {
	cur, err := c.Client.Database("admin").Aggregate(t.Context(), bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "ns", Value: oplogDB + "." + oplogColl},
			{Key: "cursor.originatingCommand.tailable", Value: true}, {Key: "$expr", Value: bson.D{{Key: "$or", Value: bson.A{
				bson.D{{Key: "$eq", Value: bson.A{"$type", "op"}}},
				bson.D{{Key: "$gt", Value: bson.A{"$cursor.lastAccessDate",
					bson.D{{Key: "$subtract", Value: bson.A{"$$NOW", 2000}}}}}}}}}}}}},
	})
	if err != nil {
		return 0, err
	}
	var ops []bson.Raw
	err = cur.All(t.Context(), &ops)
	return len(ops), err
}

// TestRecent: what a reader has looked at serves the others for a while; nobody waits beyond its context.
func TestRecent(t *testing.T) {
	c := connect(t, sharedURI)
	var s Shared
	f := s.join(c)
	first, err := s.Window(t.Context(), c)
	ok(t, err)
	_, err = c.Client.Database("recent").Collection("c").InsertOne(t.Context(), doc("1"))
	ok(t, err)
	again, err := s.Window(t.Context(), c)
	ok(t, err)
	if again.at != first.at || again.Newest != first.Newest {
		t.Errorf("%+v, then %+v", first, again)
	}
	s.leave(c, f)
	fresh, err := s.Window(t.Context(), c)
	ok(t, err)
	if !first.Newest.Before(fresh.Newest) {
		t.Errorf("%+v, then %+v", first, fresh)
	}
	r := newRecent[int]()
	r.turn <- struct{}{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.get(ended, 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
