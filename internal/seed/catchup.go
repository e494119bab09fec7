package seed

import (
	"context"
	"time"
)

// settler is a Freezer that can have the member write out what it holds. What a
// member changed since its last checkpoint, up to a minute of writes, is in no
// file yet: the lock's own checkpoint would write it, and all of it would have to
// be put aside under the lock.
type settler interface {
	Settle(ctx context.Context) error
}

const (
	// catchUpPasses bounds the passes without a lock.
	catchUpPasses = 3
	// caughtUp is so little in a pass, in bytes, that another one does not
	// shorten the lock.
	caughtUp = 32 << 20
)

// catchUp goes over the files before the lock, as often as it helps, and puts
// aside what changed since pullers read them: under the lock the same blocks are
// summed up again, but few are new. What changes during a pass is left to the next
// one or to the lock, so that another pass helps where the last one took much less
// time than it made up for.
func (r *round) catchUp(ctx context.Context, aside *spool) (times LockTimes, err error) {
	a := r.agent
	if a.opts.Way != WayLock {
		return times, nil
	}
	begun, since := time.Now(), r.began
	for pass := range catchUpPasses {
		began, before := time.Now(), aside.size()
		if err := r.settled(ctx); err != nil {
			return times, err
		}
		settle := time.Since(began)
		times.Settle += settle.Seconds()
		read, err := r.catchUpOnce(ctx, aside)
		if err != nil {
			return times, err
		}
		added := aside.size() - before
		took, madeUpFor := time.Since(began), began.Sub(since)
		a.opts.Log.Debug("caught up with the member", "pass", pass+1, "settle", settle, "took", took, "readBytes", read, "changedBytes", added)
		if added < caughtUp || took > madeUpFor/2 {
			break
		}
		since = began
	}
	times.CatchUp, times.CaughtBytes = time.Since(begun).Seconds(), aside.size()
	return times, nil
}

// settled has the member write out what it holds, if that can be done.
func (r *round) settled(ctx context.Context) error {
	s, ok := r.agent.opts.Freezer.(settler)
	if !ok {
		return nil
	}
	err := s.Settle(ctx)
	if err != nil && ctx.Err() == nil {
		r.agent.opts.Log.Warn("the member took no checkpoint before the lock, which may last longer", "error", err)
	}
	return ctx.Err()
}

// catchUpOnce reads the files that changed, and returns how much that was.
func (r *round) catchUpOnce(ctx context.Context, aside *spool) (int64, error) {
	l, read, err := r.outdated()
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	for path, known := range l.files { // also those that are new
		if r.files[path] == nil {
			r.files[path] = known
		}
	}
	r.mu.Unlock()
	for _, c := range read {
		c.sums = make([]Sum, r.blocks.size.blocks(c.Size))
	}
	if err := r.compareFiles(ctx, read, aside); err != nil {
		return 0, err
	}
	for _, c := range read {
		if c.known.caught, c.known.sums = l.stamps[c.Path], c.sums; c.torn.Load() {
			c.known.caught = stamp{}
		}
	}
	return bytesOf(read), nil
}

// outdated are the files that were written to since they were caught up with, to
// be compared.
func (r *round) outdated() (*listing, []*comparison, error) {
	l, err := r.listing()
	if err != nil {
		return nil, nil, err
	}
	var read []*comparison
	for _, f := range l.list {
		known := l.files[f.Path]
		if !r.same(f, l) && !l.stamps[f.Path].unchangedSince(known.caught) {
			read = append(read, &comparison{File: f, known: known, live: true})
		}
	}
	return l, read, nil
}

func bytesOf(list []*comparison) (n int64) {
	for _, c := range list {
		n += c.Size
	}
	return n
}
