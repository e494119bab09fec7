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
func (c *Case) charts() ([]string, error) {
	var all []string
	for _, draw := range []func() (string, error){c.bars, c.course, c.memoryCourse} {
		svg, err := draw()
		if err != nil {
			return nil, err
		}
		if svg != "" {
			all = append(all, svg)
		}
	}
	return all, nil
}

const chartWidth, chartHeight = 560, 300

// bars compares the contenders by what makes the case's ratio.
func (c *Case) bars() (string, error) {
	title, of := c.Unit+" a second", func(x *Contender) float64 { return x.Rate.Median }
	if c.RatioOf != "" {
		title, of = c.RatioOf, func(x *Contender) float64 { return x.Values[c.RatioOf].Median }
	}
	var bars []chart.Value
	var most float64
	for i := range c.Contenders {
		x := &c.Contenders[i]
		if v := of(x); v > 0 {
			bars = append(bars, chart.Value{Label: html.EscapeString(x.Name), Value: v})
			most = max(most, v)
		}
	}
	if len(bars) == 0 {
		return "", nil
	}
	b := chart.BarChart{
		Title: html.EscapeString(title), Width: chartWidth, Height: chartHeight, BarWidth: 60, Bars: bars,
		Background: chart.Style{Padding: chart.Box{Top: 45, Left: 10, Right: 10, Bottom: 10}},
		YAxis:      chart.YAxis{Range: &chart.ContinuousRange{Min: 0, Max: most * 1.05}, ValueFormatter: tickLabel},
	}
	return render(b.Render)
}

// course draws documents changed on the target over time, in each contender's
// median round.
func (c *Case) course() (string, error) {
	return c.lines("changed on the target a second, 10 s average, over seconds", false, func(p Point) float64 { return p.Rate })
}

// memoryCourse draws the resident memory of the tools over time.
func (c *Case) memoryCourse() (string, error) {
	return c.lines("resident memory of the tool, MB, over seconds", true, func(p Point) float64 { return float64(p.Resident) / 1e6 })
}

// lines draws a figure of all contenders over time; with tools, of those alone
// that are processes of their own.
func (c *Case) lines(title string, tools bool, of func(Point) float64) (string, error) {
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
		return "", nil
	}
	ch := chart.Chart{
		Title: title, TitleStyle: chart.Style{FontSize: 12}, Width: chartWidth, Height: chartHeight, Series: series,
		Background: chart.Style{Padding: chart.Box{Top: 45, Left: 10, Right: 10, Bottom: 10}},
		XAxis:      chart.XAxis{ValueFormatter: tickLabel},
		YAxis:      chart.YAxis{Range: &chart.ContinuousRange{Min: 0, Max: most * 1.05}, ValueFormatter: tickLabel},
	}
	ch.Elements = []chart.Renderable{chart.LegendThin(&ch)}
	return render(ch.Render)
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

func render(draw func(chart.RendererProvider, io.Writer) error) (string, error) {
	var b bytes.Buffer
	err := draw(chart.SVG, &b)
	return b.String(), err
}
