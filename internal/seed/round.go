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
	ctx, cancel := endingWith(context.Background(), r.over, nil)
	defer cancel()
	r.settle(r.closing(ctx))
}

// endingWith is a context that ends with a cause as well when a channel is closed. The
// returned function ends it.
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

// stayer is a Source that notices when a puller is gone.
type stayer interface {
	Stay(ctx context.Context, round, puller string) error
}

// stay tells the source that this puller is there, until the returned function
// is called.
func (p *pull) stay(ctx context.Context, m *Manifest) (stop func()) {
	s, ok := p.src.(stayer)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Stay(ctx, m.Round, m.Puller); err != nil && ctx.Err() == nil {
			p.o.Log.Debug("the agent is not told any more that this puller is there", "error", err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// stay notes that a puller is there until ctx ends, which is that of a request
// that it holds open. When the request is cut the puller may have been killed, and
// is not waited for as long as one that is silent; if it was the network it comes
// back, and every request of it says so.
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
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-timer.C:
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

// blocks are what everybody who reads a round's blocks shares. Safe for
// concurrent use.
type blocks struct {
	size blockSize
	// zeros is a block of zeros, to be compared with, and zero its checksum.
	zeros []byte
	zero  Sum
	// buffers hold a chunk each: there may be very many small files.
	buffers sync.Pool
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

// perChunk is how many blocks are read at once.
func (b *blocks) perChunk() int { return max(chunkBytes/int(b.size), 1) }

// buffer lends room for a chunk; free takes it back.
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
	// held is what is not in the file yet, from one offset up to another; what
	// does not fit as a whole is in the file. nil when all is.
	held     []byte
	from, to int64
}

// holdBytes is how much is held in memory under a lock.
const holdBytes = 64 << 20

// hold has the next bytes kept in memory until flush: to write them to a file
// would take longer than to read them. What is more goes to the file.
func (s *spool) hold() {
	b := make([]byte, holdBytes)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1 // the system gives the memory now, not under the lock
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.from, s.to = b, s.end, s.end
}

// flush writes what is held; blocks can be read again after it.
func (s *spool) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, from := s.held[:s.to-s.from], s.from
	s.held, s.from, s.to = nil, 0, 0
	if len(held) == 0 {
		return nil
	}
	if _, err := s.file.WriteAt(held, from); err != nil {
		return noRoomAside(err)
	}
	return nil
}

func noRoomAside(err error) error {
	return mongo.WithHint(fmt.Errorf("seed: put changed blocks aside: %w", err),
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
		return nil, mongo.WithHint(fmt.Errorf("seed: make a file for what changes during the copy: %w", err),
			"give a directory with room as --spool-dir")
	}
	// Without a name it is gone with the process, however that ends. Where a
	// file in use keeps its name, remove takes it away.
	_ = os.Remove(f.Name())
	return &spool{file: f, index: map[blockKey]extent{}}, nil
}

// add puts a block aside; it takes the place of what was put aside of it before.
func (s *spool) add(path string, index int64, sum Sum, b []byte) error {
	s.mu.Lock()
	at := s.end
	s.end += int64(len(b))
	s.index[blockKey{path, index}] = extent{at, int32(len(b)), sum}
	var held []byte
	if s.end <= s.from+int64(len(s.held)) {
		held, s.to = s.held[at-s.from:], s.end
	}
	s.mu.Unlock()
	if held != nil {
		copy(held, b)
		return nil
	}
	if _, err := s.file.WriteAt(b, at); err != nil {
		return noRoomAside(err)
	}
	return nil
}

// holds reports whether a block was put aside as it is now.
func (s *spool) holds(path string, index int64, sum Sum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index[blockKey{path, index}].sum == sum
}

// read gives a block of that checksum, if it was put aside.
func (s *spool) read(path string, index int64, sum Sum, buf []byte) (n int, ok bool, err error) {
	s.mu.Lock()
	e, ok := s.index[blockKey{path, index}]
	s.mu.Unlock()
	if !ok || e.sum != sum {
		return 0, false, nil
	}
	n, err = s.file.ReadAt(buf[:e.length], e.at)
	if err != nil {
		return 0, true, fmt.Errorf("seed: read what was put aside: %w", err)
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
