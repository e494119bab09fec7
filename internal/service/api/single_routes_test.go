package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test/jobtest"
)

// TestRoutesOfASync: a single process has the service's routes for its one job.
func TestRoutesOfASync(t *testing.T) {
	fake := jobtest.New(job.Status{Phase: job.PhaseFollowing})
	s, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler),
		OpenStatus: true, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	serving(t, s, fake)
	ask := func(method, path, token, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(raw)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/livez", "", 200, "ok"},
		{"GET", "/metrics", "", 200, `millrace_phase{job="orders",phase="following"} 1`},
		{"GET", "/metrics", "", 200, `millrace_job_state{job="orders",state="running"} 1`},
		{"GET", "/api/v1/jobs", "", 200, `"name":"orders","state":"running"`},
		{"GET", "/api/v1/jobs/users", "", 404, "notFound"},
		{"PATCH", "/api/v1/jobs/orders/limits", `{"docsPerSecond":7}`, 200, `"docsPerSecond":7`},
		{"PATCH", "/api/v1/jobs/orders/limits", `{}`, 400, "nothing is to be changed"},
		{"PATCH", "/api/v1/jobs/orders/limits", `{"docsPerSecond":-7}`, 400, "0 is unlimited"},
		{"POST", "/api/v1/jobs/orders/pause", "", 200, `"state":"paused"`},
		{"POST", "/api/v1/jobs/users/resume", "", 404, "notFound"},
		{"POST", "/api/v1/jobs/orders/resume", "", 200, `"paused":false`},
		{"POST", "/api/v1/jobs/orders/resume", "", 409, `"code":"failed"`},
		{"POST", "/api/v1/jobs/orders/deadletters/retry", "", 200, `"done":true`},
		{"POST", "/api/v1/jobs/orders/deadletters/retry", `{"id":"1"}`, 400, "all open dead letters"},
		{"DELETE", "/api/v1/jobs/orders/finalize", "", 200, "orders"},
		{"GET", "/api/v1/workers", "", 404, "notFound"},
		{"POST", "/api/v1/jobs", "{}", 405, "method"},
		{"PATCH", "/api/v1/jobs/orders/limits", `{"docsPerSecond":8}`, 200, `"job":"orders"`},
	} {
		token := s.Token()
		if c.method == http.MethodGet {
			token = "" // the status is open
		} else if code, _ := ask(c.method, c.path, "", c.body); code != 401 && code != 405 {
			t.Errorf("%s %s without a token: %d", c.method, c.path, code)
		}
		if code, body := ask(c.method, c.path, token, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d, want %d and %s in\n%s", c.method, c.path, code, c.code, c.want, body)
		}
	}
	_, body := ask("GET", "/api/v1/jobs/orders", s.Token(), "")
	var j Job
	if err := json.Unmarshal([]byte(body), &j); err != nil || j.State != service.Running ||
		j.Report.Status.Limits.Docs != 8 || j.Worker == "" {
		t.Errorf("%v: %s", err, body)
	}
}

// TestEventsOfASync: they tell how the job stands, and that it stands otherwise.
func TestEventsOfASync(t *testing.T) {
	fake := jobtest.New(job.Status{Phase: job.PhaseFollowing})
	s, _ := running(t, fake, "127.0.0.1:0")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+PathEvents, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for _, want := range []string{`data: {"jobs":[{"name":"orders","state":"running"`,
		`data: {"name":"orders","state":"paused"`} {
		for lines.Scan() && !strings.HasPrefix(lines.Text(), want) {
		}
		if !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("no %s: %q %v", want, lines.Text(), lines.Err())
		}
		if err := fake.Pause(context.Background()); err != nil && strings.Contains(want, "running") {
			t.Fatal(err)
		}
	}
}
