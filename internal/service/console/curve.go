package console

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/service"
)

// The size of a chart, in units of its own: a page shows it as wide as there is room. It
// is small, so that its text can be read on a narrow one.
const (
	chartWidth, chartHeight                     = 360, 150
	chartLeft, chartRight, chartTop, chartUnder = 54, 8, 8, 20
)

// curve is a figure over time: its mean in each span, and its lowest and highest value.
type curve struct {
	Name string
	at   func(*service.Bucket) (v service.Range)
}

// chart is one picture of some curves.
type chart struct {
	ID, Title string
	unit      func(float64) string
	curves    []curve
	// base is what the numbers of an axis up to some value are of, in seconds; nil is 1.
	base func(float64) float64
	// bare lines have no bands: of many they would hide each other.
	bare bool
}

// charts are those of a job.
func charts() []chart {
	amount := func(of func(*service.Point) service.Amount) func(*service.Bucket) service.Range {
		return func(b *service.Bucket) service.Range {
			a := of(&b.Point)
			return service.Range{Mean: b.Rate(a), Least: a.Least, Most: a.Most, Seconds: b.Seconds}
		}
	}
	percent := func(v float64) string { return few(v) + "%" }
	return []chart{
		{"rate", "Documents copied and operations applied a second", few, []curve{
			{"copied", amount(func(p *service.Point) service.Amount { return p.Docs })},
			{"applied", amount(func(p *service.Point) service.Amount { return p.Operations })}}, nil, false},
		{"bytes", "Bytes copied and applied a second", perSecond, []curve{
			{"copied", amount(func(p *service.Point) service.Amount { return p.Bytes })},
			{"applied", amount(func(p *service.Point) service.Amount { return p.AppliedBytes })}}, nil, false},
		{"lag", "Lag behind the source", span, []curve{{"lag", func(b *service.Bucket) service.Range { return b.Lag }}},
			spanBase, false},
		{"window", "Oplog window", span, []curve{{"window", func(b *service.Bucket) service.Range { return b.Window }}},
			spanBase, false},
		{"cpu", "Processor of the worker, of one core", percent,
			[]curve{{"processor", func(b *service.Bucket) service.Range { return b.CPU }}}, nil, false},
		{"memory", "Memory of the worker", format.Size[float64],
			[]curve{{"memory", func(b *service.Bucket) service.Range { return b.Memory }}}, nil, false},
	}
}

func perSecond(v float64) string { return format.Size(v) + "/s" }

// few is a number with a fraction where it is small.
func few(v float64) string {
	if v > 0 && v < 10 {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return format.Count(v)
}

// span is a number of seconds.
func span(v float64) string { return tick(format.Seconds(v)) }

// spanBase are the seconds of the unit in which span writes a number.
func spanBase(v float64) float64 {
	switch {
	case v < 120:
		return 1
	case v < 7200:
		return 60
	case v < 48*3600:
		return 3600
	}
	return 24 * 3600
}

// drawn is a chart as a page shows it.
type drawn struct {
	Title, Text string
	Legend      []string
	SVG         template.HTML
}

// canvas places times and values.
type canvas struct {
	from, to time.Time
	top      float64 // the highest value
	b        strings.Builder
}

func (c *canvas) x(t time.Time) float64 {
	share := t.Sub(c.from).Seconds() / c.to.Sub(c.from).Seconds()
	return chartLeft + min(max(share, 0), 1)*(chartWidth-chartLeft-chartRight)
}

func (c *canvas) y(v float64) float64 {
	return chartTop + (1-min(max(v/c.top, 0), 1))*(chartHeight-chartTop-chartUnder)
}

// begin returns where the axis of time begins: with the points of a young job, so that they fill the chart.
func begin(points []service.Bucket, from, to time.Time) time.Time {
	if len(points) == 0 || !points[0].Start.After(from) {
		return from
	}
	young := to.Add(-max(to.Sub(points[0].Start), to.Sub(from)/12))
	if young.Before(from) {
		return from
	}
	return young
}

// draw makes the picture of points that follow each other by step. Where there are none
// for a while, the line has a gap.
func (ch *chart) draw(points []service.Bucket, from, to time.Time, step time.Duration) drawn {
	c := &canvas{from: from, to: to}
	out := drawn{Title: ch.Title}
	for _, cu := range ch.curves {
		text := cu.sum(points, ch.unit, &c.top)
		if len(ch.curves) > 1 || ch.bare {
			out.Legend = append(out.Legend, cu.Name)
			text = cu.Name + " " + text
		}
		out.Text = strings.TrimPrefix(out.Text+"; "+text, "; ")
	}
	base := 1.0
	if ch.base != nil {
		base = ch.base(c.top)
	}
	c.top = ceiling(c.top/base) * base
	fmt.Fprintf(&c.b,
		`<svg class="curve" viewBox="0 0 %d %d" role="img" aria-labelledby="c-%s-t c-%s-d"><title id="c-%s-t">%s</title><desc id="c-%s-d">%s</desc>`,
		chartWidth, chartHeight, ch.ID, ch.ID, ch.ID, template.HTMLEscapeString(ch.Title), ch.ID,
		template.HTMLEscapeString(out.Text))
	c.axes(ch.unit)
	for i, cu := range ch.curves {
		for _, run := range runs(points, step, cu.at) {
			c.run(run, i, step, step > service.PointEvery && !ch.bare)
		}
	}
	c.b.WriteString(`</svg>`)
	out.SVG = template.HTML(c.b.String()) //nolint:gosec // numbers, and texts of ours that are escaped
	return out
}

// sum says in words what a curve shows, and raises top to its highest value.
func (cu *curve) sum(points []service.Bucket, unit func(float64) string, top *float64) string {
	least, most, last := math.Inf(1), 0.0, -1.0
	for i := range points {
		if r := cu.at(&points[i]); r.Known() {
			least, most, last = min(least, r.Least), max(most, r.Most), r.Mean
		}
	}
	*top = max(*top, most)
	if last < 0 {
		return "not known"
	}
	return fmt.Sprintf("%s last, from %s to %s", unit(last), unit(least), unit(most))
}

// ceiling is a round number at or above v.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	scale := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 4, 6, 8, 10} {
		if v <= n*scale*(1+1e-9) {
			return n * scale
		}
	}
	return v
}

func (c *canvas) axes(unit func(float64) string) {
	for _, share := range []float64{0, 0.5, 1} {
		y := c.y(share * c.top)
		fmt.Fprintf(&c.b, `<path class="rule" d="M%d %.1fH%d"/><text class="tick end" x="%d" y="%.1f">%s</text>`, chartLeft,
			y, chartWidth-chartRight, chartLeft-4, y+4, template.HTMLEscapeString(tick(unit(share*c.top))))
	}
	every, form := ticks(c.to.Sub(c.from))
	for t := c.from.Truncate(every).Add(every); t.Before(c.to); t = t.Add(every) {
		x := c.x(t)
		if x < chartLeft+16 || x > chartWidth-chartRight-12 {
			continue
		}
		fmt.Fprintf(&c.b, `<path class="rule" d="M%.1f %dv4"/><text class="tick mid" x="%.1f" y="%d">%s</text>`, x,
			chartHeight-chartUnder, x, chartHeight-4, t.UTC().Format(form))
	}
}

// tick is a figure as an axis has room for it: 60 MB in place of 60.0 MB.
func tick(text string) string {
	number, unit := text, ""
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }); i >= 0 {
		number, unit = text[:i], text[i:]
	}
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + unit
}

// ticks are the marks of an axis of time.
func ticks(of time.Duration) (every time.Duration, form string) {
	const day = 24 * time.Hour
	switch {
	case of <= 10*time.Minute:
		return time.Minute, "15:04"
	case of <= 30*time.Minute:
		return 5 * time.Minute, "15:04"
	case of <= 2*time.Hour:
		return 15 * time.Minute, "15:04"
	case of <= 2*day:
		return 6 * time.Hour, "15:04"
	}
	return 7 * day, "Jan 2"
}

// place is a moment with how a figure stood.
type place struct {
	at time.Time
	service.Range
}

// runs are the places without a gap between them.
func runs(points []service.Bucket, step time.Duration, at func(*service.Bucket) service.Range) (all [][]place) {
	var last time.Time
	for i := range points {
		r := at(&points[i])
		if !r.Known() {
			continue
		}
		if len(all) == 0 || points[i].Start.Sub(last) > step*3/2 {
			all = append(all, nil)
		}
		last = points[i].Start
		n := len(all) - 1
		all[n] = append(all[n], place{last.Add(step / 2), r})
	}
	return all
}

// run draws the line of a curve's means, over the band from its lowest to its highest
// where there is to be one.
func (c *canvas) run(run []place, n int, step time.Duration, band bool) {
	if len(run) == 1 { // as wide as what it tells of
		a, b := run[0], run[0]
		a.at, b.at = a.at.Add(-step/2), b.at.Add(step/2)
		run = []place{a, b}
	}
	var line, up, down strings.Builder
	for i, p := range run {
		word := "L"
		if i == 0 {
			word = "M"
		}
		fmt.Fprintf(&line, "%s%.1f %.1f", word, c.x(p.at), c.y(p.Mean))
		fmt.Fprintf(&up, "%s%.1f %.1f", word, c.x(p.at), c.y(p.Most))
		back := run[len(run)-1-i]
		fmt.Fprintf(&down, "L%.1f %.1f", c.x(back.at), c.y(back.Least))
	}
	if band {
		fmt.Fprintf(&c.b, `<path class="band b%d" d="%s%sZ"/>`, n, up.String(), down.String())
	}
	fmt.Fprintf(&c.b, `<path class="stroke s%d" d="%s"/>`, n, line.String())
}
