package plot

import (
	"strings"
	"testing"
)

func TestNothingToDraw(t *testing.T) {
	var s Sheet
	s.Bars("bars", []Bar{{"a", 0}})
	s.Lines("lines", []Line{{Name: "a"}})
	s.Scatter("points", []Cloud{{Name: "a"}}, "x", "y")
	if len(s.Charts) > 0 || s.Err != nil {
		t.Errorf("%q, %v", s.Charts, s.Err)
	}
}

// What is drawn goes into a page as it is.
func TestNamesAreEscaped(t *testing.T) {
	var s Sheet
	s.Bars("bars", []Bar{{"<b>", 1}, {"c", 2}})
	s.Lines("lines", []Line{{"<b>", []float64{0, 1}, []float64{3, 4}}}, "<x>", "y")
	s.Scatter("points", []Cloud{{"<b>", []string{"<x>", "y"}, []float64{1, 2}, []float64{3, 4}}}, "<u>", "<v>")
	if s.Err != nil || len(s.Charts) != 3 {
		t.Fatalf("%v: %q", s.Err, s.Charts)
	}
	for i, names := range []string{"b", "bx", "bxuv"} {
		for _, name := range strings.Split(names, "") {
			if svg := string(s.Charts[i].SVG); !strings.Contains(svg, "&lt;"+name+"&gt;") ||
				strings.Contains(svg, "<"+name+">") {
				t.Errorf("%s: %s", name, svg)
			}
		}
	}
	if strings.Count(string(s.Charts[2].SVG), "<circle") < 2 {
		t.Errorf("no points: %s", s.Charts[2].SVG)
	}
}

func TestFigure(t *testing.T) {
	for n, want := range map[float64]string{0: "0.000", 0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 123.4: "123",
		1234567: "1,234,567", -5: "-5.00"} {
		if got := Figure(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}
