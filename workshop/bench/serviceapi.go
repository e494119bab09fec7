package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	pathJobs    = "/api/v1/jobs"
	pathWorkers = "/api/v1/workers"
	pathLive    = "/livez"
	// listed is how many jobs a page has.
	listed = 100
	// requestsAtOnce bounds those that are under way. One that is due later waits,
	// which counts.
	requestsAtOnce = 64
	// maxReply bounds what is read of a reply, in bytes.
	maxReply = 16 << 20
)

// request is one to the API.
type request struct {
	method, path string
	body         []byte
}

// requests are the kinds of requests that are measured, while nothing is written or
// while all jobs are.
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
		kind("livez", KindCeiling, "GET /livez, which looks at nothing", func(int) request { return request{http.MethodGet, pathLive, nil} }),
		kind("list", KindMillrace, fmt.Sprintf("GET /jobs?limit=%d, one page after the other", listed), func(n int) request {
			return request{http.MethodGet, listPath(f.cursors[n%len(f.cursors)]), nil}
		}),
		kind("show", KindMillrace, "GET /jobs/{name} of one job after the other", func(n int) request { return request{http.MethodGet, one(n), nil} }),
		kind("limits", KindMillrace, "PATCH /jobs/{name}/limits of one job after the other, another limit each time; each is stored and in the audit trail", func(n int) request {
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

// pages reads the list of jobs page by page.
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
			return errors.New("the service gives the same page again")
		}
		cursor = p.Next
	}
}

// timeRequests sends requests at an even pace and notes how long they take, from when
// each is due: one that had to wait for those before counts with its wait.
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
	if err != nil {
		return err
	}
	slices.Sort(took)
	m.set(func(r *Round) { r.Done = len(took) })
	m.value(p50, percentile(took, 0.50))
	m.value(p99, percentile(took, 0.99))
	m.value(pMax, percentile(took, 1))
	return nil
}

// ask sends a request and reads what is replied.
func (f *fleet) ask(ctx context.Context, method, path string, what, into any) error {
	r := request{method: method, path: path}
	if what != nil {
		raw, err := json.Marshal(what)
		if err != nil {
			return err
		}
		r.body = raw
	}
	raw, err := f.send(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s %s: the reply is none of the service: %w", method, path, err)
	}
	return nil
}

// send sends a request. A reply that is no success is an error.
func (f *fleet) send(ctx context.Context, r request) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, f.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s %s: %s: %s", r.method, r.path, res.Status, strings.TrimSpace(string(raw[:min(len(raw), 500)])))
	}
	return raw, nil
}
