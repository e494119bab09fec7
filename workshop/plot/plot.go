// Package plot draws figures of reports as SVG that a page can hold as it is.
package plot

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"

	"github.com/dustin/go-humanize"
	chart "github.com/go-analyze/charts/chartdraw"
)

// Chart is a drawing with its title.
type Chart struct {
	Title string
	SVG   template.HTML // names in it are escaped
}

// Sheet collects charts. A chart without anything to draw is left out. The first error ends the drawing and stays.
type Sheet struct {
	Charts []Chart
	Err    error
}

// Bar is one bar of a chart.
type Bar struct {
	Name  string
	Value float64
}

// Line is one line of a chart. A line without points only keeps its colour.
type Line struct {
	Name string
	X, Y []float64
}

const width, height = 560, 300

// Bars draws bars from 0 in the colours of Lines, without those of value 0; many make it wider.
func (s *Sheet) Bars(title string, all []Bar) {
	var bars []chart.Value
	var most float64
	for i, b := range all {
		if b.Value > 0 {
			color := chart.GetDefaultColor(i)
			bars = append(bars, chart.Value{Label: b.Name, Value: b.Value,
				Style: chart.Style{FillColor: color, StrokeColor: color}})
			most = max(most, b.Value)
		}
	}
	if len(bars) == 0 {
		return
	}
	b := chart.BarChart{
		Width: max(width, len(bars)*100), Height: height, BarWidth: 60, Bars: bars,
		Background: chart.Style{Padding: chart.Box{Top: 10, Left: 10, Right: 10, Bottom: 30}},
		YAxis:      chart.YAxis{Range: &chart.ContinuousRange{Min: 0, Max: most * 1.05}, ValueFormatter: tickLabel},
	}
	s.render(title, b.Render)
}

// Lines draws lines over numbers, from 0 up. With names, the numbers are places of names on the axis, from 0.
func (s *Sheet) Lines(title string, all []Line, names ...string) {
	var series []chart.Series
	var most float64
	for i, l := range all {
		if len(l.X) == 0 {
			continue
		}
		style := chart.Style{StrokeWidth: 2, StrokeColor: chart.GetDefaultColor(i)}
		if len(names) > 0 {
			style.DotWidth, style.DotColor = 3, style.StrokeColor
		}
		series = append(series, chart.ContinuousSeries{Name: l.Name, Style: style, XValues: l.X, YValues: l.Y})
		for _, y := range l.Y {
			most = max(most, y)
		}
	}
	if len(series) == 0 || most == 0 {
		return
	}
	ch := chart.Chart{
		Width: width, Height: height, Series: series,
		Background: chart.Style{Padding: chart.Box{Top: 40, Left: 10, Right: 10, Bottom: 10}},
		XAxis:      chart.XAxis{ValueFormatter: tickLabel},
		YAxis:      chart.YAxis{Range: &chart.ContinuousRange{Min: 0, Max: most * 1.05}, ValueFormatter: tickLabel},
	}
	for i, name := range names {
		ch.XAxis.Ticks = append(ch.XAxis.Ticks, chart.Tick{Value: float64(i), Label: name})
	}
	if len(names) > 0 {
		ch.XAxis.Range = &chart.ContinuousRange{Min: -0.2, Max: float64(len(names)) - 0.8}
	}
	ch.YAxisSecondary.Style = chart.Hidden()
	ch.Elements = []chart.Renderable{chart.LegendThin(&ch)}
	s.render(title, ch.Render)
}

func tickLabel(v any) string {
	f, ok := v.(float64)
	if !ok {
		return ""
	}
	return Figure(f)
}

func (s *Sheet) render(title string, draw func(chart.RendererProvider, io.Writer) error) {
	s.Draw(title, func(w io.Writer) error { return draw(chart.SVG, w) })
}

// Draw adds what a function draws as SVG.
func (s *Sheet) Draw(title string, draw func(io.Writer) error) {
	var b bytes.Buffer
	if s.Err != nil {
		return
	}
	if err := draw(&b); err != nil {
		s.Err = fmt.Errorf("draw %s: %w", title, err)
		return
	}
	s.Charts = append(s.Charts, Chart{title, template.HTML(b.String())})
}

// Several is a number of things, with an s unless it is one.
func Several(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.FormatInt(n, 10) + " " + what
}

// Figure writes a number with three digits, or as a whole number in groups of three.
func Figure(n float64) string {
	abs := max(n, -n)
	switch {
	case abs >= 100:
		return humanize.Comma(int64(n + 0.5))
	case abs >= 10:
		return strconv.FormatFloat(n, 'f', 1, 64)
	case abs >= 1:
		return strconv.FormatFloat(n, 'f', 2, 64)
	}
	return strconv.FormatFloat(n, 'f', 3, 64)
}

// Cloud is points of one colour, each with its label.
type Cloud struct {
	Name   string
	Labels []string
	X, Y   []float64
}

// Scatter draws points over two figures: y from 0 up, x around what there is.
func (s *Sheet) Scatter(title string, all []Cloud, xName, yName string) {
	var series, keys []chart.Series // what is drawn, and what the legend shows
	var labels chart.AnnotationSeries
	low, high, top := math.Inf(1), 0.0, 0.0
	for i, c := range all {
		if len(c.X) == 0 {
			continue
		}
		color := chart.GetDefaultColor(i)
		series = append(series, chart.ContinuousSeries{Name: c.Name, XValues: c.X, YValues: c.Y,
			Style: chart.Style{StrokeWidth: chart.Disabled, StrokeColor: color, DotWidth: 4, DotColor: color}})
		keys = append(keys, chart.ContinuousSeries{Name: c.Name, Style: chart.Style{StrokeWidth: 2, StrokeColor: color}})
		for j := range c.X {
			low, high, top = min(low, c.X[j]), max(high, c.X[j]), max(top, c.Y[j])
			labels.Annotations = append(labels.Annotations, chart.Value2{Label: c.Labels[j], XValue: c.X[j], YValue: c.Y[j],
				Style: chart.Style{StrokeWidth: chart.Disabled, FillColor: chart.ColorTransparent,
					Padding: chart.NewBox(1, 1, 1, 1), FontStyle: chart.FontStyle{FontSize: 8, FontColor: color}}})
		}
	}
	if len(series) == 0 || top == 0 {
		return
	}
	ch := chart.Chart{
		Width: width, Height: height, Series: append(series, labels),
		Background: chart.Style{Padding: chart.Box{Top: 40, Left: 10, Right: 10, Bottom: 10}},
		XAxis: chart.XAxis{Name: xName, ValueFormatter: tickLabel,
			Range: &chart.ContinuousRange{Min: low * 0.95, Max: high * 1.15}},
		YAxis: chart.YAxis{Name: yName, ValueFormatter: tickLabel,
			Range: &chart.ContinuousRange{Min: 0, Max: top * 1.1}},
	}
	ch.YAxisSecondary.Style = chart.Hidden()
	ch.Elements = []chart.Renderable{chart.LegendThin(&chart.Chart{Series: keys})}
	s.render(title, ch.Render)
}
