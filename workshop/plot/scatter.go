package plot

import (
	"math"

	chart "github.com/go-analyze/charts/chartdraw"
)

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
				Style: chart.Style{StrokeWidth: chart.Disabled, FillColor: chart.ColorTransparent, Padding: chart.NewBox(1, 1, 1, 1), FontStyle: chart.FontStyle{FontSize: 8, FontColor: color}}})
		}
	}
	if len(series) == 0 || top == 0 {
		return
	}
	ch := chart.Chart{
		Width: width, Height: height, Series: append(series, labels),
		Background: chart.Style{Padding: chart.Box{Top: 40, Left: 10, Right: 10, Bottom: 10}},
		XAxis:      chart.XAxis{Name: xName, ValueFormatter: tickLabel, Range: &chart.ContinuousRange{Min: low * 0.95, Max: high * 1.15}},
		YAxis:      chart.YAxis{Name: yName, ValueFormatter: tickLabel, Range: &chart.ContinuousRange{Min: 0, Max: top * 1.1}},
	}
	ch.YAxisSecondary.Style = chart.Hidden()
	ch.Elements = []chart.Renderable{chart.LegendThin(&chart.Chart{Series: keys})}
	s.render(title, ch.Render)
}
