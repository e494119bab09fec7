package bench

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestAverages: only the time counts in which operations were applied, in stretches
// of ten seconds where there is as much.
func TestAverages(t *testing.T) {
	began := time.Unix(1000, 0)
	// course is a sync that idles, applies rate operations a second with so many
	// cores, and idles again, looked at twice a second.
	course := func(idle, busy, after int, rate, cores float64) (all []jobSample) {
		for i := range 2*(idle+busy+after) + 1 {
			at := float64(i) / 2
			worked := min(max(at-float64(idle), 0), float64(busy))
			all = append(all, jobSample{began.Add(time.Duration(at * float64(time.Second))), int64(rate * worked),
				5 + cores*worked, 100e6})
		}
		return all
	}
	for _, c := range []struct {
		name              string
		idle, busy, after int
		seconds           float64
		ok                bool
	}{
		{"long", 3, 25, 4, 10, true},
		{"short", 2, 6, 5, 6, true},
		{"from the first sample on", 0, 12, 0, 10, true},
		{"nothing", 5, 0, 0, 0, false},
		{"no samples", 0, 0, 0, 0, false},
	} {
		a, ok := averages(course(c.idle, c.busy, c.after, 100_000, 0.4))
		if ok != c.ok || a.seconds != c.seconds {
			t.Errorf("%s: %+v, %v", c.name, a, ok)
		}
		if ok && (math.Abs(a.operations-100_000) > 1 || math.Abs(a.cores-0.4) > 1e-6 || math.Abs(a.resident-100e6) > 1) {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
	if a, ok := averages(nil); ok {
		t.Errorf("of nothing: %+v", a)
	}
	// A stall of one second in 30 is in some stretches: the median shows it nowhere.
	all := course(1, 30, 1, 1000, 1)
	for i := range all {
		if at := all[i].at.Sub(began); at > 10*time.Second {
			all[i].operations -= 1000
		}
	}
	if a, _ := averages(all); a.operations < 850 || a.operations > 1000 {
		t.Errorf("with a stall: %+v", a)
	}
}

// TestThreadSettings: eight rows with names of their own.
func TestThreadSettings(t *testing.T) {
	c := Case{Scenario: "incr-threads", Unit: "operations", Count: 10}
	describeSettings(&c)
	names := map[string]bool{}
	for i, s := range threadSettings() {
		names[s.name()] = true
		r := Round{Seconds: 1}
		r.Values = map[string]float64{valueOperations: float64(100 + i), valueCPUPercent: float64(50 + i),
			valueMemory: float64(200 + i)}
		c.Contenders = append(c.Contenders, Contender{Name: s.name(), Kind: KindMillrace, Rounds: []Round{r}})
	}
	if len(names) != 8 {
		t.Fatalf("%d rows: %v", len(names), names)
	}
	c.summarize()
	header, _ := c.table()
	for _, want := range []string{valueOperations, valueCPUPercent, valueMemory} {
		if !strings.Contains(strings.Join(header, "|"), want) {
			t.Errorf("the table lacks %q: %v", want, header)
		}
	}
}
