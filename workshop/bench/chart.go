package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/workshop/plot"
)

// charts draws a case as SVG: the rates, or what else is compared, and the course of a round over time.
func (c *Case) charts(s *plot.Sheet) {
	c.bars(s)
	for _, cv := range Curves() {
		c.lines(s, cv)
	}
	for i := range c.Contenders {
		c.Contenders[i].picture(s)
	}
}

// bars compares the contenders by what makes the case's ratio.
func (c *Case) bars(s *plot.Sheet) {
	title, of := c.Unit+" a second", func(x *Contender) float64 { return x.Rate.Median }
	if c.RatioOf != "" {
		title, of = c.RatioOf, func(x *Contender) float64 { return x.Values[c.RatioOf].Median }
	}
	var bars []plot.Bar
	for i := range c.Contenders {
		x := &c.Contenders[i]
		bars = append(bars, plot.Bar{Name: x.Name, Value: of(x)})
	}
	s.Bars(title, bars)
}

// Curve is a figure of a contender over time.
type Curve struct {
	Name, Title string
	OfTools     bool // OfTools says that only contenders have it that are processes of their own.
	// At is its value at the point of a number.
	At func(points []Point, i int) float64
}

// curveOver is what curves are averages over: short enough to show when a server stalls.
const curveOver = 2 * time.Second

// Curves is the table of what is drawn over time.
func Curves() []Curve {
	return []Curve{
		{"rate", "changed on the target a second", false, rateAt},
		{"cpu", "processor time of the tool, % of a core", true, grows(100, func(p Point) float64 { return p.CPU })},
		{"memory", "resident memory of the tool, MB", true,
			func(points []Point, i int) float64 { return float64(points[i].Resident) / 1e6 }},
		{"received", "sent by the source, MB a second", false,
			grows(1e-6, func(p Point) float64 { return float64(p.SourceSent) })},
		{"sent", "received by the target, MB a second", false,
			grows(1e-6, func(p Point) float64 { return float64(p.TargetReceived) })},
	}
}

// grows is how fast a figure grows, times a factor.
func grows(factor float64, of func(Point) float64) func([]Point, int) float64 {
	return func(points []Point, i int) float64 { return factor * slopeOf(points, i, curveOver, of) }
}

// rateAt is the rate; a report that does not have what was changed has its averages of 10 seconds.
func rateAt(points []Point, i int) float64 {
	if points[len(points)-1].Changed == 0 {
		return points[i].Rate
	}
	return slopeOf(points, i, curveOver, func(p Point) float64 { return float64(p.Changed) })
}

// lines draws a curve of all contenders, in each one's median round.
func (c *Case) lines(s *plot.Sheet, cv Curve) {
	var lines []plot.Line
	for i := range c.Contenders {
		x := &c.Contenders[i]
		line := plot.Line{Name: x.Name}
		if !(cv.OfTools && (x.Kind == KindCeiling || x.Kind == KindReference)) {
			line.X, line.Y = x.Course(cv)
		}
		lines = append(lines, line)
	}
	s.Lines(cv.Title+", over seconds", lines)
}

// Course returns a curve of the contender's median round over seconds; nothing for fewer than three points.
func (x *Contender) Course(cv Curve) (seconds, values []float64) {
	points := x.medianRound().Series
	if len(points) < 3 {
		return nil, nil
	}
	for i, p := range points {
		seconds, values = append(seconds, p.Seconds), append(values, cv.At(points, i))
	}
	return seconds, values
}

// medianRound is the round whose time is nearest to the median.
func (x *Contender) medianRound() Round {
	if len(x.Rounds) == 0 {
		return Round{}
	}
	distance := func(r Round) float64 { return max(r.Seconds-x.Seconds.Median, x.Seconds.Median-r.Seconds) }
	return slices.MinFunc(x.Rounds, func(a, b Round) int { return cmp.Compare(distance(a), distance(b)) })
}

// WriteSVG draws one case; without a name, millrace's share of each ceiling.
func WriteSVG(w io.Writer, r *Report, name string) error {
	var s plot.Sheet
	if err := r.draw(&s, name); err != nil {
		return err
	}
	if len(s.Charts) == 0 {
		return cmp.Or(s.Err, fmt.Errorf("the report has no figures to draw for %q", name))
	}
	_, err := io.WriteString(w, string(s.Charts[0].SVG))
	return err
}

func (r *Report) draw(s *plot.Sheet, name string) error {
	if name == "" {
		r.shares(s)
		return nil
	}
	var names []string
	for i := range r.Cases {
		c := &r.Cases[i]
		if c.Name() == name {
			c.bars(s)
			return nil
		}
		names = append(names, c.Name())
	}
	return fmt.Errorf("the report has no case %q; it has %s", name, strings.Join(names, ", "))
}

// shares draws how much of the ceiling millrace reaches, case by case.
func (r *Report) shares(s *plot.Sheet) {
	var bars []plot.Bar
	for i := range r.Cases {
		for _, x := range r.Cases[i].Contenders {
			if x.Kind == KindMillrace && x.OfCeiling.Median > 0 {
				bars = append(bars, plot.Bar{Name: r.Cases[i].Name(), Value: x.OfCeiling.Median})
				break
			}
		}
	}
	s.Bars("of the ceiling", bars)
}

// Join puts the cases of several reports of one machine and scale into one.
func Join(reports []*Report) (*Report, error) {
	all := *reports[0]
	for _, r := range reports[1:] {
		if r.Machine != all.Machine || r.Scale != all.Scale {
			return nil, fmt.Errorf("the reports are not of one machine and scale: %s, %s; %s, %s", all.Machine, all.Scale.Name,
				r.Machine, r.Scale.Name)
		}
		all.Cases = append(all.Cases, r.Cases...)
		all.Rounds = min(all.Rounds, r.Rounds)
	}
	return &all, nil
}
