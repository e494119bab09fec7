package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
)

// stream is a listener of the tests.
type stream struct {
	t   testing.TB
	res *http.Response
	in  *bufio.Reader
}

type event struct{ kind, data string }

func (r *rig) listen(who string) *stream {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+PathEvents, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.tokens[who])
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		r.t.Fatal(res, err)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	return &stream{r.t, res, bufio.NewReader(res.Body)}
}

// next is the next event, the zero value at the end.
func (s *stream) next() (e event) {
	s.t.Helper()
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return event{}
		}
		line = strings.TrimSuffix(line, "\n")
		if kind, ok := strings.CutPrefix(line, "event: "); ok {
			e.kind = kind
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			e.data = data
		}
		if line == "" && e.kind != "" {
			return e
		}
	}
}

// TestEvents: all jobs, then each that changes, one that is gone, and the end.
func TestEvents(t *testing.T) {
	r := newRig(t)
	a := r.make("a")
	s := r.listen("viewer")
	if e := s.next(); e.kind != "snapshot" || !strings.Contains(e.data, `{"jobs":[{"name":"a"`) {
		t.Fatalf("%+v", e)
	}
	began := time.Now()
	r.run(a, &job.Status{Job: "a", Phase: job.PhaseCopying})
	reported := 0
	for i := range 50 { // many reports within a second or little more
		r.report(a, &job.Status{Job: "a", Phase: job.PhaseFollowing, Copy: progress.Copy{Docs: int64(i)}})
	}
	r.report(a, &job.Status{Job: "a", Phase: job.PhaseFinalizing})
	for !strings.Contains(s.until("job").data, "finalizing") {
		reported++
	}
	if limit := int(time.Since(began)/eventsEvery) + 1; reported > limit {
		t.Errorf("%d events, more than one a second", reported)
	}
	d, err := r.hub.Jobs.Definition(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.hub.Jobs.Forget(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if e := s.until("removed"); e.data != `{"name":"a"}` {
		t.Errorf("%+v", e)
	}
	r.api.End()
	for s.next().kind != "" {
	}
	if _, err := io.Copy(io.Discard, s.in); err != nil {
		t.Errorf("the end of the events: %v", err)
	}
}

// TestErrorsRedacted: errors quote documents, which are for operators, also in events.
func TestErrorsRedacted(t *testing.T) {
	r := newRig(t)
	r.run(r.make("a"), &job.Status{Job: "a", Phase: job.PhaseFollowing,
		Error: `insert into shop.orders, _id "ada": refused`})
	for who, sees := range map[string]bool{"viewer": false, "operator": true, "admin": true} {
		texts := map[string]string{"events": r.listen(who).until("snapshot").data}
		for _, path := range []string{PathJobs, PathJobs + "/a"} {
			texts[path] = string(r.ask(who, "GET", path, "").body)
		}
		for where, text := range texts {
			if strings.Contains(text, "ada") != sees || !strings.Contains(text, "insert into shop.orders, ") {
				t.Errorf("the %s, %s: %s", who, where, text)
			}
		}
	}
}

func (s *stream) until(kind string) event {
	s.t.Helper()
	for {
		e := s.next()
		if e.kind == kind {
			return e
		}
		if e.kind == "" {
			s.t.Fatalf("the events end before one of %s", kind)
		}
	}
}

// TestNoChangeIsMissedBetweenTwoLooks: what a look is too young for is not called known,
// and who was told such is told again after the pause.
func TestNoChangeIsMissedBetweenTwoLooks(t *testing.T) {
	r := newRig(t)
	a := r.make("a")
	var b board
	if _, fresh, err := b.look(r.view); err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	r.run(a, &job.Status{Job: "a", Phase: job.PhaseCopying})
	b.at = time.Now()
	if now, fresh, err := b.look(r.view); err != nil || fresh || strings.Contains(string(now[0].text), "copying") {
		t.Errorf("%s %v %v", now[0].text, fresh, err)
	}
	b.at = time.Now().Add(-boardAge)
	if now, fresh, err := b.look(r.view); err != nil || !fresh || !strings.Contains(string(now[0].text), "copying") {
		t.Errorf("%s %v %v", now[0].text, fresh, err)
	}
	synctest.Test(t, func(t *testing.T) {
		for fresh, want := range map[bool]time.Duration{false: eventsEvery, true: lookAgain} {
			l := &listener{call: &call{Request: httptest.NewRequest(http.MethodGet, PathEvents, nil)}, fresh: fresh}
			began := time.Now()
			if err := (&news{}).sleep(l, nil); err != nil || time.Since(began) != want {
				t.Errorf("fresh %v: %s, %v", fresh, time.Since(began), err)
			}
		}
	})
}

// TestSlowListener: one that reads nothing holds nobody, and what waits for it does not grow.
func TestSlowListener(t *testing.T) {
	r := newRig(t)
	var jobs []Job
	for i := range 20 {
		jobs = append(jobs, r.make("job-"+itoa(i)))
	}
	var idle []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(1 << 10)
		if _, err := io.WriteString(c, "GET "+PathEvents+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+
			r.tokens["viewer"]+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	listening := func() int {
		all := &r.api.news.board.listeners
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.all
	}
	for listening() != len(idle) {
		time.Sleep(time.Millisecond)
	}
	live := r.listen("viewer")
	live.until("snapshot")
	var before, after runtime.MemStats
	text := strings.Repeat("x", 100<<10)
	for round := range 4 {
		for _, j := range jobs {
			if err := r.hub.Jobs.Report(t.Context(), j.Name, &service.Report{UID: j.UID, Run: "r", State: service.Failed,
				At: time.Now(), Error: text + itoa(round)}); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[string]bool{}
		for len(seen) < len(jobs) {
			e := live.until("job")
			if strings.Contains(e.data, "x"+itoa(round)+`"`) {
				seen[e.data[:40]] = true
			}
		}
		runtime.GC()
		if round == 0 {
			runtime.ReadMemStats(&before)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 20<<20 {
		t.Errorf("%d bytes more for listeners that read nothing", grown)
	}
}

// TestTooManyListeners: the last is refused, and there is room once one has gone.
func TestTooManyListeners(t *testing.T) {
	r := newRig(t)
	all := &r.api.news.board.listeners
	for i := range maxListeners {
		if err := all.enter(itoa(i % (maxListeners / 2))); err != nil {
			t.Fatal(err)
		}
	}
	if a := r.ask("viewer", "GET", PathEvents, ""); a.code != 429 || a.failure(t).Code != CodeTooMany {
		t.Errorf("%d %s", a.code, a.body)
	}
	all.leave("0")
	r.listen("viewer").until("snapshot")
}

// TestListenersOfOne: one token leaves room for others.
func TestListenersOfOne(t *testing.T) {
	r := newRig(t)
	for range maxOfOne {
		r.listen("viewer")
	}
	a := r.ask("viewer", "GET", PathEvents, "")
	if a.code != 429 || !strings.Contains(string(a.body), "event streams already") {
		t.Errorf("%d %s", a.code, a.body)
	}
	r.listen("admin").until("snapshot")
}
