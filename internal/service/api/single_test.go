package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/test/jobtest"
)

const orderPath = PathJobs + "/orders"

// A request to finalize that is refused has a code that stays the same.
func TestFinalizeRefused(t *testing.T) {
	fake := jobtest.New(job.Status{Phase: job.PhaseCopying})
	fake.OnFinalize = func(context.Context) error {
		return mongo.WithHint(&job.Refusal{Code: job.CodeNotFollowing, Text: "the copy is under way"}, "wait")
	}
	s, _ := running(t, fake, "127.0.0.1:0")
	for _, c := range []struct {
		method, body string
		status       int
		want         string
	}{
		{http.MethodPost, "", http.StatusConflict, `"code":"notFollowing"`},
		{http.MethodPost, `{"whenCaughtUp":true}`, http.StatusConflict, `"hint":"wait"`},
		{http.MethodPost, `{"when":1}`, http.StatusBadRequest, "whenCaughtUp"},
		{http.MethodDelete, "", http.StatusOK, `"phase":"copying"`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+orderPath+"/finalize", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+s.Token())
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %s %v, want %d and %s", c.method, c.body, res.StatusCode, body, err, c.status, c.want)
		}
	}
	if got := fake.Asked(); !slices.Equal(got, []string{"finalize", "finalize when caught up", "cancel finalize"}) {
		t.Error(got)
	}
	_, err := client(t, s, s.Token()).Finalize(t.Context(), true)
	if r, ok := errors.AsType[*Refused](err); !ok || string(r.Code) != job.CodeNotFollowing || !IsRefusal(err) ||
		mongo.HintOf(err) != "wait" {
		t.Errorf("%v", err)
	}
}

// A finalize may take longer than any other reply, as often as it is asked for.
func TestFinalizeHasNoDeadline(t *testing.T) {
	fake := jobtest.New(job.Status{})
	fake.OnFinalize = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(1200 * time.Millisecond):
			return errors.New("not yet")
		}
	}
	s, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.deadline = 500 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, fake) }()
	c := client(t, s, s.Token())
	for range 2 {
		if _, err := c.Finalize(t.Context(), false); err == nil || !strings.Contains(err.Error(), "not yet") {
			t.Errorf("%v", err)
		}
		if _, err := c.Status(t.Context()); err != nil {
			t.Errorf("on the same connection: %v", err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// running serves the job until the test or stop ends it.
func running(t *testing.T, c operate.Controller, address string) (s *Single, stop func()) {
	t.Helper()
	s, err := Listen(t.Context(), SingleOptions{Address: address, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s, serving(t, s, c)
}

func serving(t *testing.T, s *Single, c operate.Controller) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, c) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// orders is the job of a sync.
type orders struct{ *Client }

func client(t *testing.T, s *Single, token string) orders {
	t.Helper()
	c := NewClient(s.URL, token)
	t.Cleanup(c.Close)
	return orders{c}
}

func statusOf(j Job, err error) (job.Status, error) {
	if err != nil {
		return job.Status{}, err
	}
	return *j.Report.Status, nil
}

func (o orders) Status(ctx context.Context) (job.Status, error) {
	return statusOf(o.Client.Job(ctx, "orders"))
}

func (o orders) Pause(ctx context.Context) (job.Status, error) {
	return statusOf(Ask[Job](ctx, o.Client, http.MethodPost, orderPath+"/pause", nil))
}

func (o orders) Resume(ctx context.Context) (job.Status, error) {
	return statusOf(Ask[Job](ctx, o.Client, http.MethodPost, orderPath+"/resume", nil))
}

func (o orders) SetLimits(ctx context.Context, l server.Limits) (job.Status, error) {
	return statusOf(Ask[Job](ctx, o.Client, http.MethodPatch, orderPath+"/limits", l))
}

func (o orders) Finalize(ctx context.Context, whenCaughtUp bool) (job.Status, error) {
	return statusOf(o.Client.Finalize(ctx, "orders", whenCaughtUp))
}

func TestControl(t *testing.T) {
	s, _ := running(t, jobtest.New(job.Status{Phase: job.PhaseFollowing}), "127.0.0.1:0")
	c := client(t, s, s.Token())
	ctx := t.Context()
	st, err := c.Status(ctx)
	if err != nil || st.Job != "orders" || st.Phase != job.PhaseFollowing {
		t.Fatalf("%+v, %v", st, err)
	}
	if st, err = c.Pause(ctx); err != nil || !st.Paused {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err = c.Pause(ctx); err == nil || mongo.HintOf(err) != "look first" ||
		!strings.Contains(err.Error(), "it is so already") {
		t.Fatalf("%v, hint %q", err, mongo.HintOf(err))
	}
	if st, err = c.Resume(ctx); err != nil || st.Paused {
		t.Fatalf("%+v, %v", st, err)
	}
	docs, none := int64(7), int64(0)
	if st, err = c.SetLimits(ctx, server.Limits{Docs: &docs, Bytes: &docs}); err != nil ||
		st.Limits != (pace.Rates{Docs: 7, Bytes: 7}) {
		t.Fatalf("%+v, %v", st, err)
	}
	if st, err = c.SetLimits(ctx, server.Limits{Bytes: &none}); err != nil || st.Limits != (pace.Rates{Docs: 7}) {
		t.Fatalf("%+v, %v", st, err)
	}
	if st, err = c.SetLimits(ctx, server.Limits{Source: new(pace.Low)}); err != nil || st.Load.Source != pace.Low ||
		st.Limits != (pace.Rates{Docs: 7}) {
		t.Fatalf("%+v, %v", st, err)
	}
	if st, err = c.SetLimits(ctx, server.Limits{Target: new(pace.Max)}); err != nil ||
		st.Load.Loads != (pace.Loads{Source: pace.Low, Target: pace.Max}) || st.Limits != (pace.Rates{Docs: 7}) {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err = c.SetLimits(ctx, server.Limits{Target: new(pace.Load("heavy"))}); err == nil ||
		!strings.Contains(err.Error(), `load "heavy" is unknown`) {
		t.Fatal(err)
	}
}

func TestWhoMayAsk(t *testing.T) {
	local, _ := running(t, jobtest.New(job.Status{}), "127.0.0.1:0")
	shown, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0",
		Log: slog.New(slog.DiscardHandler), OpenStatus: true})
	if err != nil {
		t.Fatal(err)
	}
	serving(t, shown, jobtest.New(job.Status{}))
	open, _ := running(t, jobtest.New(job.Status{}), "0.0.0.0:0")
	for _, c := range []struct {
		name   string
		s      *Single
		method string
		path   string
		header map[string]string
		host   string
		want   int
	}{
		{"look without token", local, "GET", orderPath, nil, "", 401},
		{"look with the token", local, "GET", orderPath,
			map[string]string{"Authorization": "Bearer " + local.Token()}, "", 200},
		{"look at an open status", shown, "GET", orderPath, nil, "", 200},
		{"foreign name for an open status", shown, "GET", orderPath, nil, "evil.example:80", 403},
		{"change where the status is open", shown, "POST", orderPath + "/pause", nil, "", 401},
		{"change without token", local, "POST", orderPath + "/pause", nil, "", 401},
		{"change with a wrong token", local, "POST", orderPath + "/pause", map[string]string{"Authorization": "Bearer wrong"},
			"", 401},
		{"change with the token", local, "POST", orderPath + "/pause",
			map[string]string{"Authorization": "Bearer " + local.Token()}, "", 200},
		{"foreign name for loopback", local, "GET", orderPath, nil, "evil.example:80", 403},
		{"foreign name with the token", local, "POST", orderPath + "/pause",
			map[string]string{"Authorization": "Bearer " + local.Token()}, "evil.example", 403},
		{"localhost", local, "GET", server.PathHealth, nil, "localhost:1", 200},
		{"another web page", local, "POST", orderPath + "/resume",
			map[string]string{"Authorization": "Bearer " + local.Token(), "Origin": "https://evil.example"}, "", 403},
		{"a form of another page", local, "POST", orderPath + "/resume",
			map[string]string{"Sec-Fetch-Site": "cross-site"}, "", 403},
		{"get of an action", local, "GET", orderPath + "/pause", nil, "", 405},
		{"no such path", local, "GET", "/", nil, "", 404},
		{"health on loopback", local, "GET", server.PathHealth, nil, "", 200},
		{"look from outside without token", open, "GET", orderPath, nil, "", 401},
		{"look from outside with the token", open, "GET", orderPath,
			map[string]string{"Authorization": "Bearer " + open.Token()}, "db.example:7000", 200},
		{"health from outside", open, "GET", server.PathHealth, nil, "", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), c.method, c.s.URL+c.path, bytes.NewReader([]byte("{}")))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range c.header {
				req.Header.Set(k, v)
			}
			req.Host = c.host
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != c.want {
				t.Errorf("%d, want %d", res.StatusCode, c.want)
			}
			var f Failure
			if err := json.NewDecoder(res.Body).Decode(&f); c.want >= 400 && (err != nil || f.Error == "") {
				t.Errorf("the refusal is not JSON: %+v, %v", f, err)
			}
		})
	}
}

func TestLongHeaderIsRefused(t *testing.T) {
	s, _ := running(t, jobtest.New(job.Status{}), "127.0.0.1:0")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+orderPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 4*maxHeader))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%d", res.StatusCode)
	}
}

// The outcome of finalize reaches who asked, although the server is told to
// end in the same moment.
func TestFinalizeRepliesBeforeTheEnd(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{})
	fake := jobtest.New(job.Status{})
	fake.OnFinalize = func(context.Context) error { close(started); <-release; return nil }
	s, stop := running(t, fake, "127.0.0.1:0")
	c := client(t, s, s.Token())
	type answer struct {
		st  job.Status
		err error
	}
	answers := make(chan answer, 2)
	for range 2 { // the second joins the first
		go func() {
			st, err := c.Finalize(t.Context(), false)
			answers <- answer{st, err}
		}()
	}
	<-started
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(release)
	one, two := <-answers, <-answers
	if one.err != nil { // it came after the end
		one = two
	}
	if one.err != nil || one.st.Phase != job.PhaseFinalized {
		t.Fatalf("%+v, %v", one.st, one.err)
	}
	<-stopped
	if got := fake.Asked(); len(got) != 1 {
		t.Errorf("finalized more than once: %v", got)
	}
}

func TestFinalizeGoesOnWithoutTheClient(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	fake := jobtest.New(job.Status{})
	fake.OnFinalize = func(ctx context.Context) error {
		close(started)
		<-release
		return ctx.Err()
	}
	s, _ := running(t, fake, "127.0.0.1:0")
	c := client(t, s, s.Token())
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := c.Finalize(ctx, false); gone <- err }()
	<-started
	cancel()
	if err := <-gone; err == nil {
		t.Fatal("the client did not notice that it left")
	}
	close(release)
	waitFor(t, func() bool { return fake.Status().Phase == job.PhaseFinalized })
	if st, err := c.Finalize(t.Context(), false); err != nil || st.Phase != job.PhaseFinalized {
		t.Fatalf("asked again: %+v, %v", st, err)
	}
}

func TestFailedFinalizeMayBeAskedAgain(t *testing.T) {
	fails := true
	fake := jobtest.New(job.Status{})
	fake.OnFinalize = func(context.Context) error {
		if fails {
			fails = false
			return mongo.WithHint(errors.New("paused"), "resume it first")
		}
		return nil
	}
	s, _ := running(t, fake, "127.0.0.1:0")
	c := client(t, s, s.Token())
	if _, err := c.Finalize(t.Context(), false); err == nil || mongo.HintOf(err) != "resume it first" {
		t.Fatalf("%v", err)
	}
	if _, err := c.Finalize(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

// A finalize that hangs does not keep the server from ending.
func TestEndGivesUpFinalize(t *testing.T) {
	started := make(chan struct{})
	fake := jobtest.New(job.Status{})
	fake.OnFinalize = func(ctx context.Context) error { close(started); <-ctx.Done(); return ctx.Err() }
	s, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.farewell = 10 * time.Millisecond
	stop := serving(t, s, fake)
	c := client(t, s, s.Token())
	gone := make(chan error, 1)
	go func() { _, err := c.Finalize(t.Context(), false); gone <- err }()
	<-started
	stop()
	if err := <-gone; err == nil {
		t.Error("finalize succeeded")
	}
}

func TestClientAgainstSomethingElse(t *testing.T) {
	l, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0",
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	address := l.URL
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := NewClient(address, "secret-token")
	defer c.Close()
	if _, err := c.Job(t.Context(), "orders"); err == nil || mongo.HintOf(err) == "" ||
		strings.Contains(err.Error(), "secret-token") {
		t.Errorf("%v", err)
	}
	if _, err := Listen(t.Context(), SingleOptions{Address: "256.0.0.1:1",
		Log: slog.New(slog.DiscardHandler)}); err == nil || mongo.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !what() {
		if time.Now().After(deadline) {
			t.Fatal("it never came true")
		}
		time.Sleep(time.Millisecond)
	}
}
