package spans_test

import (
	"compress/gzip"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/internal/service/spans"
	"github.com/millrace/millrace/test/spanstest"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestVariables: the variables of OpenTelemetry say where spans go, with which headers and
// certificates, and how; a collector that is busy is asked again.
func TestVariables(t *testing.T) {
	c := spanstest.New(t)
	var asked atomic.Int32
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			http.Error(w, "geheim", http.StatusServiceUnavailable)
			return
		}
		if r.Header.Get("Api-Key") != "a,b" || r.Header.Get("Tenant") != "t" || r.URL.Path != "/base/v1/traces" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		r.Body, r.URL.Path = unpacked, "/v1/traces"
		c.ServeHTTP(w, r)
	}))
	t.Cleanup(secure.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(authority, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := spans.Open(t.Context(), spans.Options{Log: discard(), LookupEnv: env(map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":       secure.URL + "/base",
		"OTEL_EXPORTER_OTLP_HEADERS":        "Api-Key=a%2Cb, Tenant=t",
		"OTEL_EXPORTER_OTLP_CERTIFICATE":    authority,
		"OTEL_EXPORTER_OTLP_COMPRESSION":    "none",
		"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1",
		// What is for traces alone counts.
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
	})})
	if err != nil || s == nil {
		t.Fatal(s, err)
	}
	s.Verify(t.Context(), "job", "1", "w")(0, nil)
	s.Close()
	if all, _ := c.Spans(); len(all) != 1 || asked.Load() != 2 {
		t.Errorf("%d requests, %+v", asked.Load(), all)
	}
}

// TestTracesEndpoint: the endpoint of traces alone is the very URL.
func TestTracesEndpoint(t *testing.T) {
	c := spanstest.New(t)
	s, err := spans.Open(t.Context(), spans.Options{Log: discard(), LookupEnv: env(map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":        "http://127.0.0.1:1",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": c.URL + "/v1/traces",
	})})
	if err != nil || s == nil {
		t.Fatal(s, err)
	}
	s.Verify(t.Context(), "job", "1", "w")(0, nil)
	s.Close()
	if all, _ := c.Spans(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

// TestHeadersStay: a redirection does not take the headers to somebody else.
func TestHeadersStay(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("asked: %v", r.Header)
	}))
	t.Cleanup(other.Close)
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(first.Close)
	w := &written{}
	s, err := spans.Open(t.Context(), spans.Options{Endpoint: first.URL, Log: slog.New(slog.NewTextHandler(w, nil)),
		LookupEnv: env(map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "key=geheim"})})
	if err != nil {
		t.Fatal(err)
	}
	s.Verify(t.Context(), "job", "1", "w")(0, nil)
	s.Close()
	if text := w.text(); !strings.Contains(text, "307") || strings.Contains(text, "geheim") {
		t.Error(text)
	}
}

// TestVariablesThatCannotBeRead are refused, and their texts stay secret.
func TestVariablesThatCannotBeRead(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":            "a=b,geheim",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS":     "a=%geheim",
		"OTEL_EXPORTER_OTLP_COMPRESSION":        "zip",
		"OTEL_EXPORTER_OTLP_CERTIFICATE":        filepath.Join(t.TempDir(), "none"),
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": filepath.Join(t.TempDir(), "none"),
	} {
		_, err := spans.Open(t.Context(), spans.Options{Endpoint: "http://127.0.0.1:1", Log: discard(),
			LookupEnv: env(map[string]string{name: value})})
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
