package sharded_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/assigntest"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// lent is a job whose copy others borrow from.
type lent struct {
	*bed
	assigntest.Counter
	spec job.Spec
	job  *job.Job
	done <-chan error
	all  sync.WaitGroup
	ctx  context.Context
}

// lend starts a job that copies as slowly as a rate says.
func (b *bed) lend(spec job.Spec, bytes int64) *lent {
	b.Helper()
	l := &lent{bed: b}
	spec.Limits = pace.Rates{Bytes: bytes}
	spec.Readers, spec.Writers = 2, 4
	l.spec = spec
	spec.Offer = l.Offer(2 * time.Second)
	ctx, stop := context.WithCancel(context.Background())
	l.ctx = ctx
	b.Cleanup(func() { stop(); l.all.Wait() })
	l.job, l.done = b.start(spec)
	b.until(l.done, func() bool { return l.job.Status().Copy.Lendable > 0 })
	return l
}

// borrow has a worker copy for the job until it ends.
func (l *lent) borrow(worker string, ask assign.Ask, more ...func(*job.Spec)) (ended chan error) {
	spec := l.spec
	spec.Offer = &assign.Offer{Version: assigntest.Version}
	spec.Log = l.spec.Log.With("of", worker)
	for _, change := range more {
		change(&spec)
	}
	ended = make(chan error, 1)
	l.all.Go(func() { ended <- job.Assist(l.ctx, spec, worker, ask) })
	return ended
}

// of are the figures of a worker in the status.
func (l *lent) of(worker string) assign.Figures {
	return assigntest.Of(worker, l.job.Status().Copy.Workers)
}

func (l *lent) copies(worker string) {
	l.Helper()
	l.until(l.done, func() bool { return l.of(worker).Docs > 0 })
}

// copying expects that what was done came before the end of the copy.
func (l *lent) copying() {
	l.Helper()
	if p := l.job.Status().Phase; p != job.PhaseCopying {
		l.Fatalf("seed %d: in phase %s: the copy was over too soon to show anything", l.seed, p)
	}
}

// unlimited lets the copy go on as fast as it can.
func (l *lent) unlimited() {
	l.Helper()
	l.ok(l.job.SetLimits(l.Context(), pace.Rates{}))
}

// end has the job finalized, and its borrowers end.
func (l *lent) end(borrowers ...chan error) {
	l.Helper()
	for _, ended := range borrowers {
		if err := <-ended; err != nil && !errors.Is(err, assigntest.ErrNobody) {
			l.Errorf("seed %d: %v", l.seed, err)
		}
	}
	l.Logf("%+v of %d", l.job.Status().Copy.Workers, l.job.Status().Copy.Docs)
	l.finish(l.job, l.done)
}

// large fills collections of load.Writer so that they are copied in several slices, of
// which each shard has some.
func (b *bed) large(names ...string) {
	b.Helper()
	pad := bytes.Repeat([]byte("x"), 20_000)
	for _, name := range names {
		for from := 0; from < 4000; from += 500 {
			docs := make([]any, 500)
			for i := range docs {
				docs[i] = bson.D{{Key: "_id", Value: 200_000 + from + i}, {Key: "k", Value: (from + i) % 600},
					{Key: "pad", Value: pad}}
			}
			_, err := b.source.Database("d").Collection(name).InsertMany(b.Context(), docs)
			b.ok(err)
		}
	}
}

// wandering moves chunks of d.ranged with keys below 500, until it is told to end.
func (b *bed) wandering() (moves *atomic.Int32, end func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var g errgroup.Group
	moves = new(atomic.Int32)
	g.Go(func() error {
		if b.lab == nil {
			return nil
		}
		r := rand.New(rand.NewPCG(b.seed, 11))
		names := b.lab.ShardNames()
		for ctx.Err() == nil {
			if b.lab.MoveChunk(ctx, "d.ranged", key(100*r.IntN(5)), names[r.IntN(len(names))]) == nil {
				moves.Add(1)
			}
		}
		return nil
	})
	return moves, func() {
		b.Helper()
		cancel()
		b.ok(g.Wait())
	}
}

// strays has each shard hold documents of d.ranged that it does not own: some that are
// nowhere else, and earlier states of some that another one has. They are there before
// all others, which the servers' order makes the first that are read, and after them.
func (b *bed) strays(from int) {
	b.Helper()
	if b.lab == nil {
		return
	}
	owner, err := b.lab.OwnerOf(b.Context(), "d.ranged", key(550))
	b.ok(err)
	for _, name := range b.lab.ShardNames() {
		if name == owner {
			continue
		}
		direct, err := b.lab.Direct(name)
		b.ok(err)
		var docs []any
		for i := range 500 {
			docs = append(docs, bson.D{{Key: "_id", Value: from + i}, {Key: "k", Value: 550},
				{Key: "pad", Value: bytes.Repeat([]byte("s"), 20_000)}})
		}
		_, err = direct.Database("d").Collection("ranged").InsertMany(b.Context(), docs)
		b.ok(err)
	}
}

// TestLentOfShards: others copy parts of shards while documents are written, chunks move
// and a collection is dropped. What shards hold and do not own does not arrive.
func TestLentOfShards(t *testing.T) {
	lab.Nightly(t) // TestLent of internal/job has a replica set
	b := newBed(t)
	b.collections()
	lentWhileAllMoves(b, b.spec())
}

// TestLentToShards is TestLentOfShards with a sharded target.
func TestLentToShards(t *testing.T) {
	lab.Nightly(t)
	for name, fromShards := range map[string]bool{"replica set": false, "shards": true} {
		t.Run(name, func(t *testing.T) {
			b := newBedTo(t, "2x1", fromShards)
			lentWhileAllMoves(b.bed, b.spec())
			b.placed()
		})
	}
}

func lentWhileAllMoves(b *bed, spec job.Spec) {
	b.fill(20)
	b.strays(500_000)
	b.large("ranged", "plain", "gone")
	b.strays(600_000)
	_, err := b.source.Database("d").Collection("ranged").InsertOne(b.Context(),
		bson.D{{Key: "_id", Value: 600_000}, {Key: "k", Value: 550}, {Key: "newer", Value: true}})
	b.ok(err)
	moves, rest := b.wandering()
	end := b.loading()
	l := b.lend(spec, 3<<20)
	one, two := l.borrow("one", l.Ask), l.borrow("two", l.Ask)
	l.copies("one")
	l.copies("two")
	b.ok(b.source.Database("d").Collection("gone").Drop(b.Context()))
	_, err = b.source.Database("d").Collection("ranged").DeleteMany(b.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{11, 1}}}},
			{Key: "k", Value: bson.D{{Key: "$gte", Value: 300}}}})
	b.ok(err)
	if began := moves.Load(); b.lab != nil {
		b.until(l.done, func() bool { return moves.Load() > began })
	}
	l.copying()
	l.unlimited()
	b.following(l.job, l.done)
	rest()
	end()
	l.end(one, two)
}

// TestLentUnaware: what a worker has on its way that does not know that it was given up
// is waited for, before ranges are read again and changes are applied.
func TestLentUnaware(t *testing.T) {
	lab.Nightly(t)
	t.Run("of shards", func(t *testing.T) {
		b := newBed(t)
		b.collections()
		lentUnaware(b, b.spec(), b.targetURI)
	})
	t.Run("to shards", func(t *testing.T) {
		b := newBedTo(t, "2x1", false)
		// It is at the router that the job does not use for its own notes alone.
		lentUnaware(b.bed, b.spec(), b.routers[1].URI())
	})
}

func lentUnaware(b *bed, spec job.Spec, at string) {
	b.large("ranged")
	log := &logged{}
	spec.Log = slog.New(slog.NewTextHandler(log, nil))
	l := b.lend(spec, 1<<20)
	d := &assigntest.Deaf{Ask: l.Ask}
	one := l.borrow("one", d.Way)
	l.copies("one")
	left, err := mongo.Connect(b.Context(), at, mongo.Options{AppName: l.name()})
	b.ok(err)
	d.From.Store(true)
	l.unlimited()
	b.until(l.done, func() bool { return l.of("one").Why != "" })
	b.until(l.done, func() bool { return log.has("its slices wait for them to end") || l.of("one").Parts == 0 })
	if l.copying(); l.of("one").Parts == 0 {
		b.Error("its slices are taken back while it may write still")
	}
	left.Close()
	d.Over.Store(true)
	<-one
	b.following(l.job, l.done)
	l.end()
}

// logged keeps what was logged.
type logged struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.all.String(), text)
}

// name is that of the connections over which the job's one assistant writes.
func (l *lent) name() string {
	l.Helper()
	doc, err := l.target.Database("millrace").Collection("jobs").FindOne(l.Context(),
		bson.D{{Key: "_id", Value: l.job.ID()}}).Raw()
	l.ok(err)
	name, err := assigntest.Name(l.job.ID(), doc)
	l.ok(err)
	return name
}

// TestLentToShardsTooLate: a worker that reaches the target after it was given up writes
// nothing, whatever it believes.
func TestLentToShardsTooLate(t *testing.T) {
	lab.Nightly(t)
	b := newBedTo(t, "2x1", false)
	b.large("ranged")
	l := b.lend(b.spec(), 1<<20)
	late := assigntest.NewLate(l.Ask)
	early := l.borrow("early", late.Early)
	l.copies("early")
	ended := l.borrow("late", late.Way, late.Hold)
	<-late.Connecting
	late.Void.From.Store(true)
	l.unlimited()
	b.following(l.job, l.done)
	if err := <-early; err != nil && !errors.Is(err, assigntest.ErrNobody) {
		t.Error(err)
	}
	coll := b.source.Database("d").Collection("ranged")
	_, err := coll.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 200_010}}}})
	b.ok(err)
	arrived := func() bool {
		n, err := b.target.Database("d").Collection("ranged").CountDocuments(t.Context(), bson.D{})
		b.ok(err)
		return n == 10
	}
	b.until(l.done, arrived)
	late.Void.Over.Store(true)
	close(late.Release)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "gone on without") {
		t.Errorf("the late one ended with %v", err)
	}
	if !arrived() {
		t.Error("it has written")
	}
	l.end()
}

// one assigns a single slice, to whoever comes first.
type one struct {
	copy.Task
	slice scan.Slice
	taken atomic.Bool
}

// NextSlice is what copy.Engine.Assist asks.
func (o *one) NextSlice(context.Context) (*scan.Slice, copy.Task, error) {
	if o.taken.CompareAndSwap(false, true) {
		return &o.slice, o.Task, nil
	}
	return nil, copy.Task{}, nil
}

func (*one) LoadSlices(context.Context) ([]scan.Slice, error) { return nil, nil }
func (*one) SaveSlices(context.Context, []scan.Slice) error   { return nil }
func (*one) SameTerm(int64) error                             { return nil }

// TestLentToEachRouter: nothing is written by way of a router before the target was asked
// over that connection, whichever routers were before.
func TestLentToEachRouter(t *testing.T) {
	b := newBedTo(t, "1x1", false)
	b.insert("plain", 0, 600)
	b.ok(b.target.Database("d").CreateCollection(t.Context(), "plain"))
	specs, err := b.source.Database("d").ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: "plain"}})
	b.ok(err)
	src := dial.Cluster(t, b.sourceURI, mongo.Options{})
	conn, err := src.Pool.Checkout(t.Context(), src.Reader())
	b.ok(err)
	member, err := scan.MemberOf(t.Context(), conn)
	conn.Release()
	b.ok(err)
	coll := schema.Collection{NS: "d.plain", Type: schema.TypeCollection, UUID: *specs[0].UUID, IDIndex: true,
		Options: bson.Raw{5, 0, 0, 0, 0}, Count: 600, Bytes: 600 * 100}
	inserted := func() []int64 { return []int64{b.routers[0].Taken().Inserts, b.routers[1].Taken().Inserts} }
	var mu sync.Mutex
	borrow := func(most int) (asked []string, err error) {
		dst, err := mongo.Connect(t.Context(), b.targetURI, mongo.Options{})
		b.ok(err)
		defer dst.Close()
		from := &one{Task: copy.Task{Source: coll, Route: transform.Unruled(coll.NS, "d.plain")}}
		like := scan.Slice{Collection: copy.SlicesOf("plain", ""), NS: "d.plain", Strategy: scan.ByID}
		from.slice = scan.Slices(like, nil)[0]
		err = copy.New(src, dst, from, copy.Options{Readers: 1, Writers: 2, BatchBytes: 5000,
			Admit: func(_ context.Context, conn *wire.Conn) error {
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(asked, conn.Addr()) && len(asked) >= most {
					return errors.New("struck off")
				}
				asked = append(asked, conn.Addr())
				return nil
			}}).Assist(t.Context(), member, from.NextSlice)
		return asked, err
	}
	before := inserted()
	asked, err := borrow(1)
	if err == nil || !strings.Contains(err.Error(), "struck off") {
		t.Errorf("it ended with %v", err)
	}
	after := inserted()
	for i, r := range b.routers {
		if n := after[i] - before[i]; n > 0 && !slices.Contains(asked, r.Host()) {
			t.Errorf("%d documents came by %s, which was not asked", n, r.Host())
		}
	}
	_, err = b.target.Database("d").Collection("plain").DeleteMany(t.Context(), bson.D{})
	b.ok(err)
	before = inserted()
	asked, err = borrow(4)
	b.ok(err)
	after = inserted()
	if after[0] == before[0] || after[1] == before[1] {
		t.Errorf("by the routers came %v documents, then %v", before, after)
	}
	// A writer that came late may have had a batch or two, or none.
	if len(asked) > 4 || !slices.Contains(asked, b.routers[0].Host()) || !slices.Contains(asked, b.routers[1].Host()) {
		t.Errorf("two writers to two routers were asked over connections to %v", asked)
	}
	b.sameDocuments("plain")
}

// TestLentToOtherRouters: who would come by a router at which the job's owner does not
// look for connections does not copy.
func TestLentToOtherRouters(t *testing.T) {
	lab.Nightly(t)
	b := newBedTo(t, "1x1", false)
	b.large("plain")
	both := b.targetURI
	b.targetURI = b.routers[0].URI()
	l := b.lend(b.spec(), 1<<20)
	other := l.borrow("other", l.Ask, func(spec *job.Spec) { spec.Target = both })
	if err := <-other; err == nil || !strings.Contains(err.Error(), "router "+b.routers[1].Host()) {
		t.Errorf("it ended with %v", err)
	}
	b.until(l.done, func() bool { return strings.Contains(l.of("other").Why, "router") })
	if n := l.of("other").Docs; n != 0 {
		t.Errorf("it has copied %d documents", n)
	}
	same := l.borrow("same", l.Ask)
	l.copies("same")
	l.unlimited()
	b.following(l.job, l.done)
	l.end(same)
}

// TestLentAnew: the job is broken off while others copy for it, and chunks move. The
// next attempt goes on, and lends again.
func TestLentAnew(t *testing.T) {
	lab.Nightly(t)
	t.Run("of shards", func(t *testing.T) {
		b := newBed(t)
		b.collections()
		lentAnew(b, b.spec())
	})
	t.Run("to shards", func(t *testing.T) {
		b := newBedTo(t, "2x1", true)
		lentAnew(b.bed, b.spec())
	})
}

func lentAnew(b *bed, spec job.Spec) {
	b.fill(20)
	b.large("ranged", "plain")
	_, rest := b.wandering()
	l := b.lend(spec, 4<<20)
	one := l.borrow("one", l.Ask)
	l.copies("one")
	b.ok(l.job.Pause(b.Context()))
	if err := <-one; err == nil {
		b.Error("it ends as if all were done")
	}
	b.ok(l.job.Resume(b.Context()))
	b.until(l.done, func() bool { return l.job.Status().Copy.Lendable > 0 })
	two := l.borrow("two", l.Ask)
	l.copies("two")
	l.copying()
	l.unlimited()
	b.following(l.job, l.done)
	rest()
	l.end(two)
}
