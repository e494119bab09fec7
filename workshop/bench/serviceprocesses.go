package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// fleet is a service under measurement: serve with its NATS, workers, and what they
// are given to do.
type fleet struct {
	bench *bench
	st    *site
	o     ServiceOptions
	pace  time.Duration // how long each thing is measured

	serve   *child
	workers []*child
	said    *announced
	client  *http.Client
	url     string
	token   string
	cursors []string // of the pages of the list of jobs

	busy   bool          // jobs follow
	idleMB float64       // of the workers, while no job runs
	took   time.Duration // until all jobs followed
}

// announced reads in a log where serve is reached. It is safe for concurrent use.
type announced struct {
	mu            sync.Mutex
	line          []byte
	console, nats string
}

// maxLine bounds what is kept of a line that has no end.
const maxLine = 64 << 10

// Write implements io.Writer.
func (a *announced) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(p)
	for a.console == "" || a.nats == "" {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		if a.line = append(a.line, line...); !whole {
			a.line = a.line[:min(len(a.line), maxLine)]
			break
		}
		var said struct{ Console, NATS string }
		_ = json.Unmarshal(a.line, &said) // most lines say something else
		a.console, a.nats = cmp.Or(a.console, said.Console), cmp.Or(a.nats, said.NATS)
		a.line, p = a.line[:0], rest
	}
	return n, nil
}

// reached is where serve is reached, "" before it has said so.
func (a *announced) reached() (console, nats string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.console, a.nats
}

// start starts serve and the workers on empty directories, and waits until all are
// there.
func (f *fleet) start(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp(f.bench.dir, "service-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	data := filepath.Join(dir, "data")
	env := []string{"XDG_STATE_HOME=" + dir, "MILLRACE_SECRET_SOURCE=" + f.st.source.uri, "MILLRACE_SECRET_TARGET=" + f.st.target.uri}
	f.said = &announced{}
	f.serve, err = startChild(ctx, program{name: f.bench.o.Millrace, env: env, log: f.said, args: []string{"serve", "--no-worker",
		"--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data, "--log-format", "json"}})
	if err != nil {
		return err
	}
	var console, nats string
	if err := f.await(ctx, "serve runs", func(context.Context) (bool, error) {
		console, nats = f.said.reached()
		return console != "" && nats != "", nil
	}); err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		return fmt.Errorf("read the token of the service: %w", err)
	}
	f.url, f.token = strings.TrimSuffix(console, "/"), strings.TrimSpace(string(raw))
	f.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: requestsAtOnce}}
	for i := range f.o.Workers {
		w, err := startChild(ctx, program{name: f.bench.o.Millrace, env: env, args: []string{"worker", "--nats", "nats://" + nats,
			"--nats-token-file", filepath.Join(data, "nats-token"), "--name", "w" + itoa(i+1), "--log-level", "warn"}})
		if err != nil {
			return err
		}
		f.workers = append(f.workers, w)
	}
	return f.await(ctx, "all workers are there", func(ctx context.Context) (bool, error) {
		var list struct{ Workers []struct{ Name string } }
		err := f.ask(ctx, http.MethodGet, pathWorkers, nil, &list)
		return len(list.Workers) == f.o.Workers, err
	})
}

// await waits while all processes are there.
func (f *fleet) await(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	return until(ctx, what, func(ctx context.Context) (bool, error) {
		for _, c := range f.processes() {
			select {
			case <-c.Done():
				return false, c.stop() // which says why
			default:
			}
		}
		return holds(ctx)
	})
}

func (f *fleet) processes() []*child {
	if f.serve == nil {
		return nil
	}
	return append([]*child{f.serve}, f.workers...)
}

// stop ends the workers, and then serve, which they give their jobs back to. Where ctx
// has ended they were told to end by that.
func (f *fleet) stop(ctx context.Context) error {
	var g errgroup.Group
	for _, w := range f.workers {
		g.Go(w.stop)
	}
	err := g.Wait()
	if f.client != nil {
		f.client.CloseIdleConnections()
	}
	if f.serve != nil {
		err = errors.Join(err, f.serve.stop())
	}
	f.serve, f.workers, f.client = nil, nil, nil
	if ctx.Err() != nil {
		return nil //nolint:nilerr // that is why they ended
	}
	return err
}

// counts has a measurement count the processes.
func (f *fleet) counts(m *meter) {
	for _, c := range f.processes() {
		m.runs(c.pid())
	}
}

// resident is the memory of the workers together, and that of serve, in MB.
func (f *fleet) resident() (workers, serve float64) {
	for _, w := range f.workers {
		now, _ := memory(w.pid())
		workers += float64(now) / 1e6
	}
	now, _ := memory(f.serve.pid())
	return workers, float64(now) / 1e6
}

// used is the processor time of the workers together, and of serve.
func (f *fleet) used() (workers, serve float64) {
	for _, w := range f.workers {
		workers += processCPU([]int{w.pid()})
	}
	return workers, processCPU([]int{f.serve.pid()})
}

// settleFor is how long the service is left alone before it is measured, after what
// had to be done at the beginning.
func (f *fleet) settleFor() time.Duration { return min(f.pace, 10*time.Second) }

// samples of memory are taken in a measurement, of which the median counts.
const samples = 20

// rest measures what the service uses for a time.
func (f *fleet) rest(ctx context.Context, m *meter) error {
	f.counts(m)
	if !tick(ctx, f.settleFor()) {
		return context.Cause(ctx)
	}
	return m.during(ctx, f.st, func() error {
		var ofWorkers, ofServe []float64
		began := time.Now()
		workersCPU, serveCPU := f.used()
		for range samples {
			if !tick(ctx, f.pace/samples) {
				return context.Cause(ctx)
			}
			w, s := f.resident()
			ofWorkers, ofServe = append(ofWorkers, w), append(ofServe, s)
		}
		w, s := f.used()
		took := time.Since(began).Seconds()
		w, s = 100*per(w-workersCPU, took), 100*per(s-serveCPU, took)
		mb := median(ofWorkers)
		m.value(workersMB, mb)
		m.value(serveMB, median(ofServe))
		m.value(workersShare, w)
		m.value(serveShare, s)
		if !f.busy {
			f.idleMB = mb
			return nil
		}
		m.value(eachMB, (mb-f.idleMB)/float64(f.o.Jobs))
		m.value(eachShare, (w+s)/float64(f.o.Jobs))
		return nil
	})
}
