package bench

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/internal/plot"
)

// charts draws a case as SVG: the rates, or what else is compared, and the
// course of a round over time.
func (c *Case) charts() ([]drawing, error) {
	var all []drawing
	for _, draw := range []func() (drawing, error){c.bars, c.course, c.memoryCourse} {
		d, err := draw()
		if err != nil {
			return nil, err
		}
		if d.svg != "" {
			all = append(all, d)
		}
	}
	for _, v := range c.Versus {
		d, err := c.versus(v)
		if err != nil {
			return nil, err
		}
		if d.svg != "" {
			all = append(all, d)
		}
	}
	for i := range c.Contenders {
		d, err := c.Contenders[i].picture()
		if err != nil {
			return nil, err
		}
		if d.svg != "" {
			all = append(all, d)
		}
	}
	return all, nil
}

// drawing is a chart with its title; svg is empty when there is nothing to draw.
type drawing struct{ title, svg string }

// bars compares the contenders by what makes the case's ratio.
func (c *Case) bars() (drawing, error) {
	title, of := c.Unit+" a second", func(x *Contender) float64 { return x.Rate.Median }
	if c.RatioOf != "" {
		title, of = c.RatioOf, func(x *Contender) float64 { return x.Values[c.RatioOf].Median }
	}
	var bars []plot.Bar
	for i := range c.Contenders {
		x := &c.Contenders[i]
		bars = append(bars, plot.Bar{Name: x.Name, Value: of(x)})
	}
	svg, err := plot.Bars(bars)
	return drawing{title, svg}, err
}

// course draws documents changed on the target over time, in each contender's
// median round.
func (c *Case) course() (drawing, error) {
	return c.lines("changed on the target a second, 10 s average, over seconds", false, func(p Point) float64 { return p.Rate })
}

// memoryCourse draws the resident memory of the tools over time.
func (c *Case) memoryCourse() (drawing, error) {
	return c.lines("resident memory of the tool, MB, over seconds", true, func(p Point) float64 { return float64(p.Resident) / 1e6 })
}

// lines draws a figure of all contenders over time; with tools, of those alone
// that are processes of their own.
func (c *Case) lines(title string, tools bool, of func(Point) float64) (drawing, error) {
	var lines []plot.Line
	for i := range c.Contenders {
		x := &c.Contenders[i]
		line := plot.Line{Name: x.Name}
		points := x.medianRound().Series
		if len(points) >= 3 && !(tools && (x.Kind == KindCeiling || x.Kind == KindReference)) {
			for _, p := range points {
				line.X, line.Y = append(line.X, p.Seconds), append(line.Y, of(p))
			}
		}
		lines = append(lines, line)
	}
	svg, err := plot.Lines(lines)
	return drawing{title, svg}, err
}

// medianRound is the round whose time is nearest to the median.
func (x *Contender) medianRound() Round {
	if len(x.Rounds) == 0 {
		return Round{}
	}
	distance := func(r Round) float64 { return max(r.Seconds-x.Seconds.Median, x.Seconds.Median-r.Seconds) }
	return slices.MinFunc(x.Rounds, func(a, b Round) int { return cmp.Compare(distance(a), distance(b)) })
}
