package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	pathJobs    = "/api/v1/jobs"
	pathWorkers = "/api/v1/workers"
	pathLive    = "/livez"
	listed      = 100 // how many jobs a page has.
	// requestsAtOnce bounds those that are under way. One that is due later waits, which counts.
	requestsAtOnce = 64
	maxReply       = 16 << 20 // maxReply bounds what is read of a reply, in bytes.
)

type request struct {
	method, path string
	body         []byte
}

// requests are the kinds of requests that are measured, while nothing is written or while all jobs are.
func (f *fleet) requests(written bool) []contender {
	kind := func(name string, k Kind, how string, of func(n int) request) contender {
		run := func(ctx context.Context, m *meter) error { return f.timeRequests(ctx, m, of) }
		if written {
			run = f.whileWritten(run)
		}
		return contender{name: name, kind: k, how: how, prepare: f.findPages, run: run}
	}
	one := func(n int) string { return pathJobs + "/" + definitionName(n*37%f.o.Definitions) }
	return []contender{
		kind("livez", KindCeiling, "GET /livez, which looks at nothing",
			func(int) request { return request{http.MethodGet, pathLive, nil} }),
		kind("list", KindMillrace, fmt.Sprintf("GET /jobs?limit=%d, one page after the other", listed), func(n int) request {
			return request{http.MethodGet, listPath(f.cursors[n%len(f.cursors)]), nil}
		}),
		kind("show", KindMillrace, "GET /jobs/{name} of one job after the other",
			func(n int) request { return request{http.MethodGet, one(n), nil} }),
		kind("limits", KindMillrace, "PATCH /jobs/{name}/limits of one job after the other, another limit each time; each "+
			"is stored and in the audit trail", func(n int) request {
			return request{http.MethodPatch, one(n) + "/limits", fmt.Appendf(nil, `{"docsPerSecond": %d}`, 1_000_000+n)}
		}),
	}
}

func listPath(cursor string) string {
	q := url.Values{"limit": {itoa(listed)}}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	return pathJobs + "?" + q.Encode()
}

// findPages looks for the cursors of all pages, and whether they have all jobs.
func (f *fleet) findPages(ctx context.Context) error {
	f.cursors = []string{""}
	n := 0
	err := f.pages(ctx, func(p *jobsPage) error {
		if n += len(p.Jobs); p.Next != "" {
			f.cursors = append(f.cursors, p.Next)
		}
		return nil
	})
	if err == nil && n != f.o.Definitions {
		err = fmt.Errorf("the service lists %d jobs of %d", n, f.o.Definitions)
	}
	return err
}

func (f *fleet) pages(ctx context.Context, take func(*jobsPage) error) error {
	for cursor := ""; ; {
		var p jobsPage
		if err := f.ask(ctx, http.MethodGet, listPath(cursor), nil, &p); err != nil {
			return err
		}
		if err := take(&p); err != nil || p.Next == "" {
			return err
		}
		if p.Next <= cursor {
			return errors.New("the service returned the same page again")
		}
		cursor = p.Next
	}
}

// timeRequests sends requests at an even pace and times each from when it was due.
func (f *fleet) timeRequests(ctx context.Context, m *meter, of func(n int) request) error {
	f.counts(m)
	var took []float64
	var mu sync.Mutex
	err := m.during(ctx, f.st, func() error {
		began := time.Now()
		_, serve := f.used()
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(requestsAtOnce)
		for n := range max(int(f.o.Requests*f.pace.Seconds()), 1) {
			due := began.Add(time.Duration(float64(n) / f.o.Requests * float64(time.Second)))
			if wait := time.Until(due); wait > 0 && !tick(gctx, wait) {
				break
			}
			g.Go(func() error {
				if _, err := f.send(gctx, of(n)); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, millis(time.Since(due)))
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		_, now := f.used()
		seconds := time.Since(began).Seconds()
		m.value(serveShare, 100*per(now-serve, seconds))
		m.value(inTime, per(float64(len(took)), seconds))
		return ctx.Err()
	})
	if err == nil {
		m.latencies(took)
	}
	return err
}

type api struct {
	client     *http.Client
	url, token string
}

func (a api) ask(ctx context.Context, method, path string, what, into any) error {
	r := request{method: method, path: path}
	if what != nil {
		raw, err := json.Marshal(what)
		if err != nil {
			return err
		}
		r.body = raw
	}
	raw, err := a.send(ctx, r)
	if err != nil {
		return err
	}
	return mongo.Wrap(json.Unmarshal(raw, into), "%s %s: cannot read the reply", method, path)
}

// send sends a request. A reply that is no success is an error.
func (a api) send(ctx context.Context, r request) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, a.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s %s: %s: %s", r.method, r.path, res.Status,
			strings.TrimSpace(string(raw[:min(len(raw), 500)])))
	}
	return raw, nil
}

// fleet is a service under measurement: serve with its NATS, workers, and what they are given to do.
type fleet struct {
	bench *bench
	st    *site
	o     ServiceOptions
	pace  time.Duration // how long each thing is measured

	serve   *child
	workers []*child
	said    *announced
	api
	cursors []string // of the pages of the list of jobs

	busy   bool          // jobs follow
	idleMB float64       // of the workers, while no job runs
	took   time.Duration // until all jobs followed
}

// announced reads the addresses of serve in its log. It is safe for concurrent use.
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
		line, rest, complete := bytes.Cut(p, []byte("\n"))
		if a.line = append(a.line, line...); !complete {
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

// addresses returns where serve listens, "" before its log has it.
func (a *announced) addresses() (console, nats string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.console, a.nats
}

// start starts serve and the workers on empty directories, and waits until all are there.
func (f *fleet) start(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp(f.bench.dir, "service-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	data := filepath.Join(dir, "data")
	env := []string{"XDG_STATE_HOME=" + dir, "MILLRACE_SECRET_SOURCE=" + f.st.source.uri, "MILLRACE_SECRET_TARGET=" +
		f.st.target.uri}
	f.said = &announced{}
	f.serve,
		err = startChild(ctx, program{name: f.bench.o.Millrace, env: env, log: f.said, args: []string{"serve", "--no-worker",
		"--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data, "--log-format", "json"}})
	if err != nil {
		return err
	}
	var console, nats string
	if err := f.await(ctx, "serve runs", func(context.Context) (bool, error) {
		console, nats = f.said.addresses()
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
		w, err := startChild(ctx, program{name: f.bench.o.Millrace, env: env,
			args: []string{"worker", "--nats", "nats://" + nats,
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

// stop ends the workers, and then serve, to which they return their jobs. The end of ctx has ended them before.
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

// samples of memory are taken in a measurement, of which the median counts.
const samples = 20

func (f *fleet) rest(ctx context.Context, m *meter) error {
	f.counts(m)
	// It is left alone first, after what had to be done at the beginning.
	if !tick(ctx, min(f.pace, 10*time.Second)) {
		return context.Cause(ctx)
	}
	err := m.during(ctx, f.st, func() error {
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
	if err == nil {
		m.value(sourceShare, 100*per(m.source.cpu, m.round.Seconds))
	}
	return err
}
