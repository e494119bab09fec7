package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/wire"
)

const (
	writesPerSecond = 100
	p50, p99, pMax  = "p50 ms", "p99 ms", "max ms"
	// lookEvery is the pause between two looks at the target, and so the error of a latency.
	lookEvery = 200 * time.Microsecond
)

// followingOne measures how long a write takes to become visible. Followers show only what cannot roll back, so the
// source's journal flush, every 100 ms, counts unless the writer waits for it.
type followingOne struct{ concerns []any }

func (l followingOne) run(ctx context.Context, b *bench, s scenario) error {
	return b.onServers(ctx, s, followed(990), func(st *site) error {
		for _, concern := range l.concerns {
			t := timing{st, b.insertsTimed(), concern}
			err := b.follows(ctx, st, t.timed(s, fmt.Sprintf("w-%v", concern), ""),
				t.watched("change stream of the driver on the source", changeStream(st)))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bench) insertsTimed() int { return int(b.o.Scale.Duration.Seconds() * writesPerSecond) }

// timing is inserts that are timed, of a number and with a write concern.
type timing struct {
	st      *site
	n       int
	concern any
}

// timed is the case of a variant; more is said of its work.
func (t timing) timed(s scenario, variant, more string) Case {
	return Case{
		Scenario: s.name, Variant: variant, Ceiling: s.ceiling, Unit: "operations", RatioOf: p50,
		Work: fmt.Sprintf("%d inserts of 1 KB documents with write concern %v, one each 10 ms; timed from before the "+
			"insert is sent%s", t.n, t.concern, more),
	}
}

// watched are the inserts as the ceiling sees them, and on the target.
func (t timing) watched(how string, ceiling observer) watched {
	return watched{
		how: how, seeing: "; seen by a find on the target every " + lookEvery.String(),
		alone: func(ctx context.Context, m *meter) error { return t.run(ctx, m, ceiling) },
		with:  func(ctx context.Context, m *meter) error { return t.run(ctx, m, lookOnTarget(t.st)) },
	}
}

// followingShards is the same from a sharded cluster. A shard on which nothing happens has to be asked.
type followingShards struct{}

func (followingShards) run(ctx context.Context, b *bench, s scenario) error {
	return b.eachPairing(func(p pairing) error {
		needs := followed(990)
		needs.pairing = p
		return b.onServers(ctx, s, needs, func(st *site) error {
			t := timing{st, b.insertsTimed(), "majority"}
			return b.follows(ctx, st, t.timed(s, p.name(), "; "+p.describe()),
				t.watched("no follower; until the insert is acknowledged", nobody))
		})
	})
}

// followingSettings is the same with each of some settings, while the source takes other writes, so many a second.
type followingSettings struct {
	settings []setting
	load     workload
	pace     float64
}

func (l followingSettings) run(ctx context.Context, b *bench, s scenario) error {
	l.load.shape, l.load.operations = small(), 1<<30
	return b.onServers(ctx, s, followed(8000), func(st *site) error {
		t, writes := timing{st, b.insertsTimed(), "majority"}, paced{l.load, l.pace, time.Hour}
		under := func(see observer) func(context.Context, *meter) error {
			return func(ctx context.Context, m *meter) error {
				stop := beside(ctx, func(ctx context.Context) error {
					_, err := writes.run(ctx, st.source)
					return err
				})
				err := t.run(ctx, m, see)
				return errors.Join(err, stop())
			}
		}
		var tools []follower
		for _, x := range l.settings {
			tools = append(tools, b.follower(st, Variant{x.name(), x.args()}))
		}
		c := t.timed(s, "", fmt.Sprintf("; meanwhile %s writes a second of documents of %d bytes into %d collections",
			grouped(int64(l.pace)), l.load.shape.size, l.load.collections))
		return b.followedBy(ctx, st, c, watched{how: "no follower; until the insert is acknowledged", alone: under(nobody),
			with: under(lookOnTarget(st)), collections: l.load.collections,
			seeing: "; seen by a find on the target every " + lookEvery.String()}, tools)
	})
}

// nobody is an observer that does not look: an acknowledged insert counts as seen.
func nobody(_ context.Context, c *clock, ready func()) error {
	c.acknowledged = true
	ready()
	return nil
}

// clock notes when each document, by its _id from 0, was sent and seen.
type clock struct {
	mu           sync.Mutex
	sent, seen   []time.Time
	acknowledged bool // acknowledged inserts count as seen.
}

// observer waits for documents until all have come and notes when. It calls ready as soon as it would see one.
type observer func(ctx context.Context, c *clock, ready func()) error

// run inserts documents at an even pace and notes how long they take.
func (t timing) run(ctx context.Context, m *meter, observe observer) error {
	c := &clock{sent: make([]time.Time, t.n), seen: make([]time.Time, t.n)}
	err := m.during(ctx, t.st, func() error {
		g, ctx := errgroup.WithContext(ctx)
		ready := make(chan struct{})
		g.Go(func() error { return observe(ctx, c, sync.OnceFunc(func() { close(ready) })) })
		g.Go(func() error {
			select {
			case <-ready:
				return c.write(ctx, t.st.source, t.concern)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		return g.Wait()
	})
	if err != nil {
		return err
	}
	var ms []float64
	for i := range t.n {
		ms = append(ms, c.seen[i].Sub(c.sent[i]).Seconds()*1000)
	}
	m.latencies(ms)
	return nil
}

// write inserts the documents, one each ten milliseconds.
func (c *clock) write(ctx context.Context, to *side, concern any) error {
	w, err := newWriter(ctx, to, concern)
	if err != nil {
		return err
	}
	defer w.conn.Release()
	pad := bson.Binary{Data: newNoise()[:1024]}
	began := time.Now()
	for i := range c.sent {
		if wait := time.Until(began.Add(time.Duration(i) * time.Second / writesPerSecond)); wait > 0 && !tick(ctx, wait) {
			return ctx.Err()
		}
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
		if err != nil {
			return err
		}
		if err := w.begin("insert", collection(0), false, "documents"); err != nil {
			return err
		}
		w.msg.AppendDocument(doc)
		c.mu.Lock()
		c.sent[i] = time.Now()
		c.mu.Unlock()
		if err := w.send(ctx, "insert", w.msg.Docs()); err != nil {
			return err
		}
		if c.acknowledged {
			if err := c.saw(bson.Raw(doc).Lookup("_id")); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *clock) saw(id bson.RawValue) error {
	i, ok := id.AsInt64OK()
	if !ok || i < 0 || i >= int64(len(c.seen)) {
		return fmt.Errorf("unexpected document %s", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[i] = time.Now()
	return nil
}

// changeStream sees documents as the source's change stream gives them.
func changeStream(st *site) observer {
	return func(ctx context.Context, c *clock, ready func()) error {
		cs, err := st.source.Client.Database(dataDB).Collection(collection(0)).Watch(ctx, bson.A{}, options.ChangeStream())
		if err != nil {
			return fmt.Errorf("watch the source: %w", err)
		}
		defer cs.Close(context.WithoutCancel(ctx))
		ready()
		for range c.seen {
			if !cs.Next(ctx) {
				return fmt.Errorf("change stream: %w", cmp.Or(cs.Err(), errors.New("ended")))
			}
			if err := c.saw(cs.Current.Lookup("documentKey", "_id")); err != nil {
				return err
			}
		}
		return nil
	}
}

// lookOnTarget sees documents as soon as a find on the target returns them, in any order.
func lookOnTarget(st *site) observer {
	return func(ctx context.Context, c *clock, ready func()) error {
		conn, err := st.target.direct.Pool.Checkout(ctx, wire.Primary())
		if err != nil {
			return err
		}
		defer conn.Release()
		ready()
		next := 0
		for next < len(c.seen) {
			raw, err := conn.Run(ctx, dataDB, bson.D{
				{Key: "find", Value: collection(0)},
				{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: next},
					{Key: "$lt", Value: len(c.seen)}}}}},
				{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}},
				{Key: "singleBatch", Value: true},
			})
			if err != nil {
				return fmt.Errorf("look on the target: %w", err)
			}
			if err := c.sawAll(bson.Raw(raw)); err != nil {
				return err
			}
			for next < len(c.seen) && !c.seen[next].IsZero() {
				next++
			}
			if !tick(ctx, lookEvery) {
				return context.Cause(ctx)
			}
		}
		return nil
	}
}

// sawAll notes the documents of a reply that are new.
func (c *clock) sawAll(reply bson.Raw) error {
	docs, _ := reply.Lookup("cursor", "firstBatch").ArrayOK()
	values, err := docs.Values()
	if err != nil {
		return err
	}
	for _, v := range values {
		id := v.Document().Lookup("_id")
		if i, ok := id.AsInt64OK(); ok && i >= 0 && i < int64(len(c.seen)) && !c.seen[i].IsZero() {
			continue
		}
		if err := c.saw(id); err != nil {
			return err
		}
	}
	return nil
}
