package bench

import (
	"bytes"
	"html"
	"io"
	"slices"

	chart "github.com/wcharczuk/go-chart/v2"
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
	return all, nil
}

// drawing is a chart with its title; svg is empty when there is nothing to draw.
type drawing struct{ title, svg string }

const chartWidth, chartHeight = 560, 300

// bars compares the contenders by what makes the case's ratio.
func (c *Case) bars() (drawing, error) {
	title, of := c.Unit+" a second", func(x *Contender) float64 { return x.Rate.Median }
	if c.RatioOf != "" {
		title, of = c.RatioOf, func(x *Contender) float64 { return x.Values[c.RatioOf].Median }
	}
	var bars []chart.Value
	var most float64
	for i := range c.Contenders {
		x := &c.Contenders[i]
		if v := of(x); v > 0 {
			color := chart.GetDefaultColor(i)
			bars = append(bars, chart.Value{Label: html.EscapeString(x.Name), Value: v, Style: chart.Style{FillColor: color, StrokeColor: color}})
			most = max(most, v)
		}
	}
	if len(bars) == 0 {
		return drawing{}, nil
	}
	b := chart.BarChart{
		Width: chartWidth, Height: chartHeight, BarWidth: 60, Bars: bars,
		Background: chart.Style{Padding: chart.Box{Top: 10, Left: 10, Right: 10, Bottom: 30}},
		YAxis:      chart.YAxis{Range: &chart.ContinuousRange{Min: 0, Max: most * 1.05}, ValueFormatter: tickLabel},
	}
	return render(title, b.Render)
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
	var series []chart.Series
	var most float64
	for i := range c.Contenders {
		x := &c.Contenders[i]
		points := x.medianRound().Series
		if len(points) < 3 || tools && (x.Kind == KindCeiling || x.Kind == KindReference) {
			continue
		}
		s := chart.ContinuousSeries{Name: html.EscapeString(x.Name), Style: chart.Style{StrokeWidth: 2, StrokeColor: chart.GetDefaultColor(i)}}
		for _, p := range points {
			s.XValues, s.YValues = append(s.XValues, p.Seconds), append(s.YValues, of(p))
			most = max(most, of(p))
		}
		series = append(series, s)
	}
	if len(series) == 0 || most == 0 {
		return drawing{}, nil
	}
	ch := chart.Chart{
		Width: chartWidth, Height: chartHeight, Series: series,
		Background: chart.Style{Padding: chart.Box{Top: 40, Left: 10, Right: 10, Bottom: 10}},
		XAxis:      chart.XAxis{ValueFormatter: tickLabel},
		YAxis:      chart.YAxis{Range: &chart.ContinuousRange{Min: 0, Max: most * 1.05}, ValueFormatter: tickLabel},
	}
	ch.YAxisSecondary.Style = chart.Hidden()
	ch.Elements = []chart.Renderable{chart.LegendThin(&ch)}
	return render(title, ch.Render)
}

// medianRound is the round whose time is nearest to the median.
func (x *Contender) medianRound() Round {
	if len(x.Rounds) == 0 {
		return Round{}
	}
	distance := func(r Round) float64 { return max(r.Seconds-x.Seconds.Median, x.Seconds.Median-r.Seconds) }
	return slices.MinFunc(x.Rounds, func(a, b Round) int { return cmpFloat(distance(a), distance(b)) })
}

func tickLabel(v any) string {
	f, ok := v.(float64)
	if !ok {
		return ""
	}
	return figure(f)
}

func render(title string, draw func(chart.RendererProvider, io.Writer) error) (drawing, error) {
	var b bytes.Buffer
	err := draw(chart.SVG, &b)
	return drawing{title, b.String()}, err
}
