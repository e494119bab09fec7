package seed

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/spawn"
)

// Guardian is a Freezer that locks the member by another process, which outlives this one.
type Guardian struct {
	Command []string // a program that runs Guard, and its arguments
	Request GuardRequest
}

// Freeze returns when the guardian has the lock.
func (g *Guardian) Freeze(ctx context.Context) (Thaw, error) {
	q := g.Request
	q.App = "millrace-seed-" + rand.Text()
	cmd := spawn.Command(g.Command[0], g.Command[1:]...) // it outlives the context, to unlock
	cmd.SysProcAttr = apart()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	err := cmp.Or(err1, err2)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("seed: cannot start the guardian of the lock: %w", err)
	}
	t := &guardedLock{cmd: cmd, in: in, request: q,
		lost: make(chan struct{}), locked: make(chan struct{}), done: make(chan struct{})}
	go t.listen(out)
	if err := json.NewEncoder(in).Encode(q); err != nil {
		return nil, errors.Join(fmt.Errorf("seed: cannot send the request to the guardian: %w", err), t.Release())
	}
	select {
	case <-t.locked:
		return t, nil
	case <-t.done:
		return nil, errors.Join(t.Release(), context.Cause(ctx))
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), t.Release())
	}
}

const (
	settleWait  = 5 * time.Minute  // bounds a checkpoint before the lock
	releaseWait = 30 * time.Second // bounds the end of the guardian
	// standInWait bounds the attempts to unlock in place of a killed guardian, which would never give up.
	standInWait = 2 * time.Minute
)

// Settle makes the member take a checkpoint while it works.
func (g *Guardian) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	m, err := connectMember(ctx, g.Request.URI, "millrace-seed")
	if err != nil {
		return err
	}
	defer m.close()
	if _, err := m.run(ctx, bson.D{{Key: "fsync", Value: 1}}); err != nil {
		return fmt.Errorf("seed: the member cannot take a checkpoint: %w", err)
	}
	return nil
}

type guardedLock struct {
	cmd     *exec.Cmd
	in      io.Closer
	request GuardRequest

	locked, lost, done chan struct{}
	once               sync.Once

	mu   sync.Mutex
	last guardReply // how it ended
}

func (t *guardedLock) lockedSeconds() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last.Seconds
}

func (t *guardedLock) Lost() <-chan struct{} { return t.lost }

func (t *guardedLock) listen(out io.Reader) {
	defer close(t.done)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r guardReply
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		if r.Locked {
			close(t.locked)
			continue
		}
		t.mu.Lock()
		t.last = r
		t.mu.Unlock()
		t.once.Do(func() { close(t.lost) })
	}
	_ = t.cmd.Wait() // the last reply counts
	t.once.Do(func() { close(t.lost) })
}

// Release waits until the member is unlocked. It unlocks it itself if the guardian was killed.
func (t *guardedLock) Release() error {
	early := false
	select {
	case <-t.lost:
		early = true
	default:
	}
	_ = t.in.Close() // closed already if the guardian is gone
	select {
	case <-t.done:
	case <-time.After(releaseWait):
		return mongo.WithHint(errors.New("seed: cannot reach the member to unlock it; the guardian process keeps trying"),
			"if the member is up and locked, run db.fsyncUnlock() on it")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.last.Error != "" && t.last.Passing:
		return mongo.Retry(t.last.Error, nil, t.last.Hint)
	case t.last.Error != "":
		return mongo.WithHint(errors.New(t.last.Error), t.last.Hint)
	case t.last.Released && !early && t.last.InTime:
		return nil
	case t.last.Released:
		return mongo.WithHint(fmt.Errorf("seed: --lock-limit ended the lock after %.1f s", t.last.Seconds),
			"raise --lock-limit; the next attempt uses what was copied")
	}
	return errors.Join(errors.New("seed: the guardian of the lock was killed"), t.standIn())
}

// standIn unlocks in place of a guardian that was killed.
func (t *guardedLock) standIn() error {
	ctx, cancel := context.WithTimeout(context.Background(), standInWait)
	defer cancel()
	var last error
	err := pace.Until(ctx, unlockPause, func() (done bool, err error) {
		if done, last = t.tryStandIn(ctx); !done {
			return false, nil
		}
		return true, last
	})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: the member may still be locked: %w", cmp.Or(last, err)),
			"run db.fsyncUnlock() on it")
	}
	return nil
}

func (t *guardedLock) tryStandIn(ctx context.Context) (bool, error) {
	m, err := connectMember(ctx, t.request.URI, t.request.App)
	if err != nil {
		return false, err
	}
	defer m.close()
	m.process = nil
	return m.tryUnlock()
}

// apart starts a process that gets no signals to this process' group or terminal.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
