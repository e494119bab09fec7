package seed

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/pace"
)

// AgentOptions describe the member to copy.
type AgentOptions struct {
	DBPath  string
	Way     Way
	Why     string
	Freezer Freezer
	// Pinner pins the files for WayCursor, and takes the Freezer's place then.
	Pinner Pinner
	// MaxBehind is how far behind the member a copy of pinned files may be.
	MaxBehind time.Duration
	// Describe tells of the member when a round begins; nil knows nothing.
	Describe func(context.Context) (Origin, error)
	// SpoolDir holds what changed, until every puller has it. It needs room
	// for that, and must not be inside DBPath.
	SpoolDir string
	// Pullers is how many have to join a round before it freezes, at least 1.
	Pullers int
	// Idle is how long a puller may be silent before it is given up; default
	// two minutes.
	Idle time.Duration
	// Workers hash files under the lock; default 4.
	Workers int
	Limit   *pace.Limiter
	Log     *slog.Logger
}

// Agent serves the files of one member. It is safe for concurrent use.
type Agent struct {
	opts AgentOptions
	dir  *dataDir
	held *os.File // mongod.lock of a stopped member
	// compared is for tests: it is called under the lock, after the comparison.
	compared func()

	joining sync.Mutex     // one at a time looks at the member and pins its files
	work    sync.WaitGroup // pins that are watched, freezes

	mu     sync.Mutex
	closed bool
	rounds map[string]*round
	open   *round // the one that may be joined
}

// NewAgent opens the data directory. Of a stopped member it takes the lock, so
// that no mongod starts on it meanwhile.
func NewAgent(o AgentOptions) (*Agent, error) {
	if o.Idle <= 0 {
		o.Idle = 2 * time.Minute
	}
	o.Pullers, o.Workers = max(o.Pullers, 1), orDefault(o.Workers, 4)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Freezer == nil {
		o.Freezer = stopped{}
	}
	dir, err := openDataDir(o.DBPath)
	if err != nil {
		return nil, err
	}
	a := &Agent{opts: o, dir: dir, rounds: map[string]*round{}}
	if err := a.prepare(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) prepare() (err error) {
	if a.opts.Way == WayStopped {
		if a.held, err = lockDirectory(a.dir, false); err != nil {
			return err
		}
	}
	return os.MkdirAll(a.opts.SpoolDir, 0o700)
}

func orDefault(n, d int) int {
	if n <= 0 {
		return d
	}
	return n
}

// Close ends all rounds.
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
	if a.held != nil {
		errs = append(errs, a.held.Close())
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
	if r := a.joinable(); r != nil { // somebody was quicker
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
			err = r.pin.Release()
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

// sweep ends rounds that nobody uses any more. a.mu is held.
func (a *Agent) sweep() {
	for id, r := range a.rounds {
		if !r.idle(a.opts.Idle) {
			continue
		}
		delete(a.rounds, id)
		if a.open == r {
			a.open = nil
		}
		if err := r.end(); err != nil {
			a.opts.Log.Warn("what a round put aside was not removed", "error", err)
		}
	}
}

// errNoRound tells a puller to begin again: what it has stays useful.
var errNoRound = errors.New("seed: the agent does not know this round; it has ended, or the agent was restarted") //nolint:gochecknoglobals // a sentinel

func (a *Agent) round(id string) (*round, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.rounds[id]
	if r == nil {
		return nil, errNoRound
	}
	return r, nil
}

// Read implements Source.
func (a *Agent) Read(ctx context.Context, q ReadRequest, fn func(Block) error) error {
	r, err := a.round(q.Round)
	if err != nil {
		return err
	}
	return r.read(ctx, q, fn)
}

// Freeze implements Source.
func (a *Agent) Freeze(ctx context.Context, id, puller string) (*Final, error) {
	return a.freezeWithin(ctx, id, puller, 0)
}

// stay returns when the round ends, ctx ends, or after a while.
func (a *Agent) stay(ctx context.Context, id, puller string, limit time.Duration) error {
	r, err := a.round(id)
	if err != nil {
		return err
	}
	return r.stay(ctx, puller, limit)
}

// Leave implements Source.
func (a *Agent) Leave(_ context.Context, id, puller string) error {
	r, err := a.round(id)
	if err != nil {
		return nil //nolint:nilerr // the round has ended
	}
	if !r.leave(puller) {
		return nil
	}
	a.mu.Lock()
	delete(a.rounds, id)
	if a.open == r {
		a.open = nil
	}
	a.mu.Unlock()
	return r.end()
}

func randomID() (string, error) {
	b := make([]byte, 12)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("seed: read random bytes: %w", err)
	}
	return hex.EncodeToString(b), nil
}
