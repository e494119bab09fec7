package seed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// round is one copy of the member, for one or more pullers.
type round struct {
	id     string
	agent  *Agent
	origin Origin
	files  map[string]*roundFile
	list   []File
	bytes  int64 // of list
	blocks *blocks
	began  time.Time
	pin    *backupCursor // of WayCursor
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
	stays int // open stay requests
	seen  time.Time
	cut   bool // its last request was cut
}

type roundFile struct {
	first stamp // before the round read anything of it
	// caught is the stamp before catchUp last hashed it to sums. Both belong to the freezing goroutine.
	caught  stamp
	sums    []Sum
	bounded bool // only bound bytes count, however long the file gets
	bound   int64

	mu     sync.Mutex
	served []Sum  // by block: what pullers have, 0 for nothing
	mixed  []bool // nil, or by block: pullers have different states
	final  []Sum  // by block, once frozen; nil when nothing changed
	size   int64  // once frozen
}

func newRound(ctx context.Context, a *Agent, origin Origin) (*round, error) {
	r := &round{id: rand.Text(), agent: a, origin: origin, files: map[string]*roundFile{},
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

func (r *round) setList(list []File) {
	r.list = list
	for _, f := range list {
		r.bytes += f.Size
	}
	r.blocks = newBlocks(blockSizeOf(r.bytes))
}

// signal wakes those that wait for pullers or the state. r.mu is locked.
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
	id := rand.Text()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != roundCopying {
		return nil, errNoRound
	}
	r.pullers[id] = &puller{seen: time.Now()}
	r.signal()
	return &Manifest{Round: r.id, Puller: id, Way: r.agent.opts.Way, Why: r.agent.opts.Why, Origin: r.origin,
		BlockSize: r.blocks.size, Files: r.list, Bytes: r.bytes}, nil
}

// enter counts a request of a puller; leave ends it.
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

// leave removes a puller, and reports whether none is left.
func (r *round) leave(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pullers, id)
	r.signal()
	return len(r.pullers) == 0
}

// cutPart divides the time limit of a puller that was cut off, which retries within seconds or was killed.
const cutPart = 12

// idle drops silent pullers, and reports whether none is left.
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

// freeze waits until all pullers have read everything once. It returns errNotYet after a limit; 0 is none.
func (r *round) freeze(ctx context.Context, id string, limit time.Duration) (*Final, error) {
	giveUp := time.Now().Add(limit)
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
		if limit > 0 && time.Now().After(giveUp) {
			return nil, errNotYet
		}
		select {
		case <-changed:
		case <-time.After(time.Second): // a silent puller gives no signal
			r.idle(r.agent.opts.Idle)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// close freezes the member. It ends with the round and not with a request: a puller that was cut asks again.
func (r *round) close() {
	ctx, cancel := endingWith(context.Background(), r.over, nil)
	defer cancel()
	r.settle(r.closing(ctx))
}

// endingWith returns a context that also ends when a channel is closed, with a cause.
func endingWith(ctx context.Context, over <-chan struct{}, cause error) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the context
		select {
		case <-over:
			cancel(cause)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// turn returns the result, or a channel to wait for. It begins the freeze when all pullers are ready.
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
	r.agent.work.Go(r.close) // with r.mu locked: an agent that closes ends the round first
	return r.changed, nil, nil
}

// settle records how the freeze ended. After one that was cut another puller retries.
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

// stay keeps a connection to an agent on another machine.
func (p *pull) stay(ctx context.Context, m *Manifest) (stop func()) {
	client, ok := p.src.(*Client)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := client.Stay(ctx, m.Round, m.Puller); ctx.Err() == nil {
			p.o.Log.Debug("the connection that shows this puller to the agent ended", "error", err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// stay keeps an open request of a puller. A puller whose request was cut may have been killed: it gets less time
// than a silent one.
func (r *round) stay(ctx context.Context, id string, limit time.Duration) error {
	r.mu.Lock()
	p := r.pullers[id]
	if p == nil || r.state == roundEnded {
		r.mu.Unlock()
		return errNoRound
	}
	p.stays++
	p.seen, p.cut = time.Now(), false
	r.mu.Unlock()
	select {
	case <-time.After(limit):
	case <-r.over:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.stays--
	if ctx.Err() != nil && p.busy == 0 && p.stays == 0 {
		p.seen, p.cut = time.Now(), true
		r.signal()
	}
	return ctx.Err()
}

// blocks is shared by all readers of a round's blocks. It is safe for concurrent use.
type blocks struct {
	size    blockSize
	zeros   []byte    // a block of zeros
	zero    Sum       // its checksum
	buffers sync.Pool // of a chunk each: there may be very many small files
}

func newBlocks(size blockSize) *blocks {
	b := &blocks{size: size, zeros: make([]byte, size)}
	b.zero = sumOf(b.zeros)
	b.buffers.New = func() any {
		buf := make([]byte, max(int(size), chunkBytes))
		return &buf
	}
	return b
}

func (b *blocks) perChunk() int { return max(chunkBytes/int(b.size), 1) }

func (b *blocks) buffer() (buf []byte, free func()) {
	p, _ := b.buffers.Get().(*[]byte)
	return *p, func() { b.buffers.Put(p) }
}

// spool keeps the blocks that changed, on disk. It is safe for concurrent use.
type spool struct {
	file *os.File

	mu    sync.Mutex
	end   int64
	index map[blockKey]extent
	// memory has the blocks from one offset to another, nil if all are in the file.
	memory   []byte
	from, to int64
}

// buffer keeps the next blocks in memory until flush, as far as they fit: writing takes longer than reading.
func (s *spool) buffer() {
	b := make([]byte, 64<<20)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1 // the kernel allocates the page now, not under the lock
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory, s.from, s.to = b, s.end, s.end
}

func (s *spool) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	memory, from := s.memory[:s.to-s.from], s.from
	s.memory, s.from, s.to = nil, 0, 0
	if len(memory) == 0 {
		return nil
	}
	if _, err := s.file.WriteAt(memory, from); err != nil {
		return noRoomAside(err)
	}
	return nil
}

func noRoomAside(err error) error {
	return mongo.WithHint(fmt.Errorf("seed: cannot put changed blocks aside: %w", err),
		"give a directory with more room as --spool-dir")
}

type blockKey struct {
	path  string
	index int64
}

type extent struct {
	at     int64
	length int32
	sum    Sum
}

func newSpool(dir, id string) (*spool, error) {
	f, err := os.OpenFile(filepath.Join(dir, "seed-"+id+".spool"), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("seed: cannot make a file for changed blocks: %w", err),
			"give a directory with room as --spool-dir")
	}
	// Where a file in use cannot lose its name, remove does it.
	_ = os.Remove(f.Name())
	return &spool{file: f, index: map[blockKey]extent{}}, nil
}

func (s *spool) add(path string, index int64, sum Sum, b []byte) error {
	s.mu.Lock()
	at := s.end
	s.end += int64(len(b))
	s.index[blockKey{path, index}] = extent{at, int32(len(b)), sum}
	var room []byte
	if s.end <= s.from+int64(len(s.memory)) {
		room, s.to = s.memory[at-s.from:], s.end
	}
	s.mu.Unlock()
	if room != nil {
		copy(room, b)
		return nil
	}
	if _, err := s.file.WriteAt(b, at); err != nil {
		return noRoomAside(err)
	}
	return nil
}

func (s *spool) has(path string, index int64, sum Sum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index[blockKey{path, index}].sum == sum
}

func (s *spool) read(path string, index int64, sum Sum, buf []byte) (n int, ok bool, err error) {
	s.mu.Lock()
	e, ok := s.index[blockKey{path, index}]
	s.mu.Unlock()
	if !ok || e.sum != sum {
		return 0, false, nil
	}
	n, err = s.file.ReadAt(buf[:e.length], e.at)
	if err != nil {
		return 0, true, fmt.Errorf("seed: cannot read a block that was put aside: %w", err)
	}
	return n, true, nil
}

func (s *spool) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

func (s *spool) remove() error {
	err := os.Remove(s.file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(s.file.Close(), err)
}
