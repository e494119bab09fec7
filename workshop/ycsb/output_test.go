package ycsb

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestLines reads the result as a parser of the Java tool's output does.
func TestLines(t *testing.T) {
	b := newBed(t)
	var out, status, raw bytes.Buffer
	b.do(Load)
	r, err := Execute(t.Context(), Options{Phase: Run, Properties: b.props.With("measurementtype", "hdrhistogram+raw",
		"hdrhistogram.percentiles", "50,95,99,99.9", "target", "3000"),
		Noise: shared.noise, Status: &status, Raw: &raw})
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteText(&out, r); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		parts := strings.Split(line, ", ")
		if len(parts) != 3 || !strings.HasPrefix(parts[0], "[") || !strings.HasSuffix(parts[0], "]") {
			t.Fatalf("line %q", line)
		}
		v, err := strconv.ParseFloat(parts[2], 64)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got[parts[0]+parts[1]] = v
	}
	for _, name := range []string{"[OVERALL]RunTime(ms)", "[OVERALL]Throughput(ops/sec)", "[TOTAL_GCs]Count",
		"[READ]Operations", "[READ]AverageLatency(us)",
		"[READ]MinLatency(us)", "[READ]MaxLatency(us)", "[READ]50thPercentileLatency(us)", "[READ]95thPercentileLatency(us)",
		"[READ]99thPercentileLatency(us)",
		"[READ]99.9PercentileLatency(us)", "[READ]Return=OK", "[UPDATE]Operations", "[UPDATE]Return=OK",
		"[CLEANUP]Operations", "[Intended-READ]99thPercentileLatency(us)"} {
		if _, ok := got[name]; !ok {
			t.Errorf("no line %s in\n%s", name, out.String())
		}
	}
	if got["[READ]Operations"]+got["[UPDATE]Operations"] != 800 ||
		got["[Intended-READ]AverageLatency(us)"] < got["[READ]AverageLatency(us)"] {
		t.Errorf("%v", got)
	}
	if lines := strings.Count(raw.String(), "\n"); lines < 1600 {
		t.Errorf("%d raw lines", lines)
	}
	if !regexp.MustCompile(`(?m)^READ latency raw data: op, timestamp\(ms\), latency\(us\)$`).MatchString(raw.String()) ||
		!regexp.MustCompile(`(?m)^READ,\d{13},\d+$`).MatchString(raw.String()) {
		t.Errorf("raw: %.300s", raw.String())
	}
	if !strings.Contains(status.String(), "800 operations; ") {
		t.Errorf("status: %s", status.String())
	}
}

func TestMeasurementTypes(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	for kind, want := range map[string]string{"histogram": "[READ], >20, ", "timeseries": "[READ], AverageLatency(us), "} {
		r := b.do(Run, "measurementtype", kind, "histogram.buckets", "20", "timeseries.granularity", "50")
		var out bytes.Buffer
		if err := WriteText(&out, r); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", kind, err, out.String())
		}
		if kind == "timeseries" && !regexp.MustCompile(`(?m)^\[READ\], \d+, \d+\.\d+$`).MatchString(out.String()) {
			t.Errorf("%s:\n%s", kind, out.String())
		}
	}
}

func TestTargetIsKept(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	r := b.do(Run, "target", "1000", "operationcount", "1000")
	if r.Throughput > 1050 { // never faster; how much slower is up to the machine
		t.Errorf("%.0f operations a second", r.Throughput)
	}
}

func TestLimitOfTime(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	r := b.do(Run, "operationcount", "0", "maxexecutiontime", "1")
	if r.Seconds < 1 || r.Operations == 0 || r.Failed != 0 || r.Interrupted {
		t.Errorf("%+v", r)
	}
}

func TestInterruption(t *testing.T) {
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil { // until it has begun
			if n, err := b.coll.EstimatedDocumentCount(t.Context()); err != nil || n > 100 {
				return
			}
		}
	}()
	r, err := Execute(ctx, Options{Phase: Load, Properties: b.props.With("recordcount", "100000000"), Noise: shared.noise})
	if err != nil || !r.Interrupted || r.Resume == nil || r.Failed != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := b.count(); n < r.Resume.InsertStart || n > r.Resume.InsertStart+3 {
		t.Errorf("%d documents, to go on from %d", n, r.Resume.InsertStart)
	}
}

func TestHTML(t *testing.T) {
	b := newBed(t)
	b.do(Load)
	r := b.do(Run, "timeseries.granularity", "20", "target", "5000")
	var page bytes.Buffer
	if err := WriteHTML(&page, r); err != nil || strings.Count(page.String(), "<svg") != 3 ||
		strings.Contains(page.String(), "ZgotmplZ") {
		t.Errorf("%v: %d charts of %d points", err, strings.Count(page.String(), "<svg"), len(r.Course))
	}
}
