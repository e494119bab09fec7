package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// ErrUnwritable reports a store that can only be read, as on a full disk. It recovers with the disk.
var ErrUnwritable = errors.New("the store of the service cannot be written")

// UnwritableHint does not name the directory, which not all callers may know.
const UnwritableHint = "make room on the disk of --data-dir; the service goes on by itself then. Its log has more"

const (
	// roomNeeded is what a restart needs; with less the disk would be full again at once.
	roomNeeded  = 16 << 20
	healthEvery = 2 * time.Second
	writtenFor  = 2 * time.Second
)

// lookAfter restarts the server after a failed write, once the disk can be written. NATS gives up a stream with its
// first failed write, also when there is room again.
func (e *Embedded) lookAfter(ctx context.Context) {
	for pace.Pause(ctx, healthEvery) == nil {
		if e.health() == nil || pace.Pause(ctx, healthEvery) != nil {
			continue
		}
		if err := e.health(); err != nil { // it does not pass by itself
			e.suffers(err)
			e.restart(ctx)
		}
	}
}

func (e *Embedded) restart(ctx context.Context) {
	for pace.Pause(ctx, healthEvery) == nil {
		err := writable(e.o.Dir)
		if err == nil {
			e.o.Log.Info("the disk of the store can be written again; NATS is started again")
			e.stop()
			err = e.start(ctx)
		}
		if e.suffers(err); err == nil {
			return
		}
	}
}

func (e *Embedded) health() error {
	h := e.running().Healthz(&server.HealthzOptions{Details: true})
	if h.StatusCode != http.StatusServiceUnavailable {
		return nil // too busy to answer
	}
	for _, one := range h.Errors {
		if one.Type == server.HealthzErrorJetStream || strings.Contains(one.Error, "write error") {
			return errors.New(one.Error)
		}
	}
	return nil
}

func (e *Embedded) suffers(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.trouble
	if e.trouble = nil; err != nil {
		hint := mongo.HintOf(err)
		if hint == "" {
			hint = "make room below " + e.o.Dir + ", or repair its disk; the service goes on by itself then"
		}
		e.trouble = mongo.WithHint(fmt.Errorf("%w: %w", ErrUnwritable, err), hint)
	}
	switch {
	case before == nil && err != nil:
		e.o.Log.Error("the service cannot store all that it has to: jobs whose leases cannot be renewed end at their "+
			"checkpoints, and begin again once it can", "error", e.trouble, "hint", mongo.HintOf(e.trouble))
	case before != nil && err == nil:
		e.o.Log.Info("the store can be written again")
	}
}

// Trouble returns why this process' store cannot be written (ErrUnwritable). Ready asks a cluster, too.
func (h *Hub) Trouble() error {
	if h.embedded == nil {
		return nil
	}
	h.embedded.mu.Lock()
	defer h.embedded.mu.Unlock()
	return h.embedded.trouble
}

func writable(dir string) error {
	err := tried(dir)
	if err == nil {
		return nil
	}
	hint := "make room there, or repair the disk"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		hint = fmt.Sprintf("make room there: the store needs %d MB to go on, and does so by itself then", roomNeeded>>20)
	}
	return mongo.WithHint(fmt.Errorf("write to %s: %w", dir, err), hint)
}

// tried writes roomNeeded: a quota does not say how much it allows.
func tried(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if uint64(st.Bavail)*uint64(st.Bsize) < roomNeeded { //nolint:unconvert // of other types on other systems
		return syscall.ENOSPC // leave the rest to others
	}
	name := filepath.Join(dir, "room")
	defer func() { _ = os.Remove(name) }()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	piece := make([]byte, 1<<20)
	for i := 0; err == nil && i < roomNeeded/len(piece); i++ {
		_, err = f.Write(piece)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Ready returns why the store does not answer or cannot be written. It writes once in writtenFor.
func (h *Hub) Ready(ctx context.Context) error {
	if err := h.Trouble(); err != nil {
		return err
	}
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	case <-ctx.Done():
		return fmt.Errorf("ask NATS: %w", ctx.Err())
	}
	if time.Since(h.written) < writtenFor {
		return nil
	}
	if _, err := h.Verifications.findings.Put(ctx, keyReady, nil); err != nil {
		return fmt.Errorf("write to NATS: %w", err)
	}
	h.written = time.Now()
	return nil
}

// keyReady has no dot, unlike keys of verifications.
const keyReady = "ready"
