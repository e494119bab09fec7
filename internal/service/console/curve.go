package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

type curve struct {
	Name string
	at   func(*service.Bucket) service.Range
}

// unit is how a figure is written: by the server in texts and tables, and under its name by the script.
type unit struct {
	name string
	text func(float64) string
}

// The units of charts; the script has them, too.
func count() unit { return unit{"count", few} }
func perSecond() unit {
	return unit{"bytes/s", func(v float64) string { return format.Size(v) + "/s" }}
}
func seconds() unit { return unit{"seconds", format.Seconds} }

type chart struct {
	ID, Title string
	unit      unit
	curves    []curve
	// parts has a curve for each shard or router, and no bands: they would hide each other.
	parts bool
}

func charts() []chart {
	amount := func(of func(*service.Point) service.Amount) func(*service.Bucket) service.Range {
		return func(b *service.Bucket) service.Range {
			a := of(&b.Point)
			return service.Range{Mean: b.Rate(a), Least: a.Least, Most: a.Most, Seconds: b.Seconds}
		}
	}
	return []chart{
		{"rate", "Documents and operations per second", count(), []curve{
			{"copied", amount(func(p *service.Point) service.Amount { return p.Docs })},
			{"applied", amount(func(p *service.Point) service.Amount { return p.Operations })}}, false},
		{"bytes", "Bytes per second", perSecond(), []curve{
			{"copied", amount(func(p *service.Point) service.Amount { return p.Bytes })},
			{"applied", amount(func(p *service.Point) service.Amount { return p.AppliedBytes })}}, false},
		{"lag", "Lag behind the source", seconds(),
			[]curve{{"lag", func(b *service.Bucket) service.Range { return b.Lag }}}, false},
		{"window", "Oplog window", seconds(),
			[]curve{{"window", func(b *service.Bucket) service.Range { return b.Window }}}, false},
		{"cpu", "CPU of the worker, in percent of one core",
			unit{"percent", func(v float64) string { return few(v) + "%" }},
			[]curve{{"cpu", func(b *service.Bucket) service.Range { return b.CPU }}}, false},
		{"memory", "Memory of the worker", unit{"bytes", format.Size[float64]},
			[]curve{{"memory", func(b *service.Bucket) service.Range { return b.Memory }}}, false},
	}
}

func few(v float64) string {
	if v > 0 && v < 10 {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return format.Count(v)
}

type shownChart struct{ ID, Title, Text, Data string }

type figures []float64

// MarshalJSON writes them with four digits, and null where nothing is known.
func (f figures) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range f {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(v) {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, v, 'g', 4, 64)
		}
	}
	return append(b, ']'), nil
}

// series is a curve as the script gets it. Least and Most are set where the chart has a band between them.
type series struct {
	Name  string  `json:"name"`
	Mean  figures `json:"mean"`
	Least figures `json:"least,omitempty"`
	Most  figures `json:"most,omitempty"`
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

// gaps returns the points with an empty one wherever some are missing, where a line has a gap.
func gaps(points []service.Bucket, step time.Duration) (all []service.Bucket) {
	for i := range points {
		if i > 0 && points[i].Start.Sub(points[i-1].Start) > step*3/2 {
			all = append(all, service.Bucket{Start: points[i-1].Start.Add(step)})
		}
		all = append(all, points[i])
	}
	return all
}

// show makes a chart of points that follow each other by step; from and to are the ends of its axis.
func (ch *chart) show(points []service.Bucket, from, to time.Time, step time.Duration) shownChart {
	data := struct {
		Unit   string   `json:"unit"`
		From   int64    `json:"from"`
		To     int64    `json:"to"`
		At     []int64  `json:"at"`
		Series []series `json:"series"`
	}{ch.unit.name, from.Unix(), to.Unix(), []int64{}, nil}
	all := gaps(points, step)
	for i := range all {
		data.At = append(data.At, all[i].Start.Add(step/2).Unix())
	}
	var texts []string
	for _, cu := range ch.curves {
		text, one := cu.sum(points, ch.unit.text), series{Name: cu.Name, Mean: figures{}}
		for i := range all {
			r := cu.at(&all[i])
			if !r.Known() {
				r.Mean, r.Least, r.Most = math.NaN(), math.NaN(), math.NaN()
			}
			one.Mean = append(one.Mean, r.Mean)
			if step > service.PointEvery && !ch.parts {
				one.Least, one.Most = append(one.Least, r.Least), append(one.Most, r.Most)
			}
		}
		if len(ch.curves) > 1 || ch.parts {
			text = cu.Name + " " + text
		}
		data.Series, texts = append(data.Series, one), append(texts, text)
	}
	raw, _ := json.Marshal(data) // numbers and texts have a form in JSON
	return shownChart{ID: ch.ID, Title: ch.Title, Text: strings.Join(texts, "; "), Data: string(raw)}
}

func (cu *curve) sum(points []service.Bucket, text func(float64) string) string {
	least, most, last := math.Inf(1), 0.0, -1.0
	for i := range points {
		if r := cu.at(&points[i]); r.Known() {
			least, most, last = min(least, r.Least), max(most, r.Most), r.Mean
		}
	}
	if last < 0 {
		return "not known"
	}
	return fmt.Sprintf("%s last, from %s to %s", text(last), text(least), text(most))
}

// maxLines bounds the lines of a chart, except for others: readers cannot distinguish more.
const maxLines = 7

// most returns the names with the largest sums, and whether there are others.
func most(sums map[string]int64) (keep map[string]bool, others bool) {
	names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), strings.Compare(a, b))
	})
	keep = map[string]bool{}
	for _, name := range names {
		if name == job.OtherParts || len(keep) == maxLines {
			others = true
			continue
		}
		keep[name] = true
	}
	return keep, others
}

type split struct {
	points          []service.Bucket // with the parts that have lines
	shards, routers []string
}

// splitOf selects the shards and routers that did the most, and the shard that was the furthest behind.
func splitOf(points []service.Bucket) *split {
	shards, routers := map[string]int64{}, map[string]int64{}
	last, lag := "", 0.0
	for i := range points {
		for _, s := range points[i].Shards {
			shards[s.Name] += s.Bytes.Sum + s.AppliedBytes.Sum
			if s.Lag.Most > lag {
				last, lag = s.Name, s.Lag.Most
			}
		}
		for _, r := range points[i].Routers {
			routers[r.Name] += r.AppliedBytes.Sum
		}
	}
	if last != "" {
		shards[last] = math.MaxInt64
	}
	keepShards, otherShards := most(shards)
	keepRouters, otherRouters := most(routers)
	s := &split{points: slices.Clone(points), shards: lineNames(keepShards, otherShards),
		routers: lineNames(keepRouters, otherRouters)}
	for i := range s.points {
		p := &s.points[i]
		p.Shards = service.FoldParts(p.Shards, func(name string) bool { return keepShards[name] })
		p.Routers = service.FoldParts(p.Routers, func(name string) bool { return keepRouters[name] })
	}
	return s
}

func lineNames(keep map[string]bool, others bool) []string {
	names := slices.Sorted(maps.Keys(keep))
	if others {
		names = append(names, job.OtherParts)
	}
	return names
}

func linesOf(names []string, parts func(*service.Bucket) []service.Point,
	at func(*service.Point) service.Range) (list []curve) {
	for _, name := range names {
		list = append(list, curve{visible(name), func(b *service.Bucket) (r service.Range) {
			all := parts(b)
			if i := slices.IndexFunc(all, func(p service.Point) bool { return p.Name == name }); i >= 0 {
				r = at(&all[i])
			}
			return r
		}})
	}
	return list
}

func (s *split) byShard() []chart {
	if len(s.shards) == 0 {
		return nil
	}
	lines := func(at func(*service.Point) service.Range) []curve {
		return linesOf(s.shards, func(b *service.Bucket) []service.Point { return b.Shards }, at)
	}
	return []chart{
		{"shard-rate", "Documents and changes read per second, by shard", count(),
			lines(func(p *service.Point) service.Range { return both(p.Docs, p.Operations, p.Seconds) }), true},
		{"shard-bytes", "Bytes read per second, by shard", perSecond(),
			lines(func(p *service.Point) service.Range { return both(p.Bytes, p.AppliedBytes, p.Seconds) }), true},
		{"shard-lag", "Lag of each shard behind the newest change", seconds(),
			lines(func(p *service.Point) service.Range { return p.Lag }), true},
		{"shard-window", "Oplog window of each shard", seconds(),
			lines(func(p *service.Point) service.Range { return p.Window }), true},
	}
}

func (s *split) byRouter() []chart {
	if len(s.routers) == 0 {
		return nil
	}
	lines := func(of func(*service.Point) service.Amount) []curve {
		return linesOf(s.routers, func(b *service.Bucket) []service.Point { return b.Routers },
			func(p *service.Point) service.Range { return both(of(p), service.Amount{}, p.Seconds) })
	}
	return []chart{
		{"router-rate", "Commands sent per second, by router", count(),
			lines(func(p *service.Point) service.Amount { return p.Operations }), true},
		{"router-bytes", "Bytes sent per second, by router", perSecond(),
			lines(func(p *service.Point) service.Amount { return p.AppliedBytes }), true},
	}
}

func both(a, b service.Amount, seconds float64) service.Range {
	return service.Range{Mean: a.Rate(seconds) + b.Rate(seconds), Least: a.Least + b.Least, Most: a.Most + b.Most,
		Seconds: seconds}
}

// visible returns a foreign name with escapes for invisible characters, for use outside of elements.
func visible(name string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(name, "\ufffd") {
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return short(b.String(), 60)
}
