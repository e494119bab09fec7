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
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

const jobName = "demo"

// start starts millrace. It gets an environment of its own, so that neither the
// user's settings nor the user's running syncs are touched. When ctx ends it is
// asked to end, and killed ten seconds later.
func (d *demo) start(ctx context.Context, out, errOut io.Writer, args ...string) (*lab.Child, error) {
	cmd := spawn.CommandContext(ctx, d.millrace, args...)
	source, target := "MILLRACE_SOURCE=", "MILLRACE_TARGET="
	if args[0] == "serve" || args[0] == "worker" { // whose jobs refer to them
		source, target = "MILLRACE_SECRET_SOURCE=", "MILLRACE_SECRET_TARGET="
	}
	cmd.Env = append(cmd.Env, source+d.source.URI(), target+d.target.URI(), "XDG_STATE_HOME="+d.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdout, cmd.Stderr = out, errOut
	return lab.StartChild(cmd)
}

// ask runs a command of millrace and takes what it answers into a value, also
// when it ends with an exit code.
func (d *demo) ask(ctx context.Context, into any, args ...string) error {
	var out, errOut bytes.Buffer
	c, err := d.start(ctx, &out, &errOut, append(args, "--output", "json")...)
	if err != nil {
		return err
	}
	err = c.Wait()
	if unread := json.Unmarshal(out.Bytes(), into); err == nil {
		err = unread
	}
	if err != nil {
		return fmt.Errorf("millrace %s: %w: %s", args[0], err, strings.TrimSpace(errOut.String()))
	}
	return nil
}

// move is the job under way, with what it says of itself.
type move struct {
	*demo
	// over says why the job has ended before its time, nil while it goes on.
	over    func() error
	sync    *lab.Child    // nil where the service has the job
	watched chan struct{} // closed when nobody looks at the job any more

	mu           sync.Mutex
	last         job.Status
	following    time.Time // since when
	maxLag       float64   // while following
	finalizeTook time.Duration
	worker       string // that has the job, of the service
	workers      int    // how many there are
}

// underWrites does something while the writers are at work, who have ended when it
// returns.
func (d *demo) underWrites(ctx context.Context, do func(context.Context) error) (err error) {
	d.writes = startWriters(ctx, d.sourceDB)
	defer func() {
		if failed := d.writes.stop(); !errors.Is(err, failed) {
			err = errors.Join(err, failed)
		}
	}()
	if d.moved, err = startMoves(ctx, d.source); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.moved.stop()) }()
	trades := "traded unique keys"
	if sharded.Is(d.from) { // whose users can have none beside the shard key
		trades = "chunks that move"
	}
	d.out.Printf("Writers at work: inserts, updates, deletes, transactions, %s, schema changes", trades)
	return do(ctx)
}

// stopWriters has the writers finish what they do.
func (d *demo) stopWriters(context.Context) error { return d.writes.stop() }

// moveUnderWrites lets millrace copy and follow while the writers are at work,
// and cuts over.
func (d *demo) moveUnderWrites(ctx context.Context) error {
	return d.underWrites(ctx, d.syncAndFinalize)
}

func (d *demo) syncAndFinalize(ctx context.Context) (err error) {
	d.out.Printf("\n$ millrace sync --source … --target … --job %s", jobName)
	// A child draws on the terminal: the demo's own lines wait until it has ended.
	var held bytes.Buffer
	if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		d.out.SetOutput(&held)
		defer func() { fmt.Print(held.String()) }()
		defer d.out.SetOutput(os.Stdout)
	}
	m := &move{demo: d, watched: make(chan struct{})}
	d.move = m
	running, end := context.WithCancel(ctx)
	defer end()
	// Its own words go where the demo's go: a live view on a terminal, log
	// lines elsewhere.
	if m.sync, err = d.start(running, io.Discard, os.Stderr, "sync", "--job", jobName); err != nil {
		return err
	}
	m.over = func() error {
		if !m.ended() {
			return nil
		}
		return fmt.Errorf("millrace sync ended before its time: %w", cmp.Or(m.sync.Wait(), errors.New("without an error")))
	}
	go m.watch(running)
	defer func() {
		end()
		<-m.sync.Done()
		<-m.watched
	}()
	return inTurn(ctx, m.awaitFollowing, d.awaitExpiry, d.writeBurst, d.stopWriters, m.finalize)
}

// watch looks at the sync until it has ended.
func (m *move) watch(ctx context.Context) {
	defer close(m.watched)
	running := server.Registry{Dir: filepath.Join(m.dir, "millrace", "run")}
	_ = poll(ctx, func() (bool, error) {
		if rec, err := running.Find(ctx, "", jobName); err == nil { // else it starts or ends
			c := api.NewRecordClient(rec)
			defer c.Close()
			if j, err := c.Job(ctx, rec.Job); err == nil {
				m.take(*j.Report.Status)
			}
		}
		return m.ended(), nil
	})
}

func (m *move) ended() bool {
	select {
	case <-m.sync.Done():
		return true
	default:
		return false
	}
}

func (m *move) take(s job.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Phase != m.last.Phase {
		m.out.Printf("  %s (writers so far: %s operations)", s.Phase, grouped(m.writes.total()))
	}
	if s.Phase == job.PhaseFollowing {
		m.maxLag = max(m.maxLag, s.Follow.LagSeconds)
		if m.following.IsZero() {
			m.following = time.Now()
		}
	}
	m.last = s
}

// awaitFollowing waits for a target that has followed for some time and is not
// far behind now; on a machine too busy for that, not much longer: finalize
// drains whatever is left.
func (m *move) awaitFollowing(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		if err := m.over(); err != nil {
			return false, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		since, lag := time.Since(m.following), m.last.Follow.LagSeconds
		return !m.following.IsZero() && (since >= m.follow && lag >= 0 && lag < 2 || since >= m.follow+15*time.Second), nil
	})
}

// finalize cuts over and waits for the end of the sync.
func (m *move) finalize(ctx context.Context) error {
	began := time.Now()
	m.out.Printf("$ millrace finalize --job %s", jobName)
	var j api.Job
	if err := m.ask(ctx, &j, "finalize", "--job", jobName); err != nil {
		return err
	}
	m.finalizeTook = time.Since(began)
	if err := m.sync.Wait(); err != nil {
		return fmt.Errorf("millrace sync: %w", err)
	}
	<-m.watched
	m.take(*j.Report.Status)
	return nil
}
