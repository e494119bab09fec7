package ycsb

import (
	"bytes"
	"context"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTally(t *testing.T) {
	r := random(t)
	one, two := newLatencyStats(10), newLatencyStats(10)
	var all []int64
	for i := range 20_000 {
		us := int64(math.Exp(r.NormFloat64()*1.5 + 6))
		all = append(all, us)
		if i%2 == 0 {
			one.add(us)
		} else {
			two.add(us)
		}
	}
	sum := newLatencyStats(10)
	sum.merge(one)
	sum.merge(two)
	slices.Sort(all)
	var total int64
	for _, v := range all {
		total += v
	}
	if sum.count != int64(len(all)) || sum.sum != total || sum.least != all[0] || sum.most != all[len(all)-1] {
		t.Errorf("count %d, sum %d, least %d, most %d", sum.count, sum.sum, sum.least, sum.most)
	}
	for _, p := range []float64{50, 90, 95, 99, 99.9, 100} {
		at := int(math.Round(p/100*float64(len(all)))) - 1
		low, high := float64(all[max(at-1, 0)]), float64(all[min(at+1, len(all)-1)])
		if got := float64(sum.percentile(p)); got < low*0.999-1 || got > high*1.001+1 {
			t.Errorf("percentile %v is %.0f, want %.0f to %.0f", p, got, low, high)
		}
	}
	var under int64
	for _, n := range sum.millis {
		under += n
	}
	if under != sum.count || sum.millis[10] == 0 {
		t.Errorf("buckets: %v", sum.millis)
	}
	sum.reset()
	if sum.count != 0 || sum.percentile(50) != 0 || sum.millis[0] != 0 {
		t.Errorf("after reset: %+v", sum)
	}
	sum.add(10 * longest)
	if sum.most != 10*longest {
		t.Errorf("longest is %d", sum.most)
	}
}

func TestCourseIsBounded(t *testing.T) {
	c := course{each: time.Second, window: &runStats{}}
	for i := range 10 * maxPoints {
		c.window.at(opRead, fromStart).add(100)
		c.window.returns[opRead][statusOK]++
		c.tick(time.Duration(i+1)*time.Second, false)
	}
	if len(c.points) >= maxPoints {
		t.Fatalf("%d points", len(c.points))
	}
	var ops, start float64
	for _, p := range c.points {
		ops += p.Throughput * (p.Seconds - start)
		start = p.Seconds
		if math.Abs(p.Throughput-1) > 1e-6 || math.Abs(p.Latency["READ"].Average-100) > 1e-6 {
			t.Fatalf("point %+v", p)
		}
	}
	if math.Abs(ops-start) > 1e-3 || start < 10*maxPoints-64 {
		t.Errorf("%f operations in %f s", ops, start)
	}
}

// A late thread catches up: its due times do not move.
func TestPacerKeepsItsSchedule(t *testing.T) {
	start := time.Now().Add(-time.Second)
	p := newPacer(100, 1, 2, start)
	for i := range 50 {
		want := start.Add(10*time.Millisecond + time.Duration(i)*20*time.Millisecond)
		if got := p.wait(t.Context()); !got.Equal(want) {
			t.Fatalf("operation %d is due at %v, want %v", i, got.Sub(start), want.Sub(start))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	newPacer(0.001, 0, 1, time.Now().Add(time.Hour)).wait(ctx)
	if newPacer(0, 0, 1, start) != nil || !(*pacer)(nil).wait(ctx).IsZero() {
		t.Error("without a target there is a pace")
	}
}

// An operation that was kept waiting counts from when it was due.
func TestIntendedLatency(t *testing.T) {
	s := newShard(measureConfig{op: true, intended: true}, 0, nil)
	end := time.Now()
	s.record(opRead, statusOK, end.Add(-time.Second), end.Add(-time.Millisecond), end)
	s.record(opRead, statusError, end.Add(-3*time.Second), end.Add(-2*time.Millisecond), end)
	var got runStats
	s.drain(&got)
	for name, want := range map[string]int64{"READ": 1000, "Intended-READ": 1_000_000, "READ-FAILED": 2000,
		"Intended-READ-FAILED": 3_000_000} {
		var found int64
		for s, one := range got.all {
			if s.String() == name {
				found = one.sum
			}
		}
		if found != want {
			t.Errorf("%s: %d µs, want %d", name, found, want)
		}
	}
	if got.returns[opRead] != [statuses]int64{statusOK: 1, statusError: 1} {
		t.Errorf("returns %v", got.returns[opRead])
	}
	var again runStats
	s.drain(&again)
	if operationsOf(&again.returns) != 0 {
		t.Error("drained twice")
	}
}

func TestStatusLine(t *testing.T) {
	var b bytes.Buffer
	s := &statusLine{w: &b, label: "node1", total: 1000, window: &runStats{}}
	var returns [kinds][statuses]int64
	s.write(0, &returns, 10*time.Second, false)
	s.write(9*time.Second, &returns, 10*time.Second, false) // not due
	returns[opRead][statusOK] = 100
	s.window.at(opRead, fromStart).add(150)
	s.write(10*time.Second, &returns, 10*time.Second, false)
	returns[opRead][statusOK] = 1000
	s.write(12*time.Second, &returns, 10*time.Second, true)
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	const at = `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3} node1 `
	for i, want := range []string{
		at + `0 sec: 0 operations; est completion in 0 seconds $`,
		at +
			`10 sec: 100 operations; 10 current ops/sec; est completion in 1 minutes \[READ: Count=1, Max=150, Min=150, Avg=150, 90=150, 99=150, 99\.9=150, 99\.99=150\] $`,
		at + `12 sec: 1000 operations; 450 current ops/sec; $`,
	} {
		if len(lines) != 3 || !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d of %d is %q, want %s", i, len(lines), lines[i], want)
		}
	}
}

func TestRemaining(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		want        string
	}{{1, 2, "10 seconds"}, {10, 11, "1 second"}, {1, 100, "16 minutes"}, {1, 1000, "2 hours 46 minutes"},
		{1, 10_000, "1 day 3 hours"}} {
		if got := remaining(10*time.Second, c.done, c.total); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestOrdinals(t *testing.T) {
	for p, want := range map[float64]string{95: "95th", 99: "99th", 99.9: "99.9", 1: "1st", 2: "2nd", 3: "3rd", 11: "11th",
		91: "91st", 50: "50th"} {
		if got := ordinal(p); got != want {
			t.Errorf("%v: %s, want %s", p, got, want)
		}
	}
}

func TestJSONExporters(t *testing.T) {
	r := &Report{Seconds: 2, Throughput: 10, measure: measureConfig{kind: "hdrhistogram", exporter: "jsonarray"}}
	var b bytes.Buffer
	if err := WriteText(&b, r); err != nil ||
		!strings.HasPrefix(b.String(), `[{"metric":"OVERALL","measurement":"RunTime(ms)","value":2000},`) {
		t.Errorf("%v: %s", err, b.String())
	}
	r.measure.exporter = "json"
	b.Reset()
	if err := WriteText(&b, r); err != nil ||
		!strings.HasPrefix(b.String(), `{"metric":"OVERALL","measurement":"RunTime(ms)","value":2000}`+"\n{") {
		t.Errorf("%v: %s", err, b.String())
	}
}

func TestParseMix(t *testing.T) {
	if m, err := ParseMix("95:5"); err != nil || m != (Mix{95, 5}) || m.String() != "95:5" {
		t.Errorf("%v, %v", m, err)
	}
	for _, s := range []string{"", "95", "0:0", "a:1", "1:-1", "NaN:1"} {
		if _, err := ParseMix(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}
