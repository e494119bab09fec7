package plot

import (
	"strings"
	"testing"
)

func TestNothingToDraw(t *testing.T) {
	if svg, err := Bars([]Bar{{"a", 0}}); svg != "" || err != nil {
		t.Errorf("%q, %v", svg, err)
	}
	if svg, err := Lines([]Line{{Name: "a"}}); svg != "" || err != nil {
		t.Errorf("%q, %v", svg, err)
	}
	if svg, err := Scatter([]Cloud{{Name: "a"}}, "x", "y"); svg != "" || err != nil {
		t.Errorf("%q, %v", svg, err)
	}
}

// What is drawn goes into a page as it is.
func TestNamesAreEscaped(t *testing.T) {
	bars, err := Bars([]Bar{{"<b>", 1}, {"c", 2}})
	if err != nil || !strings.Contains(bars, "&lt;b&gt;") || strings.Contains(bars, "<b>") {
		t.Errorf("%v: %s", err, bars)
	}
	lines, err := Lines([]Line{{"<b>", []float64{0, 1}, []float64{3, 4}}}, "<x>", "y")
	if err != nil || !strings.Contains(lines, "&lt;b&gt;") || !strings.Contains(lines, "&lt;x&gt;") || strings.Contains(lines, "<b>") || strings.Contains(lines, "<x>") {
		t.Errorf("%v: %s", err, lines)
	}
	points, err := Scatter([]Cloud{{"<b>", []string{"<x>", "y"}, []float64{1, 2}, []float64{3, 4}}}, "<u>", "<v>")
	if err != nil || strings.Count(points, "<circle") < 2 {
		t.Errorf("%v: %s", err, points)
	}
	for _, name := range []string{"b", "x", "u", "v"} {
		if !strings.Contains(points, "&lt;"+name+"&gt;") || strings.Contains(points, "<"+name+">") {
			t.Errorf("%s: %s", name, points)
		}
	}
}

func TestPanels(t *testing.T) {
	bars, err := Bars([]Bar{{"a", 1}})
	if err != nil {
		t.Fatal(err)
	}
	got := Panels([]Panel{{"one", bars}, {"nothing", ""}, {"<two>", bars}, {"three", bars}}, 2)
	for want, n := range map[string]int{"<svg": 4, "</svg>": 4, "&lt;two&gt;": 1, "<two>": 0, "nothing": 0, `viewBox="0 0 1120 648"`: 1, `<svg x="560" y="24"`: 1, `<svg x="0" y="348"`: 1} {
		if strings.Count(got, want) != n {
			t.Errorf("%q is there %d times, want %d", want, strings.Count(got, want), n)
		}
	}
	if got := Panels([]Panel{{"nothing", ""}}, 2); got != "" {
		t.Errorf("nothing is drawn as %s", got)
	}
}

func TestFigure(t *testing.T) {
	for n, want := range map[float64]string{0: "0.000", 0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234567: "1,234,567", -5: "-5.00"} {
		if got := Figure(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}
