package verify

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/semaphore"
)

// candidate holds no document, only what the last look saw of it.
type candidate struct {
	suspect
	size int // of the larger document, as the scan saw it

	looks int
	first time.Time // of the first look
	since time.Time // both sides stand still since then
	a, b  digest    // what the last look saw
}

type suspect struct {
	c   *collection
	key string // _id, as appendID makes it
}

// digest is the hash of a document's bytes, of none if it is missing. It tells whether a document
// changed between two looks.
type digest = xxh3.Uint128

// rechecker looks at mismatches again until they are decided. Any goroutine may call add; one calls
// run.
type rechecker struct {
	e     *Engine
	seed  uint64
	space *semaphore.Weighted // bytes of queued candidates
	ended chan struct{}       // no more will be added

	mu     sync.Mutex
	queued map[suspect]*candidate
}

const candidateCost = 256

func (r *rechecker) cost(key string) int64 {
	return min(int64(len(key)+candidateCost), int64(r.e.limits.queue))
}

// add queues a mismatch. When the queue is full, it and the scan wait for decisions: nothing is
// left out.
func (r *rechecker) add(ctx context.Context, cand candidate) error {
	cost := r.cost(cand.key)
	if err := r.space.Acquire(ctx, cost); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued[cand.suspect] != nil {
		r.space.Release(cost)
		return nil
	}
	r.queued[cand.suspect] = &cand
	r.e.c.waiting.Add(1)
	return nil
}

func (r *rechecker) run(ctx context.Context) error {
	pause := time.NewTicker(r.e.o.Recheck.Every)
	defer pause.Stop()
	ended := r.ended
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			ended = nil
		case <-pause.C:
		}
		if err := r.round(ctx); err != nil {
			return err
		}
		if ended == nil && r.e.c.waiting.Load() == 0 {
			return nil
		}
	}
}

func (r *rechecker) round(ctx context.Context) error {
	open := map[*collection][]*candidate{}
	r.mu.Lock()
	for _, cand := range r.queued {
		open[cand.c] = append(open[cand.c], cand)
	}
	r.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	if err := r.e.advance(ctx); err != nil {
		return err
	}
	for c, cands := range open {
		for len(cands) > 0 {
			n := chunk(len(cands), r.e.limits.batch, func(i int) int { return cands[i].size + len(cands[i].key) })
			if err := r.look(ctx, c, cands[:n]); err != nil {
				return err
			}
			cands = cands[n:]
		}
	}
	return nil
}

func (r *rechecker) look(ctx context.Context, c *collection, cands []*candidate) error {
	now := time.Now()
	keys := make([]string, len(cands))
	for i, cand := range cands {
		keys[i] = cand.key
	}
	return again(ctx, r.e.o.Log, "look again at documents of "+c.pair.Source, func() error {
		return c.pairs(ctx, keys, func(i int, a, b []byte) error {
			r.decide(cands[i], a, b, now)
			return nil
		})
	})
}

func (r *rechecker) decide(cand *candidate, a, b []byte, now time.Time) {
	if r.e.o.agree(a, b) {
		r.e.c.settled.Add(1)
		cand.c.row.Settled++
	} else {
		note, final := r.observe(cand, xxh3.Hash128Seed(a, r.seed), xxh3.Hash128Seed(b, r.seed), now)
		if !final {
			return
		}
		cand.c.differ(a, b, note)
	}
	cand.c.row.Rechecked++
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.queued, cand.suspect)
	r.space.Release(r.cost(cand.key))
	r.e.c.waiting.Add(-1)
}

func (r *rechecker) observe(cand *candidate, a, b digest, now time.Time) (note string, final bool) {
	o := r.e.o.Recheck
	if o.Hold != nil && o.Hold() {
		cand.looks = 0
		return "", false
	}
	if cand.looks == 0 {
		cand.first, cand.since = now, now
	} else if a != cand.a || b != cand.b {
		cand.since = now
	}
	cand.looks++
	cand.a, cand.b = a, b
	if now.Sub(cand.since) >= o.Quiet {
		return "", true
	}
	if cand.looks >= minLooks && now.Sub(cand.first) >= o.For {
		return fmt.Sprintf("still changing after %s", o.For), true
	}
	return "", false
}

// minLooks keeps the time limit from deciding when looks take long.
const minLooks = 5

// chunk counts items that fit into limit bytes: at least one, at most a thousand.
func chunk(n, limit int, size func(int) int) int {
	total := 0
	for i := range min(n, 1000) {
		if total += size(i); total > limit && i > 0 {
			return i
		}
	}
	return min(n, 1000)
}
