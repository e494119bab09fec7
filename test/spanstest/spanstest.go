// Package spanstest is a collector of traces for tests: it takes what is sent by OTLP over
// HTTP, and shows it.
package spanstest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one that was sent.
type Span struct {
	Name, Trace, ID, Parent string
	Attributes              map[string]string
	Failed                  bool
	Begin, End              time.Time
}

// Collector takes spans.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans []Span
	raw   []byte
	came  chan struct{} // closed and replaced when spans come
}

// New starts a collector, until the test ends.
func New(t testing.TB) *Collector {
	c := &Collector{came: make(chan struct{})}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(raw, &in) != nil {
		http.Error(w, "this is not an export of traces", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, of := range in.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				one := Span{Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent:     hex.EncodeToString(s.GetParentSpanId()),
					Attributes: map[string]string{}, Failed: s.GetStatus().GetCode() == 2,
					Begin: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano()))}
				for _, a := range s.GetAttributes() {
					one.Attributes[a.GetKey()] = text(a.GetValue())
				}
				c.spans = append(c.spans, one)
			}
		}
	}
	close(c.came)
	c.came = make(chan struct{})
}

func text(v *common.AnyValue) string {
	if n, ok := v.GetValue().(*common.AnyValue_IntValue); ok {
		return strconv.FormatInt(n.IntValue, 10)
	}
	return v.GetStringValue()
}

// Spans are those that have come, and all bytes of them.
func (c *Collector) Spans() (all []Span, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans), slices.Clone(c.raw)
}

// Until waits for a span.
func (c *Collector) Until(t testing.TB, what string, holds func(*Span) bool) *Span {
	t.Helper()
	late := time.After(3 * time.Minute)
	for {
		c.mu.Lock()
		came := c.came
		for i := range c.spans {
			if holds(&c.spans[i]) {
				one := c.spans[i]
				c.mu.Unlock()
				return &one
			}
		}
		c.mu.Unlock()
		select {
		case <-came:
		case <-late:
			all, _ := c.Spans()
			t.Fatalf("%s did not come: %+v", what, all)
		}
	}
}
