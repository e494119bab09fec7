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
	"github.com/millrace/millrace/internal/spawn"
)

// Guardian is a Freezer that has another process hold the lock, so that it is
// let go even if this one is killed.
type Guardian struct {
	// Command starts the guardian: a program and its arguments. It runs Guard.
	Command []string
	Request GuardRequest
}

// Freeze starts a guardian and waits until it holds the lock.
func (g *Guardian) Freeze(ctx context.Context) (Thaw, error) {
	q := g.Request
	q.App = "millrace-seed-" + rand.Text()
	cmd := spawn.Command(g.Command[0], g.Command[1:]...) // it has to outlive the context: it lets go by itself
	cmd.SysProcAttr = apart()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	err := cmp.Or(err1, err2)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("seed: start the guardian of the lock: %w", err)
	}
	t := &guardedLock{cmd: cmd, in: in, request: q,
		lost: make(chan struct{}), locked: make(chan struct{}), done: make(chan struct{})}
	go t.listen(out)
	if err := json.NewEncoder(in).Encode(q); err != nil {
		return nil, errors.Join(fmt.Errorf("seed: tell the guardian: %w", err), t.Release())
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

// settleWait bounds a checkpoint before the lock.
const settleWait = 5 * time.Minute

// Settle has the member take a checkpoint while it works.
func (g *Guardian) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	m, err := connectMember(ctx, g.Request.URI, "millrace-seed")
	if err != nil {
		return err
	}
	defer m.close()
	if _, err := m.run(ctx, bson.D{{Key: "fsync", Value: 1}}); err != nil {
		return fmt.Errorf("seed: have the member take a checkpoint: %w", err)
	}
	return nil
}

// releaseWait is how long the guardian's end is waited for.
const releaseWait = 30 * time.Second

// guardedLock is a lock that a guardian holds.
type guardedLock struct {
	cmd     *exec.Cmd
	in      io.Closer
	request GuardRequest

	locked, lost, done chan struct{}
	once               sync.Once

	mu   sync.Mutex
	last guardReply // how it ended
}

// lockedSeconds is what the guardian says, once it has let go; else 0.
func (t *guardedLock) lockedSeconds() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last.Seconds
}

// Lost implements Thaw.
func (t *guardedLock) Lost() <-chan struct{} { return t.lost }

// listen reads what the guardian says until it has ended.
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
	_ = t.cmd.Wait() // its last reply says how it ended
	t.once.Do(func() { close(t.lost) })
}

// Release lets the member go on and waits until it does. A guardian that was
// killed is stood in for.
func (t *guardedLock) Release() error {
	early := false
	select {
	case <-t.lost:
		early = true
	default:
	}
	_ = t.in.Close() // closed already if the guardian is gone
	timer := time.NewTimer(releaseWait)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		return mongo.WithHint(
			errors.New("seed: the member cannot be reached to let it go; the guardian process goes on trying"),
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
		return mongo.WithHint(fmt.Errorf("seed: the lock was let go after its limit of %.1f s", t.last.Seconds),
			"allow more with --lock-limit; nothing that was copied is lost, the next attempt uses it")
	}
	return errors.Join(errors.New("seed: the guardian of the lock was killed"), t.standIn())
}

// standInWait is how long the member is tried to be let go in place of the
// guardian, which would never give up: whoever waits for this has to be told.
const standInWait = 2 * time.Minute

// standIn lets go in place of a guardian that was killed. A member that does not
// answer now, or has not yet ended the guardian's lock command, may a little later.
func (t *guardedLock) standIn() error {
	ctx, cancel := context.WithTimeout(context.Background(), standInWait)
	defer cancel()
	var last error
	err := until(ctx, unlockPause, func() (done bool, err error) {
		done, last = t.tryStandIn(ctx)
		if done {
			return true, last
		}
		return false, nil
	})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: the member may still be locked: %w", cmp.Or(last, err)),
			"run db.fsyncUnlock() on it")
	}
	return nil
}

// tryStandIn reports whether the lock is gone for certain, or cannot be taken away.
func (t *guardedLock) tryStandIn(ctx context.Context) (bool, error) {
	m, err := connectMember(ctx, t.request.URI, t.request.App)
	if err != nil {
		return false, err
	}
	defer m.close()
	m.process = nil
	return m.tryUnlock()
}

// apart starts a process in a session of its own, where no signal to this
// one's group or terminal reaches it.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
