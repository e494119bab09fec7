package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/ycsb"
)

func TestFlagsOfTheJavaTool(t *testing.T) {
	got := javaFlags(strings.Fields("ycsb run mongodb -s -P workloads/workloada -threads 8 -target=100 -p -threads=1"))
	want := strings.Fields("ycsb run mongodb -s -P workloads/workloada --threads 8 --target=100 -p --threads=1")
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := javaFlags([]string{"sync", "-threads"}); got[1] != "-threads" {
		t.Errorf("other commands are changed: %q", got)
	}
}

func TestYCSBUsageErrors(t *testing.T) {
	b := newBench(t)
	for _, c := range [][]string{
		{"ycsb", "run"}, {"ycsb", "run", "cassandra"}, {"ycsb", "run", "mongodb", "-P", "not/there"},
		{"ycsb", "run", "mongodb", "-p", "x"},
		{"ycsb", "run", "mongodb", "--output", "yaml"}, {"ycsb", "matrix", "--read-write", "many"},
		{"ycsb", "matrix", "--threads", "0"}, {"ycsb", "walk"},
		{"ycsb", "load", "mongodb", "-p", "recordcount=many"}, {"ycsb", "matrix", "-p", "requestdistribution=any"},
		{"ycsb", "matrix", "mongodb://localhost"}, {"ycsb", "matrix", "--operations", "-1"},
		{"ycsb", "matrix", "--peer", "ycsb=/not/there"},
	} {
		if code := b.run(t.Context(), c...); code != cli.ExitUsage || b.stdout.String() != "" {
			t.Errorf("%q: exit code %d, %s", c, code, b.stderr)
		}
	}
}

// A script for the Java tool, with nothing but the program's name changed.
func TestYCSBScript(t *testing.T) {
	cluster := lab.ForTest(t, lab.Options{})
	b := newBench(t)
	b.env[envYCSBURL] = cluster.URI()
	dir := t.TempDir()
	file, chart := filepath.Join(dir, "workload.mine"), filepath.Join(dir, "run.html")
	if err := os.WriteFile(file,
		[]byte(
			"recordcount=200\noperationcount=400\nworkload=com.yahoo.ycsb.workloads.CoreWorkload\n"+
				"readproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := b.run(t.Context(), "ycsb", "load", "mongodb", "-s", "-P", file, "-threads", "2"); code != cli.ExitOK ||
		!strings.Contains(b.stdout.String(), "[INSERT], Return=OK, 200\n") {
		t.Fatalf("load: %d\n%s%s", code, b.stdout, b.stderr)
	}
	if !strings.Contains(b.stderr.String(), " sec: 200 operations; ") {
		t.Errorf("status: %s", b.stderr)
	}
	if code := b.run(t.Context(), "ycsb", "run", "mongodb-async", "-P", file, "-threads", "2", "-jvm-args", "-Xmx1g",
		"-cp=x.jar", "-p", "operationcount=300"); code != cli.ExitOK ||
		!strings.Contains(b.stdout.String(), "[OVERALL], RunTime(ms), ") {
		t.Errorf("run: %d\n%s%s", code, b.stdout, b.stderr)
	}
	code := b.run(t.Context(), "ycsb", "run", "mongodb", "-P", file, "--output", "json", "--chart", chart)
	var r ycsb.Report
	if err := json.Unmarshal([]byte(b.stdout.String()), &r); code != cli.ExitOK || err != nil || r.Operations != 400 ||
		r.Database != "ycsb" || r.Find("READ") == nil {
		t.Errorf("json: %d, %v\n%s%s", code, err, b.stdout, b.stderr)
	}
	if page := read(t, chart); !strings.Contains(page, "millrace-bench ycsb run") {
		t.Errorf("page: %s", page)
	}
	if code := b.run(t.Context(), "ycsb", "load", "mongodb", "-P", file); code != cli.ExitFailure ||
		!strings.Contains(b.stderr.String(), "insertstart=0") {
		t.Errorf("load over what is there: %d\n%s", code, b.stderr)
	}
	if code := b.run(t.Context(), "ycsb", "run", "mongodb", "-P", file, "-p", "table=empty"); code != cli.ExitFailure {
		t.Errorf("run on nothing: %d\n%s%s", code, b.stdout, b.stderr)
	}
	uri := strings.Replace(cluster.URI(), "/?", "/other?", 1)
	code = b.run(t.Context(), "ycsb", "matrix", "--published", "0.0001", "--operations", "300", "--read-write", "50:50",
		"--output", "json", "--chart", chart, "a="+cluster.URI(), "b="+uri)
	var c ycsb.Comparison
	if err := json.Unmarshal([]byte(b.stdout.String()), &c); code != cli.ExitOK || err != nil || len(c.Sides) != 2 ||
		len(c.Differences) != 1 {
		t.Fatalf("comparison: %d, %v\n%s%s", code, err, b.stdout, b.stderr)
	}
	if x := c.Sides[1]; x.Cells[0].Operations != 300 || x.Cells[0].Threads != 8 || x.Records != 100 || x.Load == nil ||
		c.Sides[0].Load != nil || x.Distribution != "zipfian" {
		t.Errorf("comparison: %+v", x)
	}
	if code := b.run(t.Context(), "ycsb", "matrix", "-P", file, "--read-write", "50:50", "--threads", "2", "--each", "1s",
		"--warm-up", "0s"); code != cli.ExitOK || !strings.Contains(b.stdout.String(), "50:50") {
		t.Errorf("matrix: %d\n%s%s", code, b.stdout, b.stderr)
	}
}
