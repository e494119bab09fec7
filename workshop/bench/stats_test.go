package bench

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
	values := []float64{3, 1, 2}
	median(values)
	if values[0] != 3 {
		t.Error("median sorted its argument")
	}
}

func TestStat(t *testing.T) {
	s := StatOf([]float64{2, 4, 3})
	if s != (Stat{Median: 3, Min: 2, Max: 4}) {
		t.Errorf("got %+v", s)
	}
	if got := s.Spread(); math.Abs(got-2.0/3) > 1e-9 {
		t.Errorf("spread %v", got)
	}
	if (StatOf(nil) != Stat{}) || StatOf(nil).Spread() != 0 {
		t.Error("no values are not zero")
	}
}

func TestPercentile(t *testing.T) {
	var v []float64
	for i := range 100 {
		v = append(v, float64(i+1))
	}
	for p, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := percentile(v, p); got != want {
			t.Errorf("percentile %v = %v, want %v", p, got, want)
		}
	}
	if percentile(nil, 0.5) != 0 || percentile([]float64{7}, 0.99) != 7 {
		t.Error("short lists")
	}
}

func TestSlope(t *testing.T) {
	if got := slope([]float64{0, 1, 2, 3}, []float64{1, 3, 5, 7}); math.Abs(got-2) > 1e-9 {
		t.Errorf("slope of a line: %v", got)
	}
	if slope([]float64{1}, []float64{1}) != 0 || slope([]float64{2, 2}, []float64{1, 5}) != 0 {
		t.Error("no slope is not zero")
	}
}

func TestSummarize(t *testing.T) {
	c := Case{Count: 1000, Contenders: []Contender{
		{Name: "slower ceiling", Kind: KindCeiling, Rounds: []Round{{Seconds: 3}, {Seconds: 3}, {Seconds: 3}}},
		{Name: "ceiling", Kind: KindCeiling, Rounds: []Round{{Seconds: 1}, {Seconds: 2}, {Seconds: 4}}},
		{Name: "reference", Kind: KindReference, Rounds: []Round{{Seconds: 0.1}, {Seconds: 0.1}, {Seconds: 0.1}}},
		{Name: "millrace", Kind: KindMillrace, Rounds: []Round{
			{Seconds: 2, ToolCPU: 0.001, Peak: 5}, {Seconds: 2, ToolCPU: 0.003, Peak: 9},
			{Seconds: 5, ToolCPU: 0.002, Peak: 7}}},
		{Name: "peer", Kind: KindPeer, Error: "broke", Rounds: []Round{{Seconds: 10}}},
	}}
	c.summarize()
	if top := c.ceiling(); top == nil || top.Name != "ceiling" {
		t.Fatalf("ceiling is %+v", top)
	}
	m := c.Contenders[3]
	if want := (Stat{Median: 0.8, Min: 0.5, Max: 1}); m.OfCeiling != want {
		t.Errorf("of ceiling %+v, want %+v: each round with its own", m.OfCeiling, want)
	}
	if m.Rate.Median != 500 || m.CPUEach.Median != 2 || m.Peak.Max != 9 {
		t.Errorf("rate %+v, CPU each %+v, peak %+v", m.Rate, m.CPUEach, m.Peak)
	}
	if peer := c.Contenders[4]; peer.OfCeiling.Median != 0.1 {
		t.Errorf("peer with one round: %+v", peer.OfCeiling)
	}
}

func TestSummarizeByValue(t *testing.T) {
	c := Case{RatioOf: p50, Contenders: []Contender{
		{Kind: KindCeiling, Rounds: []Round{{Seconds: 5, Values: map[string]float64{p50: 2}}}},
		{Kind: KindMillrace, Rounds: []Round{{Seconds: 5, Values: map[string]float64{p50: 8}}}},
	}}
	c.summarize()
	if got := c.Contenders[1].OfCeiling.Median; got != 0.25 {
		t.Errorf("ratio %v, want that of the latencies", got)
	}
}

func TestRateCountsWhatWasDone(t *testing.T) {
	if got := (Round{Seconds: 2, Done: 50}).Rate(1000); got != 25 {
		t.Errorf("rate %v", got)
	}
	if got := (Round{}).Rate(1000); got != 0 {
		t.Errorf("rate without time %v", got)
	}
}

func TestFigure(t *testing.T) {
	for n, want := range map[float64]string{0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1,235",
		1234567: "1,234,567", 100: "100"} {
		if got := figure(n); got != want {
			t.Errorf("figure(%v) = %q, want %q", n, got, want)
		}
	}
	if got := grouped(-1234567); got != "-1,234,567" {
		t.Errorf("grouped: %q", got)
	}
}
