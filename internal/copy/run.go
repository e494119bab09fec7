package copy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

type run struct {
	e       *Engine
	member  scan.Member   // that is read; none through routers
	routers *scan.Routers // that are read through; nil is a member
	chosen  bool          // what is read
	colls   []*collection
	jobs    *schedule
	budget  *budget
	chunks  chan *chunk
	ready   chan struct{} // closed when the targets are there

	mu         sync.Mutex
	dirty      map[*slice]bool
	saveFailed bool
}

func newRun(e *Engine) *run {
	r := &run{
		e: e, jobs: newSchedule(), budget: newBudget(e.opts.MaxBufferedBytes),
		// The budget bounds what waits here; the capacity only saves wake-ups.
		chunks: make(chan *chunk, 256),
		dirty:  map[*slice]bool{}, ready: make(chan struct{}),
	}
	if e.src.Cluster != nil && e.src.Info.Kind == mongo.KindSharded {
		r.routers = scan.NewRouters(e.src.Cluster)
	}
	return r
}

// source selects what is read.
func (r *run) source() wire.Selector {
	if r.routers != nil {
		return wire.Primary()
	}
	return wire.ByAddress(r.member.Node)
}

func await(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *run) awaitedReady() bool {
	select {
	case <-r.ready:
		return true
	default:
		return false
	}
}

func (r *run) getReady(ctx context.Context) error {
	if ready := r.e.opts.Ready; ready != nil {
		if err := ready(ctx); err != nil {
			return err
		}
	}
	if ask := r.e.opts.Keys; ask != nil {
		keys, err := ask(ctx)
		if err != nil {
			return err
		}
		for _, c := range r.colls {
			c.Key = keys[c.Target]
			c.key = docwrite.KeyOf(c.Key, c.Source.Collated())
		}
	}
	close(r.ready)
	return nil
}

// run ends readers when no job is left, then writers, then the saver.
func (r *run) run(ctx context.Context) error {
	var jobs []job
	for _, c := range r.colls {
		if len(c.plan) > 0 && allDone(c.plan) {
			c.adopt(r, c.plan)
		} else {
			read := func(ctx context.Context, rd *reader) error { return rd.collection(ctx, c) }
			jobs = append(jobs, job{size: c.Source.Bytes, run: read})
		}
	}
	if len(jobs) == 0 {
		return r.getReady(ctx)
	}
	r.jobs.push(jobs...)
	g, gctx := errgroup.WithContext(ctx)
	written := make(chan struct{})
	g.Go(func() error { return r.getReady(gctx) })
	g.Go(func() error { return r.save(gctx, written) })
	g.Go(func() error {
		defer close(written)
		if err := r.chooseMember(gctx); err != nil {
			return err
		}
		return r.transfer(gctx, r.read)
	})
	err := g.Wait()
	if err != nil && r.awaitedReady() {
		r.lastSave(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (r *run) transfer(ctx context.Context, read func(context.Context, worker) (more bool, err error)) error {
	o := &r.e.opts
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(r.chunks)
		return pool{gate: o.SourceGate, base: o.Readers, most: o.mostReaders, work: read}.run(ctx)
	})
	g.Go(func() error {
		return pool{gate: o.TargetGate, base: r.writers(), most: o.mostWriters, work: r.write}.run(ctx)
	})
	return g.Wait()
}

// connected lets reserve workers go without a connection.
func (r *run) connected(ctx context.Context, c cluster, to wire.Selector, reserve bool,
	do func(*wire.Conn) error) error {
	conn, err := c.Checkout(ctx, to)
	switch {
	case err == nil:
		defer conn.Release()
		return do(conn)
	case reserve && ctx.Err() == nil:
		r.e.opts.Log.Warn("no further connection; the copy goes on with those it has", "side", c.side, "error", err)
		return nil
	}
	return fmt.Errorf("copy: connect to the %s: %w", c.side, err)
}

// writers grows with the distance: a writer that waits keeps the target waiting, too.
func (r *run) writers() (n int) {
	o := &r.e.opts
	if !o.writersByDistance {
		return o.Writers
	}
	away := r.e.dst.Pool.RoundTripTime()
	if n = writersFor(o.Writers, away); n > o.Writers {
		o.Log.Info("the target is far away: more writers", "roundTrip", away.Round(time.Millisecond), "writers", n)
	}
	return n
}

// doubling is about what a near server takes for one insert of 4 MB beside others.
const doubling = 40 * time.Millisecond

func writersFor(near int, away time.Duration) int {
	more := int(min(float64(near)*float64(away)/float64(doubling), atMostWriters))
	return max(near, min(near+more, atMostWriters))
}

// chooseMember picks what is read, and waits until that has reached the position.
func (r *run) chooseMember(ctx context.Context) error {
	return r.connected(ctx, r.e.src, r.preferred(ctx), false, func(conn *wire.Conn) (err error) {
		var m scan.Member
		if r.routers == nil { // any router serves any slice
			if m, err = scan.MemberOf(ctx, conn); err != nil {
				return fmt.Errorf("copy: read the source: %w", err)
			}
		}
		r.mu.Lock()
		r.member, r.chosen = m, true
		r.mu.Unlock()
		return r.awaitPosition(ctx, conn)
	})
}

// preferred selects the member of unfinished record-order plans while it can be reached, else any that
// the reader selects. What moved between shards is read from the primary, which keeps what it gives
// away while a cursor reads it. Routers are asked to read primaries alone.
func (r *run) preferred(ctx context.Context) wire.Selector {
	if r.routers != nil {
		return r.source()
	}
	to := r.e.src.Reader()
	if slices.ContainsFunc(r.colls, func(c *collection) bool { return c.Owned != nil && c.Owned.Fixed() }) {
		to = wire.Primary()
	}
	begun := func(c *collection) bool { return len(c.plan) > 0 && !allDone(c.plan) && c.plan[0].Node != "" }
	if i := slices.IndexFunc(r.colls, begun); i >= 0 {
		node := r.colls[i].plan[0].Node
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		conn, err := r.e.src.Pool.Checkout(short, wire.ByAddress(node))
		if err == nil {
			conn.Release()
			return wire.ByAddress(node)
		}
		r.e.opts.Log.Warn(
			"the source member that the copy was reading cannot be reached; its unfinished collections are read again"+
				" from another",
			"member", node, "error", err)
	}
	return to
}

// awaitPosition waits: a secondary refuses a cluster time ahead of its own.
func (r *run) awaitPosition(ctx context.Context, conn *wire.Conn) error {
	rd := r.reader(conn)
	for range 100 {
		_, err := rd.Name(ctx, &r.colls[0].Source, scan.ByID)
		if err != nil && mongo.Classify(err) == mongo.ClassRetry {
			// else the readers wait for a member that is gone
			return fmt.Errorf("copy: ask %s for its position: %w", conn.Addr(), err)
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
	return mongo.Retry(fmt.Sprintf("copy: source member %s has not reached position %s", conn.Addr(),
		r.e.opts.AfterClusterTime), nil, "")
}

func (r *run) unsaved(ss ...*slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range ss {
		r.dirty[s] = true
	}
}

func (r *run) save(ctx context.Context, written <-chan struct{}) error {
	if err := await(ctx, r.ready); err != nil {
		return err
	}
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
	r.dirty = map[*slice]bool{}
	r.mu.Unlock()
	states := make([]scan.Slice, 0, len(dirty))
	for s := range dirty {
		if st := s.state(); s.c.current(st.Plan) {
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

// lastSave saves if possible at once. After a failed save it does not: writes may be lost.
func (r *run) lastSave(ctx context.Context) {
	const saveTime = 5 * time.Second
	if r.saveFailed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	if err := r.saveDirty(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		r.e.opts.Log.Warn("progress of the last moments was not saved and is copied again", "error", err)
	}
}

func (c *collection) current(plan int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation == plan
}

func allDone(plan []scan.Slice) bool {
	return !slices.ContainsFunc(plan, func(st scan.Slice) bool { return !st.Done })
}
