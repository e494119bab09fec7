package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

const rulesDir = "../../deploy/prometheus"

// installed is a program of prometheus; without it the test is skipped.
func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian, Ubuntu: apt-get install prometheus)", name)
	}
	return path
}

// TestAlertRules: the rules are some, and fire and resolve on what was recorded for them.
func TestAlertRules(t *testing.T) {
	promtool := installed(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "millrace.rules.yml"}, {"test", "rules", "millrace.test.yml"}} {
		cmd := spawn.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = rulesDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestPrometheus: a real prometheus scrapes serve by the configuration that is shipped,
// and the alert of lag fires and resolves with the lag of a real job.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	prometheus := installed(t, "prometheus")
	src, dst := lab.ForTest(t, lab.Options{}), lab.ForTest(t, lab.Options{})
	dir, listen, web := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t)),
		fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t))
	serve := test.StartWith(t, []string{"MILLRACE_SECRET_SRC=" + src.URI(), "MILLRACE_SECRET_DST=" + dst.URI()},
		test.BuildMillrace(t),
		"serve", "--data-dir", dir, "--listen", listen)
	wait := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(4 * time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s did not come", what)
			}
		}
	}
	var client *api.Client
	wait("the service", func() bool {
		token, err := os.ReadFile(filepath.Join(dir, "token"))
		if err != nil {
			return false
		}
		client = api.NewClient(listen, strings.TrimSpace(string(token)))
		_, err = client.Jobs(t.Context(), "", "")
		return err == nil
	})
	t.Cleanup(client.Close)

	// What is shipped, at this address and impatient.
	shipped := func(name string, changes ...string) {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(rulesDir, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		for pair := range slices.Chunk(changes, 2) {
			if !strings.Contains(text, pair[0]) {
				t.Fatalf("%s has no %q", name, pair[0])
			}
			text = strings.ReplaceAll(text, pair[0], pair[1])
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shipped("millrace.rules.yml", "(millrace_lag_seconds) > 60", "(millrace_lag_seconds) > 3", "for: 5m", "for: 1s")
	shipped("prometheus.yml", "rule_files:", "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: "+
		"1s}\nrule_files:", "scheme: https", "scheme: http",
		"/etc/prometheus/millrace-token", filepath.Join(dir, "token"), "millrace.example.org:8470", listen)
	cmd := spawn.Command(prometheus, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path",
		filepath.Join(dir, "tsdb"), "--web.listen-address", web, "--log.level", "warn")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })

	coll := kit.Client(t, src.URI()).Database("shop").Collection("orders")
	insert := func(n int) {
		t.Helper()
		docs := make([]bson.M, n)
		for i := range docs {
			docs[i] = bson.M{"n": i}
		}
		if _, err := coll.InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
	insert(10)
	if _, _, err := client.Create(t.Context(),
		api.NewJob{Draft: api.Draft{Name: "orders",
			Settings: json.RawMessage(`{"source": "env:SRC", "target": "env:DST"}`)}}); err != nil {
		t.Fatal(err)
	}
	wait("a job that follows", func() bool {
		j, err := client.Job(t.Context(), "orders")
		return err == nil && j.Phase == job.PhaseFollowing && j.LagSeconds == 0
	})
	wait("the first scrape", func() bool { return len(firing(t, web, "ALERTS or millrace_lag_seconds")) > 0 })
	if all := firing(t, web, `ALERTS{alertstate="firing"}`); len(all) > 0 {
		t.Errorf("fires without a reason: %v", all)
	}
	slow, fast := int64(20), int64(0)
	if _, err := api.Ask[api.Job](t.Context(), client, http.MethodPatch, api.At(api.PathLimits, "orders"),
		server.Limits{Docs: &slow}); err != nil {
		t.Fatal(err)
	}
	wait("the limit", func() bool { // a wish is met a moment later
		j, err := client.Job(t.Context(), "orders")
		return err == nil && j.Report != nil && j.Report.Status != nil && j.Report.Status.Limits.Docs == slow
	})
	insert(2000)
	lag := `ALERTS{alertname="MillraceLag", job="orders", alertstate="firing"}`
	wait("the alert", func() bool { return len(firing(t, web, lag)) == 1 })
	if _, err := api.Ask[api.Job](t.Context(), client, http.MethodPatch, api.At(api.PathLimits, "orders"),
		server.Limits{Docs: &fast}); err != nil {
		t.Fatal(err)
	}
	wait("its end", func() bool {
		return len(firing(t, web, lag)) == 0 &&
			len(firing(t, web, "millrace_lag_seconds")) == 1
	})
	if serve.Interrupt(); serve.ExitCode() != 0 {
		t.Errorf("serve ended with %d", serve.ExitCode())
	}
}

// firing are the series that a query finds, none while prometheus does not answer.
func firing(t *testing.T, web, query string) []map[string]string {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+web+"/api/v1/query", nil)
	if err != nil {
		t.Fatal(err)
	}
	q := req.URL.Query()
	q.Set("query", query)
	req.URL.RawQuery = q.Encode()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	var reply struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
		return nil
	}
	var list []map[string]string
	for _, r := range reply.Data.Result {
		list = append(list, r.Metric)
	}
	return list
}
