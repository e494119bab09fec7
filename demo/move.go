package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/job"
)

const jobName = "demo"

var errEarly = errors.New("without an error")

// move is the sync under way, with what `millrace status --watch` says of it.
type move struct {
	d     *demo
	sync  *child
	watch *child
	seen  chan struct{} // closed when the watch has ended

	mu      sync.Mutex
	last    job.Status
	changed chan struct{} // closed and replaced at each new status
	since   map[job.Phase]time.Time
	maxLag  float64
	err     error // of reading the watch

	finalizeTook time.Duration
}

// startMove starts the sync and the watch on it.
func startMove(ctx context.Context, d *demo) (_ *move, err error) {
	m := &move{d: d, changed: make(chan struct{}), seen: make(chan struct{}), since: map[job.Phase]time.Time{}}
	d.out.say("\n$ millrace sync --source … --target … --job %s", jobName)
	d.out.hold()
	// Its own words go where the demo's go: a live view on a terminal, log
	// lines elsewhere.
	m.sync, err = d.start(ctx, func(c *exec.Cmd) { c.Stdout, c.Stderr = io.Discard, os.Stderr }, "sync", "--job", jobName)
	if err != nil {
		return nil, err
	}
	if err := m.startWatch(ctx); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// startWatch begins to read the status, as soon as there is one to be had.
func (m *move) startWatch(ctx context.Context) error {
	for {
		var out bytes.Buffer
		probe, err := m.d.start(ctx, func(c *exec.Cmd) { c.Stdout = &out }, "status", "--job", jobName, "--output", "json")
		if err != nil {
			return err
		}
		if probe.wait() == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.sync.done:
			return fmt.Errorf("millrace sync: %w", m.sync.err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	pipe, write := io.Pipe()
	var err error
	m.watch, err = m.d.start(ctx, func(c *exec.Cmd) { c.Stdout = write },
		"status", "--job", jobName, "--output", "json", "--watch", "--interval", "100ms")
	if err != nil {
		return err
	}
	go func() {
		<-m.watch.done
		write.Close()
	}()
	go m.read(pipe)
	return nil
}

// read takes in one status after the other.
func (m *move) read(from io.Reader) {
	defer close(m.seen)
	dec := json.NewDecoder(from)
	for {
		var s job.Status
		err := dec.Decode(&s)
		m.mu.Lock()
		if err == nil {
			m.take(s)
		} else if !errors.Is(err, io.EOF) {
			m.err = err
		}
		close(m.changed)
		m.changed = make(chan struct{})
		m.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take is called with mu held.
func (m *move) take(s job.Status) {
	if _, known := m.since[s.Phase]; !known {
		m.since[s.Phase] = time.Now()
		m.d.out.say("  %s (writers so far: %s operations)", s.Phase, grouped(m.d.writes.total()))
	}
	if s.Phase == job.PhaseFollowing {
		m.maxLag = max(m.maxLag, s.Follow.LagSeconds)
	}
	m.last = s
}

// followsFor waits for a target that has followed for so long and is not far
// behind now; on a machine too busy for that, not much longer: finalize drains
// whatever is left.
func followsFor(d time.Duration) func(*move) bool {
	return func(m *move) bool {
		since, follows := m.since[job.PhaseFollowing]
		lag := m.last.Follow.LagSeconds
		return follows && (time.Since(since) >= d && lag >= 0 && lag < 2 || time.Since(since) >= d+15*time.Second)
	}
}

// await waits until what is seen of the sync meets the condition.
func (m *move) await(ctx context.Context, met func(*move) bool) error {
	for {
		m.mu.Lock()
		ok, changed, err := met(m), m.changed, m.err
		m.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.sync.done:
			return fmt.Errorf("millrace sync ended before its time: %w", cmp.Or(m.sync.err, errEarly))
		case <-changed:
		}
	}
}

// finalize cuts over and waits for the end of the sync.
func (m *move) finalize(ctx context.Context) error {
	began := time.Now()
	m.d.out.say("$ millrace finalize --job %s", jobName)
	var out, errOut bytes.Buffer
	c, err := m.d.start(ctx, func(c *exec.Cmd) { c.Stdout, c.Stderr = &out, &errOut }, "finalize", "--job", jobName, "--output", "json")
	if err != nil {
		return err
	}
	if err := c.wait(); err != nil {
		return fmt.Errorf("millrace finalize: %w: %s", err, strings.TrimSpace(errOut.String()))
	}
	m.finalizeTook = time.Since(began)
	var s job.Status
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		return fmt.Errorf("millrace finalize: %w", err)
	}
	if err := m.sync.wait(); err != nil {
		return fmt.Errorf("millrace sync: %w", err)
	}
	<-m.seen
	m.mu.Lock()
	defer m.mu.Unlock()
	m.take(s)
	return nil
}

// close ends the sync if it still runs, and waits for it.
func (m *move) close() error {
	defer m.d.out.release()
	if !m.sync.ended() {
		_ = m.sync.cmd.Process.Signal(syscall.SIGTERM)
		_ = m.sync.wait()
	}
	if m.watch != nil {
		_ = m.watch.wait()
		<-m.seen
	}
	return nil
}

// phaseTimes lists how long each phase took, by the sync's own clock.
func (m *move) phaseTimes() string {
	var out []string
	for _, p := range []job.Phase{job.PhaseCatalog, job.PhaseCopying, job.PhaseIndexing,
		job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing} {
		if took, ok := m.last.PhaseSeconds[p]; ok {
			out = append(out, fmt.Sprintf("%s %.1f s", p, took))
		}
	}
	return strings.Join(out, ", ")
}
