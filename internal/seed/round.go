package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// round is one copy of the member, for one puller or several.
type round struct {
	id     string
	agent  *Agent
	origin Origin
	files  map[string]*roundFile
	list   []File
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
	seen  time.Time
	cut   bool // its last request was cut: it may be gone
}

// roundFile is what the round knows of a file.
type roundFile struct {
	first stamp // before the round read anything of it
	// bounded tells that bound bytes count, however long the file gets.
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
	list, stamps, err := listFiles(a.root)
	if err != nil {
		return nil, err
	}
	r.list = list
	for _, f := range list {
		r.files[f.Path] = &roundFile{first: stamps[f.Path]}
	}
	return r, nil
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
	m := &Manifest{Round: r.id, Puller: id, Way: r.agent.opts.Way, Why: r.agent.opts.Why, Origin: r.origin, Files: r.list}
	for _, f := range r.list {
		m.Bytes += f.Size
	}
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

// idle drops silent pullers and tells whether none is left.
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
// member for them; the first one that finds all ready does the work. A patience
// of 0 has no end.
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
		mine, changed, final, err := r.turn()
		switch {
		case err != nil:
			return nil, err
		case final != nil:
			return final, nil
		case mine:
			r.settle(r.closing(ctx))
			continue
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

// turn tells what a ready puller has to do: take the result, freeze the
// member itself, or wait.
func (r *round) turn() (mine bool, changed <-chan struct{}, final *Final, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.state {
	case roundFrozen:
		return false, nil, r.final, nil
	case roundEnded:
		if r.failed != nil {
			return false, nil, nil, r.failed
		}
		return false, nil, nil, errNoRound
	case roundFreezing:
		return false, r.changed, nil, nil
	}
	if len(r.pullers) < r.agent.opts.Pullers {
		return false, r.changed, nil, nil
	}
	for _, p := range r.pullers {
		if !p.ready {
			return false, r.changed, nil, nil
		}
	}
	r.state = roundFreezing
	return true, nil, nil, nil
}

// settle notes how freezing ended. A puller whose own request was cut lets
// another one try again.
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

// read reads blocks: out of what was put aside under the lock, else from the
// file itself.
func (r *round) read(ctx context.Context, q ReadRequest, fn func(Block) error) (err error) {
	done, err := r.enter(q.Puller)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	f := r.files[q.Path] // nothing but what the manifest names is ever opened
	r.mu.Lock()
	frozen, aside := r.state == roundFrozen, r.spool
	r.mu.Unlock()
	if f == nil || q.First < 0 || q.First > maxFileSize/BlockSize || len(q.Have) == 0 || len(q.Have) > rangeBlocks {
		return fmt.Errorf("seed: no such blocks: %s from %d", q.Path, q.First)
	}
	if frozen && r.agent.opts.Way != WayStopped {
		return f.readFrozen(ctx, r.agent, aside, q, fn)
	}
	return f.readLive(ctx, r.agent, q, fn)
}

// readLive reads from the file, and notes what was given away.
func (f *roundFile) readLive(ctx context.Context, a *Agent, q ReadRequest, fn func(Block) error) error {
	file, err := a.root.Open(q.Path)
	if errors.Is(err, fs.ErrNotExist) && !f.bounded {
		return nil // it is not in the final state either
	}
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", q.Path, err)
	}
	defer file.Close()
	buf := make([]byte, BlockSize)
	for i, have := range q.Have {
		n, err := readBlock(file, q.First+int64(i), buf)
		if err == nil && f.bounded {
			n, err = f.within(q, q.First+int64(i), n)
		}
		if err != nil || n == 0 {
			return err
		}
		b := Block{Index: q.First + int64(i), Sum: sumOf(buf[:n]), Data: buf[:n]}
		f.note(b.Index, b.Sum)
		if b.Sum == have {
			b.Same, b.Data = true, nil
		} else if err := a.opts.Limit.Wait(ctx, 1, int64(n)); err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// within cuts a block to what counts, all of which has to be there: nobody looks
// at the file again.
func (f *roundFile) within(q ReadRequest, index int64, n int) (int, error) {
	want := int(max(min(BlockSize, f.bound-index*BlockSize), 0))
	if n < want {
		return 0, fmt.Errorf("seed: %s became shorter while a backup cursor was open", q.Path)
	}
	return want, nil
}

// readBlock reads a block, which the end of the file may cut short.
func readBlock(f *os.File, index int64, buf []byte) (int, error) {
	n, err := f.ReadAt(buf[:BlockSize], index*BlockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("seed: read %s at %d: %w", f.Name(), index*BlockSize, err)
	}
	return n, nil
}

// note remembers what a puller has got.
func (f *roundFile) note(index int64, s Sum) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for int64(len(f.served)) <= index {
		f.served = append(f.served, 0)
	}
	if old := f.served[index]; old != 0 && old != s {
		for len(f.mixed) < len(f.served) {
			f.mixed = append(f.mixed, false)
		}
		f.mixed[index] = true
	}
	f.served[index] = s
}

// held tells whether every puller holds exactly this.
func (f *roundFile) held(index int64, s Sum) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return index < int64(len(f.served)) && f.served[index] == s &&
		(index >= int64(len(f.mixed)) || !f.mixed[index])
}

// readFrozen reads the state of the frozen moment.
func (f *roundFile) readFrozen(ctx context.Context, a *Agent, aside *spool, q ReadRequest, fn func(Block) error) error {
	buf := make([]byte, BlockSize)
	for i, have := range q.Have {
		index := q.First + int64(i)
		if index >= int64(len(f.final)) {
			return nil
		}
		b := Block{Index: index, Sum: f.final[index]}
		if b.Sum == have {
			b.Same = true
		} else if n, err := f.frozenBlock(a, aside, q.Path, index, buf); err != nil {
			return err
		} else if b.Data = buf[:n]; sumOf(b.Data) != b.Sum {
			return mongo.WithHint(fmt.Errorf("seed: block %d of %s has changed since the member was locked", index, q.Path), "begin again: what is there will be used")
		} else if err := a.opts.Limit.Wait(ctx, 1, int64(n)); err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// length is the length of a block of the frozen file.
func (f *roundFile) length(index int64) int64 { return min(BlockSize, f.size-index*BlockSize) }

func (f *roundFile) frozenBlock(a *Agent, aside *spool, path string, index int64, buf []byte) (int, error) {
	if n := f.length(index); f.final[index] == sumOf(a.zeros[:n]) {
		clear(buf[:n])
		return int(n), nil
	}
	if aside != nil {
		if n, ok, err := aside.read(path, index, buf); ok || err != nil {
			return n, err
		}
	}
	file, err := a.root.Open(path)
	if err != nil {
		return 0, fmt.Errorf("seed: open %s: %w", path, err)
	}
	defer file.Close()
	return readBlock(file, index, buf)
}
