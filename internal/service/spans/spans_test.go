package spans_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service/spans"
	"github.com/millrace/millrace/test/spanstest"
)

func env(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := values[name]; return v, ok }
}

func open(t *testing.T, endpoint string, log *slog.Logger) *spans.Spans {
	t.Helper()
	s, err := spans.Open(t.Context(), spans.Options{Endpoint: endpoint, LookupEnv: env(nil), Instance: "w", Version: "v",
		Log: log})
	if err != nil || s == nil {
		t.Fatal(s, err)
	}
	return s
}

// TestRequest: a request is a span in the trace of who asks, with its route, not its path.
func TestRequest(t *testing.T) {
	c := spanstest.New(t)
	s := open(t, c.URL, slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	mux.Handle("GET /jobs/{name}", s.Request("GET", "/jobs/{name}",
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.PathValue("name") == "none" {
				w.WriteHeader(http.StatusNotFound)
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		})))
	for _, name := range []string{"a", "none"} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs/"+name+"?token=geheim", nil)
		r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		r.Header.Set("Authorization", "Bearer geheim")
		mux.ServeHTTP(httptest.NewRecorder(), r)
	}
	s.Close()
	all, raw := c.Spans()
	if len(all) != 2 || all[0].Trace != "0af7651916cd43dd8448eb211c80319c" || all[0].Parent != "b7ad6b7169203331" ||
		all[0].Name != "GET /jobs/{name}" || all[0].Attributes["millrace.name"] != "a" {
		t.Fatalf("%+v", all)
	}
	if all[1].Attributes["http.response.status_code"] != "404" || all[1].Attributes["millrace.name"] != "" ||
		bytes.Contains(raw, []byte("geheim")) {
		t.Errorf("%+v", all[1])
	}
}

// TestRun: steps nest in phases, phases in the take, which ends when the job runs; what is
// under way ends with the job; texts of errors are not told.
func TestRun(t *testing.T) {
	c := spanstest.New(t)
	s := open(t, c.URL, slog.New(slog.DiscardHandler))
	r := s.Take(t.Context(), "shop", "w1", "r1")
	at := time.Unix(1_700_000_000, 0)
	tell := func(e job.Event) {
		at = at.Add(time.Second)
		e.At = at
		r.OnEvent()(e)
	}
	r.Taken()
	phase := func(name string, ended bool) { tell(job.Event{Step: job.StepPhase, Name: name, Ended: ended}) }
	phase("copying", false)
	tell(job.Event{Step: job.StepCollection, Name: "shop.orders"})
	tell(job.Event{Step: job.StepCollection, Name: "shop.items"})
	tell(job.Event{Step: job.StepCollection, Name: "shop.orders", Ended: true, Docs: 7})
	for i := range 3000 {
		tell(job.Event{Step: job.StepCollection, Name: fmt.Sprint("many.", i)})
	}
	phase("copying", true)
	phase("following", false)
	tell(job.Event{Step: job.StepSchema, Name: "shop.orders", What: "drop"})
	r.End(errors.New("duplicate key: { mail: geheim }"))
	s.Close()
	all, raw := c.Spans()
	by := map[string]spanstest.Span{}
	for _, one := range all {
		by[one.Name+" "+one.Attributes["db.namespace"]] = one
	}
	take, copying := by["take job "], by["phase copying "]
	if take.Parent != "" || take.Failed || copying.Parent != take.ID ||
		by["copy collection shop.orders"].Parent != copying.ID || by["schema change drop shop.orders"].Parent != take.ID {
		t.Errorf("%+v", by)
	}
	if o := by["copy collection shop.orders"]; o.Attributes["millrace.documents"] != "7" ||
		o.End.Sub(o.Begin) != 2*time.Second || !by["schema change drop shop.orders"].Failed {
		t.Errorf("%+v", o)
	}
	if _, there := by["phase following "]; there || copying.Attributes["millrace.collections.without.spans"] != "2002" ||
		bytes.Contains(raw, []byte("geheim")) {
		t.Errorf("%+v", copying)
	}
}

// written is a log that a test reads.
type written struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *written) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// TestAway: a collector that refuses or does not answer holds nobody up, and the log says so
// once.
func TestAway(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	end := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	refuses := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(func() { close(end); hangs.Close(); refuses.Close() })
	for _, endpoint := range []string{gone.URL, hangs.URL, refuses.URL} {
		w := &written{}
		s := open(t, endpoint, slog.New(slog.NewTextHandler(w, nil)))
		for i := range 20_000 {
			s.Verify(t.Context(), "job", fmt.Sprint(i), "w")(0, nil)
		}
		s.Close()
		if n := strings.Count(w.text(), "traces cannot be sent"); n > 1 || endpoint == refuses.URL && n == 0 {
			t.Errorf("%s: %d complaints: %s", endpoint, n, w.text())
		}
	}
}

// TestOff: nothing is made where nobody says to whom, and an endpoint that cannot be used is
// refused without being shown.
func TestOff(t *testing.T) {
	const at = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, values := range []map[string]string{nil, {at: ""}, {at: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
		{at: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
		{at: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}} {
		s, err := spans.Open(t.Context(), spans.Options{LookupEnv: env(values), Log: slog.New(slog.DiscardHandler)})
		if s != nil || err != nil {
			t.Errorf("%v: %v, %v", values, s, err)
		}
		r := s.Take(context.Background(), "a", "b", "c")
		r.Taken()
		r.End(nil)
		s.Verify(t.Context(), "a", "b", "c")(1, nil)
		if r.OnEvent() != nil {
			t.Error("somebody listens")
		}
		s.Close()
	}
	for _, bad := range []string{"127.0.0.1:4318", "grpc://h:1", "http://ada:geheim@h:1", "http://h:1?key=geheim",
		"http://%zz:geheim"} {
		_, err := spans.Open(t.Context(),
			spans.Options{Endpoint: bad, LookupEnv: env(nil), Log: slog.New(slog.DiscardHandler)})
		if err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
