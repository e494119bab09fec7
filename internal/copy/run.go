package copy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

// run is one Run under way.
type run struct {
	e      *Engine
	member scan.Member // that is read
	colls  []*collection
	jobs   *schedule
	budget *budget
	chunks chan *chunk

	mu         sync.Mutex
	dirty      []*slice
	saveFailed bool
}

func newRun(e *Engine) *run {
	return &run{
		e: e, jobs: newSchedule(), budget: newBudget(e.opts.MaxBufferedBytes),
		// The budget bounds what waits here; the capacity only saves wake-ups.
		chunks: make(chan *chunk, 256),
	}
}

// run has readers end when no job is left, writers when readers have ended,
// the saver when writers have.
func (r *run) run(ctx context.Context) error {
	for _, c := range r.colls {
		if !c.finished() {
			r.jobs.push(job{size: c.Source.Bytes, run: func(ctx context.Context, rd *reader) error { return rd.collection(ctx, c) }})
		}
	}
	if r.jobs.open == 0 {
		return nil
	}
	if err := r.chooseMember(ctx); err != nil {
		return err
	}
	if err := r.awaitPosition(ctx); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	written := make(chan struct{})
	g.Go(func() error { return r.save(gctx, written) })
	g.Go(func() error {
		defer close(written)
		return r.transfer(gctx)
	})
	err := g.Wait()
	if err != nil {
		r.lastSave(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// transfer reads and writes until all jobs are done.
func (r *run) transfer(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(r.chunks)
		o := &r.e.opts
		return crew{gate: o.SourceGate, base: o.Readers, most: o.mostReaders,
			work:    func(ctx context.Context) error { return (&reader{run: r, e: r.e}).work(ctx) },
			reserve: func(ctx context.Context) error { return (&reader{run: r, e: r.e, reserve: true}).work(ctx) },
		}.run(ctx)
	})
	g.Go(func() error {
		writers, err := r.writers(ctx)
		if err != nil {
			return err
		}
		o := &r.e.opts
		return crew{gate: o.TargetGate, base: writers, most: o.mostWriters,
			work:    func(ctx context.Context) error { return newWriter(r).work(ctx) },
			reserve: func(ctx context.Context) error { w := newWriter(r); w.reserve = true; return w.work(ctx) },
		}.run(ctx)
	})
	return g.Wait()
}

// writers is how many there are to begin with. One that waits for an answer keeps
// the target waiting as well, so that more of them are needed the longer it takes.
func (r *run) writers(ctx context.Context) (int, error) {
	o := &r.e.opts
	if !o.writersByDistance {
		return o.Writers, nil
	}
	conn, err := r.e.dst.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return 0, fmt.Errorf("copy: connect to the target: %w", err)
	}
	defer conn.Release()
	away := time.Hour
	for range 3 {
		began := time.Now()
		if _, err := conn.Run(ctx, "admin", bson.D{{Key: "ping", Value: 1}}); err != nil {
			return 0, fmt.Errorf("copy: reach the target: %w", err)
		}
		away = min(away, time.Since(began))
	}
	n := writersFor(o.Writers, away)
	if n > o.Writers {
		o.Log.Info("the target is far away: more writers", "round_trip", away.Round(time.Millisecond), "writers", n)
	}
	return n, nil
}

// doubling is the round trip for which there are twice as many writers: about
// what a near server needs for one insert of 4 MB while others are under way.
const doubling = 40 * time.Millisecond

// writersFor is how many writers there are for a target so far away, of which
// near are enough for one on this machine.
func writersFor(near int, away time.Duration) int {
	more := int(min(float64(near)*float64(away)/float64(doubling), atMostWriters))
	return max(near, min(near+more, atMostWriters))
}

// withoutConnection says that the copy goes on without one of the reserve.
func (r *run) withoutConnection(side string, err error) {
	r.e.opts.Log.Warn("no further connection; the copy goes on with those it has", "side", side, "error", err)
}

// chooseMember picks the member to read: the one that unfinished record-order
// plans belong to while it can be reached, else any that the reader selects.
func (r *run) chooseMember(ctx context.Context) error {
	for _, c := range r.colls {
		if len(c.plan) > 0 && !allDone(c.plan) && c.plan[0].Node != "" {
			node := c.plan[0].Node
			short, cancel := context.WithTimeout(ctx, 3*time.Second)
			conn, err := r.e.src.Pool.Checkout(short, wire.ByAddress(node))
			cancel()
			if err == nil {
				defer conn.Release()
				return r.choose(ctx, conn)
			}
			r.e.opts.Log.Warn("the source member that the copy was reading cannot be reached; its unfinished collections are read again from another",
				"member", node, "error", err)
			break
		}
	}
	conn, err := r.e.src.Pool.Checkout(ctx, r.e.src.Reader())
	if err != nil {
		return fmt.Errorf("copy: connect to the source: %w", err)
	}
	defer conn.Release()
	return r.choose(ctx, conn)
}

// choose makes the member behind conn the one that is read.
func (r *run) choose(ctx context.Context, conn *wire.Conn) (err error) {
	if r.member, err = scan.MemberOf(ctx, conn); err != nil {
		return fmt.Errorf("copy: read the source: %w", err)
	}
	return nil
}

// awaitPosition waits until the member has heard of the position after which
// everything is read; a secondary refuses a cluster time ahead of its own.
func (r *run) awaitPosition(ctx context.Context) error {
	conn, err := r.e.src.Pool.Checkout(ctx, wire.ByAddress(r.member.Node))
	if err != nil {
		return fmt.Errorf("copy: connect to the source: %w", err)
	}
	defer conn.Release()
	rd := &reader{run: r, e: r.e}
	rd.on(conn)
	for range 100 {
		_, err := rd.Name(ctx, &r.colls[0].Source, scan.ByID)
		if err != nil && mongo.Classify(err) == mongo.ClassRetry {
			return fmt.Errorf("copy: ask %s for its position: %w", r.member.Node, err) // else the readers wait for a member that is gone
		}
		if err == nil || ctx.Err() != nil || !mongo.IsCode(err, scan.CodeInvalidOptions) {
			return ctx.Err() // other errors concern the collection, not the position
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return mongo.Retry(fmt.Sprintf("copy: source member %s has not reached position %s", r.member.Node, r.e.opts.AfterClusterTime), nil, "")
}

// unsaved queues a slice for the saver.
func (r *run) unsaved(s *slice) {
	r.mu.Lock()
	r.dirty = append(r.dirty, s)
	r.mu.Unlock()
}

// queue has slices saved that nobody works on yet.
func (r *run) queue(ss []*slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range ss {
		s.unsaved = true
	}
	r.dirty = append(r.dirty, ss...)
}

// save makes progress durable until all is written, and then once more.
func (r *run) save(ctx context.Context, written <-chan struct{}) error {
	tick := time.NewTicker(r.e.opts.SaveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-written:
			if ctx.Err() != nil { // transfer failed; its error counts
				return ctx.Err()
			}
			return r.saveDirty(ctx)
		case <-tick.C:
			if err := r.saveDirty(ctx); err != nil {
				return err
			}
		}
	}
}

func (r *run) saveDirty(ctx context.Context) error {
	r.mu.Lock()
	dirty := r.dirty
	r.dirty = nil
	r.mu.Unlock()
	states := make([]scan.Slice, 0, len(dirty))
	for _, s := range dirty {
		if st := s.save(); s.c.current(st.Plan) {
			states = append(states, st)
		}
	}
	if len(states) == 0 {
		return nil
	}
	return r.saveStates(ctx, states)
}

func (r *run) saveStates(ctx context.Context, states []scan.Slice) error {
	if err := r.e.store.SaveSlices(ctx, states); err != nil {
		r.mu.Lock()
		r.saveFailed = true
		r.mu.Unlock()
		return fmt.Errorf("copy: save the progress of %d slices: %w", len(states), err)
	}
	return nil
}

// lastSave keeps what a run that ends early has done, if that is quickly
// possible. A failed save is final: it may have told that writes are lost.
func (r *run) lastSave(ctx context.Context) {
	const patience = 5 * time.Second
	if r.saveFailed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := r.saveDirty(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		r.e.opts.Log.Warn("progress of the last moments was not saved and is copied again", "error", err)
	}
}

// current reports that a plan has not been superseded.
func (c *collection) current(plan int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation == plan
}

// finished takes over a plan of which every slice is done.
func (c *collection) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.plan) == 0 || !allDone(c.plan) {
		return false
	}
	c.state = StateDone
	c.planned = len(c.plan)
	for _, st := range c.plan {
		c.docs += st.Docs
		c.bytes += st.Bytes
		if st.Dropped {
			c.state = StateDropped
		}
	}
	return true
}

func allDone(plan []scan.Slice) bool {
	for _, st := range plan {
		if !st.Done {
			return false
		}
	}
	return true
}
