package bench

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/workshop/plot"
)

// risen is a course of four seconds in which everything grows evenly, and nothing
// in the last two.
func risen() (points []Point) {
	for i := range 9 {
		n := int64(min(i, 4))
		points = append(points, Point{
			Seconds: float64(i) / 2, Resident: n * 1e6, Changed: n * 500, CPU: float64(n) / 4, SourceSent: n * 1e6,
			TargetReceived: n * 2e6,
		})
	}
	return points
}

func TestCurves(t *testing.T) {
	want := map[string][2]float64{ // after two and four seconds
		"rate": {1000, 0}, "cpu": {50, 0}, "memory": {4, 4}, "received": {2, 0}, "sent": {4, 0},
	}
	for _, c := range Curves() {
		for i, at := range []int{4, 8} {
			if got := c.At(risen(), at); got != want[c.Name][i] {
				t.Errorf("%s after %d points: %v, want %v", c.Name, at, got, want[c.Name][i])
			}
		}
		if got := c.At(risen(), 0); got != 0 {
			t.Errorf("%s begins at %v", c.Name, got)
		}
	}
	old := []Point{{Rate: 0}, {Seconds: 0.5, Rate: 7}}
	if got := Curves()[0].At(old, 1); got != 7 {
		t.Errorf("the rate of a report without changes: %v", got)
	}
}

func TestRateOfASeries(t *testing.T) {
	w := &watcher{}
	for i := range 41 {
		w.add(Point{Seconds: float64(i) / 2, Changed: int64(min(i, 20)) * 100})
	}
	for i, want := range map[int]float64{0: 0, 1: 200, 20: 200, 30: 100, 40: 0} {
		if got := w.points[i].Rate; got != want {
			t.Errorf("rate after %d points: %v, want %v", i, got, want)
		}
	}
}

// TestCurvePictures: a case has a picture of the rates and of each curve, which a
// ceiling has only where it is not the tool's.
func TestCurvePictures(t *testing.T) {
	c := Case{Scenario: "full-one", Unit: "documents", Count: 10, Contenders: []Contender{
		{Name: "ceiling", Kind: KindCeiling, Rounds: []Round{{Seconds: 4, Series: risen()}}},
		{Name: "<millrace>", Kind: KindMillrace, Rounds: []Round{{Seconds: 4, Series: risen()}}},
	}}
	c.summarize()
	var s plot.Sheet
	c.charts(&s)
	if s.Err != nil || len(s.Charts) != 1+len(Curves()) {
		t.Fatalf("%d pictures, %v", len(s.Charts), s.Err)
	}
	for i, curve := range Curves() {
		svg := string(s.Charts[1+i].SVG)
		if !strings.Contains(svg, "&lt;millrace&gt;") || strings.Contains(svg, ">ceiling<") == curve.OfTools {
			t.Errorf("%s: %s", curve.Name, svg)
		}
	}
}
