package seed

import (
	"context"
	"errors"
	"sync"
	"time"
)

// round is one copy of the member, for one puller or several.
type round struct {
	id     string
	agent  *Agent
	origin Origin
	files  map[string]*roundFile
	list   []File
	bytes  int64 // of list
	blocks *blocks
	began  time.Time
	pin    Pin           // of WayCursor
	over   chan struct{} // closed with the round

	mu      sync.Mutex
	pullers map[string]*puller
	state   roundState
	final   *Final
	failed  error
	changed chan struct{} // closed and replaced when pullers or state change
	spool   *spool

	closeOnce sync.Once // of over
}

type roundState int

const (
	roundCopying roundState = iota
	roundFreezing
	roundFrozen
	roundEnded
)

type puller struct {
	ready bool
	busy  int // requests under way
	stays int // requests that only tell that it is there
	seen  time.Time
	cut   bool // its last request was cut: it may be gone
}

// roundFile is what the round knows of a file.
type roundFile struct {
	first stamp // before the round read anything of it
	// caught is from before it was last summed up without a lock, to sums. Both
	// belong to whoever freezes the round.
	caught stamp
	sums   []Sum
	// bounded reports that bound bytes count, however long the file gets.
	bounded bool
	bound   int64

	mu     sync.Mutex
	served []Sum  // by block: what pullers hold, 0 when nobody does
	mixed  []bool // nil, or by block: pullers hold different states
	final  []Sum  // by block, once frozen; nil when nothing changed
	size   int64  // once frozen
}

func newRound(ctx context.Context, a *Agent, origin Origin) (*round, error) {
	id, err := randomID()
	if err != nil {
		return nil, err
	}
	r := &round{id: id, agent: a, origin: origin, files: map[string]*roundFile{},
		began: time.Now(), pullers: map[string]*puller{}, changed: make(chan struct{}), over: make(chan struct{})}
	if a.opts.Way == WayCursor {
		return r, r.pinFiles(ctx)
	}
	all, err := a.dir.list()
	if err != nil {
		return nil, err
	}
	r.setList(all.files)
	for _, f := range all.files {
		r.files[f.Path] = &roundFile{first: all.stamps[f.Path]}
	}
	return r, r.awaitWrites(ctx)
}

// setList gives the round the files that its manifest names.
func (r *round) setList(list []File) {
	r.list = list
	for _, f := range list {
		r.bytes += f.Size
	}
	r.blocks = newBlocks(blockSizeOf(r.bytes))
}

// signal wakes who waits for pullers or the state. r.mu is held.
func (r *round) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *round) takesMore() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == roundCopying
}

func (r *round) join() (*Manifest, error) {
	id, err := randomID()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != roundCopying {
		return nil, errNoRound
	}
	r.pullers[id] = &puller{seen: time.Now()}
	r.signal()
	m := &Manifest{Round: r.id, Puller: id, Way: r.agent.opts.Way, Why: r.agent.opts.Why, Origin: r.origin,
		BlockSize: r.blocks.size, Files: r.list, Bytes: r.bytes}
	return m, nil
}

// enter notes a request of a puller; the returned function notes how it ended.
func (r *round) enter(id string) (leave func(error), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pullers[id]
	if p == nil || r.state == roundEnded {
		return nil, errNoRound
	}
	p.busy++
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		p.busy--
		p.seen, p.cut = time.Now(), err != nil
	}, nil
}

// leave reports whether it was the last one.
func (r *round) leave(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pullers, id)
	r.signal()
	return len(r.pullers) == 0
}

// cutPart of the limit is what a puller gets that was cut off: if it lives, it
// tries again within seconds, and if it was killed, others wait for it.
const cutPart = 12

// idle drops silent pullers and reports whether none is left.
func (r *round) idle(limit time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.pullers {
		silent := time.Since(p.seen)
		if p.busy == 0 && (silent > limit || p.cut && silent > limit/cutPart) {
			delete(r.pullers, id)
			r.signal()
		}
	}
	return len(r.pullers) == 0
}

// end forgets what was put aside.
func (r *round) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = roundEnded
	r.signal()
	r.closeOnce.Do(func() { close(r.over) })
	if r.spool == nil {
		return nil
	}
	s := r.spool
	r.spool = nil
	return s.remove()
}

// freeze waits until all pullers have read everything once, and freezes the
// member for them; the first one that finds all ready begins. A patience of 0 has
// no end.
func (r *round) freeze(ctx context.Context, id string, patience time.Duration) (*Final, error) {
	giveUp := time.Now().Add(patience)
	done, err := r.enter(id)
	if err != nil {
		return nil, err
	}
	defer func() { done(ctx.Err()) }()
	r.mu.Lock()
	if p := r.pullers[id]; p != nil && !p.ready {
		p.ready = true
		r.signal()
	}
	r.mu.Unlock()
	for {
		changed, final, err := r.turn()
		if err != nil || final != nil {
			return final, err
		}
		if patience > 0 && time.Now().After(giveUp) {
			return nil, errNotYet
		}
		timer := time.NewTimer(time.Second) // a silent puller ends by time alone
		select {
		case <-changed:
		case <-timer.C:
			r.idle(r.agent.opts.Idle)
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// close freezes the member. It belongs to the round, not to the request that it
// began with: it may take longer than a request may, and a puller that was cut
// finds its result when it comes back. It ends with the round.
func (r *round) close() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-r.over:
			cancel()
		case <-ctx.Done():
		}
	})
	r.settle(r.closing(ctx))
	cancel()
	wg.Wait()
}

// turn reports what a ready puller has to do: take the result, or wait. It begins
// the freeze when all are ready.
func (r *round) turn() (changed <-chan struct{}, final *Final, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.state {
	case roundFrozen:
		return nil, r.final, nil
	case roundEnded:
		if r.failed != nil {
			return nil, nil, r.failed
		}
		return nil, nil, errNoRound
	case roundFreezing:
		return r.changed, nil, nil
	}
	if len(r.pullers) < r.agent.opts.Pullers {
		return r.changed, nil, nil
	}
	for _, p := range r.pullers {
		if !p.ready {
			return r.changed, nil, nil
		}
	}
	r.state = roundFreezing
	r.agent.work.Go(r.close) // with r.mu held: an agent that closes ends the round first
	return r.changed, nil, nil
}

// settle notes how freezing ended. Where a clone was cut another puller tries
// again.
func (r *round) settle(final *Final, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == roundEnded {
		return
	}
	switch {
	case err == nil:
		r.state, r.final = roundFrozen, final
	case errors.Is(err, context.Canceled):
		r.state = roundCopying
	default:
		r.state, r.failed = roundEnded, err
	}
	r.signal()
}
