// Package seed makes a replica-set member by copying the files of another one instead of its documents.
//
// An [Agent] beside the source's files serves rounds. It lists the files and reads blocks of them while the member
// works. Then it locks the member, finds the blocks that changed and puts them aside. [Pull] writes the files and the
// changed blocks, and makes the directory startable as its last step. Between them is a [Source]: the agent or an HTTP
// client.
package seed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// AgentOptions describe the member to copy.
type AgentOptions struct {
	DBPath    string
	Way       Way
	Why       string
	Freezer   Freezer
	Cursor    *BackupCursor // pins the files for WayCursor, in place of Freezer
	MaxBehind time.Duration // how far behind the member a copy of pinned files may be
	// Describe returns what a round's manifest says of the member; nil is nothing.
	Describe func(context.Context) (Origin, error)
	SpoolDir string        // holds changed blocks; not inside DBPath
	Pullers  int           // that have to join a round before it freezes, at least 1
	Idle     time.Duration // after which a silent puller is dropped; default two minutes
	Workers  int           // hash files under the lock; default 4
	Limit    *pace.Limiter
	Log      *slog.Logger
}

// Agent serves the files of one member. It is safe for concurrent use.
type Agent struct {
	opts     AgentOptions
	dir      *dataDir
	lock     *os.File // mongod.lock of a stopped member
	compared func()   // for tests: called under the lock, after the comparison

	joining sync.Mutex     // one at a time looks at the member and pins its files
	work    sync.WaitGroup // watched pins, freezes

	mu     sync.Mutex
	closed bool
	rounds map[string]*round
	open   *round // the one that may be joined
}

// NewAgent opens the data directory. It takes the lock of a stopped member, so that no mongod starts on it meanwhile.
func NewAgent(o AgentOptions) (*Agent, error) {
	if o.Idle <= 0 {
		o.Idle = 2 * time.Minute
	}
	o.Pullers, o.Workers = max(o.Pullers, 1), cmp.Or(max(o.Workers, 0), 4)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Freezer == nil {
		o.Freezer = stopped{}
	}
	dir, err := openDataDir(o.DBPath)
	if err != nil {
		return nil, err
	}
	a := &Agent{opts: o, dir: dir, rounds: map[string]*round{}}
	if o.Way == WayStopped {
		a.lock, err = lockDirectory(dir, false)
	}
	if err == nil {
		err = os.MkdirAll(o.SpoolDir, 0o700)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) Close() error {
	a.mu.Lock()
	rounds := a.rounds
	a.rounds, a.open, a.closed = map[string]*round{}, nil, true
	a.mu.Unlock()
	var errs []error
	for _, r := range rounds {
		errs = append(errs, r.end())
	}
	a.work.Wait()
	if a.lock != nil {
		errs = append(errs, a.lock.Close())
	}
	return errors.Join(errs...)
}

// Join opens a round, or joins the one that has not begun to freeze.
func (a *Agent) Join(ctx context.Context) (*Manifest, error) {
	if r := a.joinable(); r != nil {
		return r.join()
	}
	a.joining.Lock()
	defer a.joining.Unlock()
	if r := a.joinable(); r != nil { // another puller was quicker
		return r.join()
	}
	var origin Origin
	if a.opts.Describe != nil {
		var err error
		if origin, err = a.opts.Describe(ctx); err != nil {
			return nil, err
		}
	}
	r, err := newRound(ctx, a, origin)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		if r.pin != nil {
			err = r.pin.release()
		}
		return nil, errors.Join(errNoRound, err)
	}
	a.rounds[r.id], a.open = r, r
	if r.pin != nil {
		a.work.Go(r.watchPin)
	}
	return r.join()
}

func (a *Agent) joinable() *round {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	if a.open != nil && a.open.takesMore() {
		return a.open
	}
	return nil
}

// sweep is called with a.mu locked.
func (a *Agent) sweep() {
	for _, r := range a.rounds {
		if r.idle(a.opts.Idle) {
			a.forget(r)
			a.ended(r.end())
		}
	}
}

// forget is called with a.mu locked.
func (a *Agent) forget(r *round) {
	delete(a.rounds, r.id)
	if a.open == r {
		a.open = nil
	}
}

// ended logs the error of a round's end that no caller waits for.
func (a *Agent) ended(err error) {
	if err != nil {
		a.opts.Log.Warn("cannot remove the changed blocks of a round", "error", err)
	}
}

// errNoRound makes a puller begin again with what it has.
var errNoRound = errors.New("seed: the agent does not know this round; it has ended, or the agent was restarted")

func (a *Agent) round(id string) (*round, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.rounds[id]
	if r == nil {
		return nil, errNoRound
	}
	return r, nil
}

// Read implements Source. Blocks that were put aside under the lock come from the spool, others from the file.
func (a *Agent) Read(ctx context.Context, q ReadRequest, fn func(Block) error) (err error) {
	r, err := a.round(q.Round)
	if err != nil {
		return err
	}
	done, err := r.enter(q.Puller)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	r.mu.Lock()
	f := r.files[q.Path] // nothing but what the manifest names is ever opened
	frozen, aside := r.state == roundFrozen, r.spool
	r.mu.Unlock()
	if f == nil || q.First < 0 || q.First > r.blocks.size.blocks(maxFileSize) || len(q.Have) == 0 ||
		int64(len(q.Have)) > r.blocks.size.perRange() {
		return fmt.Errorf("seed: no such blocks: %s from %d", q.Path, q.First)
	}
	if frozen && a.opts.Way != WayStopped {
		return r.readFrozen(ctx, f, aside, q, fn)
	}
	return r.readLive(ctx, f, q, fn)
}

func (a *Agent) Freeze(ctx context.Context, id, puller string) (*Final, error) {
	return a.freezeWithin(ctx, id, puller, 0)
}

// describe returns what a copy would be of, as Inspect does of the member now.
func (a *Agent) describe(ctx context.Context) (*Plan, error) {
	p := &Plan{Way: a.opts.Way, Why: a.opts.Why}
	all, err := a.dir.list()
	if err == nil && a.opts.Describe != nil {
		p.Origin, err = a.opts.Describe(ctx)
	}
	if err != nil {
		return nil, err
	}
	p.Files = len(all.files)
	for _, f := range all.files {
		p.Bytes += f.Size
	}
	return p, nil
}

// freezeWithin implements served.
func (a *Agent) freezeWithin(ctx context.Context, id, puller string, limit time.Duration) (*Final, error) {
	r, err := a.round(id)
	if err != nil {
		return nil, err
	}
	return r.freeze(ctx, puller, limit)
}

// stay implements served.
func (a *Agent) stay(ctx context.Context, id, puller string, limit time.Duration) error {
	r, err := a.round(id)
	if err != nil {
		return err
	}
	return r.stay(ctx, puller, limit)
}

// readable implements served.
func (a *Agent) readable(_ context.Context, q ReadRequest, _ time.Duration) error {
	_, err := a.round(q.Round)
	return err
}

func (a *Agent) Leave(_ context.Context, id, puller string) error {
	if r, err := a.round(id); err == nil && r.leave(puller) { // else the round has ended, or others are left
		return a.drop(r)
	}
	return nil
}

func (a *Agent) drop(r *round) error {
	a.mu.Lock()
	a.forget(r)
	a.mu.Unlock()
	return r.end()
}

// Freezer makes a member's files stand still.
type Freezer interface {
	// Freeze returns when the files stand still, as they do until Thaw.Release.
	Freeze(ctx context.Context) (Thaw, error)
}

// Thaw is a frozen member.
type Thaw interface {
	Lost() <-chan struct{} // closed when the files no longer stand still: later reads may be torn
	// Release lets the member go on. Its error says that the files did not stand still all the time.
	Release() error
}

// stopped is a member that is shut down, whose files this process locked.
type stopped struct{}

func (stopped) Freeze(context.Context) (Thaw, error) { return stopped{}, nil }
func (stopped) Lost() <-chan struct{}                { return nil }
func (stopped) Release() error                       { return nil }

func (r *round) readLive(ctx context.Context, f *roundFile, q ReadRequest, fn func(Block) error) error {
	a := r.agent
	file, err := a.dir.Open(q.Path)
	if errors.Is(err, fs.ErrNotExist) && !f.bounded {
		return nil // the final state does not have it either
	}
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", q.Path, err)
	}
	defer file.Close()
	buf, free := r.blocks.buffer()
	defer free()
	size := int(r.blocks.size)
	index := q.First
	for chunk := range slices.Chunk(q.Have, r.blocks.perChunk()) {
		at := index * int64(size)
		n, err := readAt(file, at, buf[:len(chunk)*size])
		if err != nil {
			return err
		}
		if f.bounded { // nobody reads the file again
			want := int(max(min(int64(len(chunk)*size), f.bound-at), 0))
			if n < want {
				return fmt.Errorf("seed: %s became shorter while a backup cursor was open", q.Path)
			}
			n = want
		}
		for data, i := buf[:n], 0; len(data) > 0; i++ {
			b := Block{Index: index + int64(i), Data: data[:min(size, len(data))]}
			data = data[len(b.Data):]
			b.Sum = sumOf(b.Data)
			f.note(b.Index, b.Sum)
			if b.Sum == chunk[i] {
				b.Same, b.Data = true, nil
			} else if err := a.opts.Limit.Wait(ctx, 1, int64(len(b.Data))); err != nil {
				return err
			}
			if err := fn(b); err != nil {
				return err
			}
		}
		if n < len(chunk)*size {
			return nil // the file ends here
		}
		index += int64(len(chunk))
	}
	return nil
}

func readAt(f *os.File, at int64, buf []byte) (int, error) {
	n, err := f.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("seed: read %s at %d: %w", f.Name(), at, err)
	}
	return n, nil
}

func (f *roundFile) note(index int64, s Sum) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.served = atLeast(f.served, index+1)
	if old := f.served[index]; old != 0 && old != s {
		f.mixed = atLeast(f.mixed, int64(len(f.served)))
		f.mixed[index] = true
	}
	f.served[index] = s
}

func atLeast[T any](s []T, n int64) []T { return append(s, make([]T, max(n-int64(len(s)), 0))...) }

// upToDate reports whether every puller has exactly this block.
func (f *roundFile) upToDate(index int64, s Sum) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return index < int64(len(f.served)) && f.served[index] == s && (index >= int64(len(f.mixed)) || !f.mixed[index])
}

func (r *round) readFrozen(ctx context.Context, f *roundFile, aside *spool, q ReadRequest, fn func(Block) error) error {
	buf, free := r.blocks.buffer()
	defer free()
	for i, have := range q.Have {
		index := q.First + int64(i)
		if index >= int64(len(f.final)) {
			return nil
		}
		b := Block{Index: index, Sum: f.final[index]}
		if b.Sum == have {
			b.Same = true
		} else if n, err := r.frozenBlock(f, aside, q.Path, index, buf); err != nil {
			return err
		} else if b.Data = buf[:n]; sumOf(b.Data) != b.Sum {
			return mongo.WithHint(fmt.Errorf("seed: block %d of %s has changed since the member was locked", index, q.Path),
				"run it again: it uses what is there")
		} else if err := r.agent.opts.Limit.Wait(ctx, 1, int64(n)); err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) frozenBlock(f *roundFile, aside *spool, path string, index int64, buf []byte) (int, error) {
	size := int64(r.blocks.size)
	if n := min(size, f.size-index*size); f.final[index] == sumOf(r.blocks.zeros[:n]) {
		clear(buf[:n])
		return int(n), nil
	}
	if aside != nil {
		if n, ok, err := aside.read(path, index, f.final[index], buf); ok || err != nil {
			return n, err
		}
	}
	file, err := r.agent.dir.Open(path)
	if err != nil {
		return 0, fmt.Errorf("seed: open %s: %w", path, err)
	}
	defer file.Close()
	return readAt(file, index*size, buf[:size])
}
