package published

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
)

type ddtCell struct {
	cache            int // its size and its number
	writers, buckets int // oplogWrite, oplogNsBucket
	rate             float64
	cpu, memory      float64 // per cent, MB
	each             float64 // microseconds of processor time an operation
}

func ddtCells() []ddtCell {
	return []ddtCell{
		{16, 6, 2, 72_398, 280, 8_258, 38.7}, {16, 9, 3, 80_385, 240, 14_418, 29.9}, {16, 12, 4, 79_365, 280, 15_728, 35.3},
		{16, 15, 5, 75_388, 280, 14_025, 37.1},
		{32, 6, 2, 87_719, 240, 13_107, 27.4}, {32, 9, 3, 100_000, 320, 11_534, 32.0},
		{32, 12, 4, 112_370, 320, 11_796, 28.5}, {32, 15, 5, 120_030, 360, 12_845, 30.0},
	}
}

func (c ddtCell) key() string { return strconv.Itoa(c.cache) + "/" + strconv.Itoa(c.writers) }

func (c ddtCell) place() []string {
	n := strconv.Itoa
	return []string{n(c.cache) + " x " + n(c.cache), n(c.writers) + " / " + n(c.buckets), ddtContender(c)}
}

func ddt(t *Table) {
	t.Groups = []Group{ddtRates(t.Why["other work"]), ddtUse(t.Why["other work"]), ddtLatency(t.Why["latency"])}
	t.charts = ddtCharts
}

func ddtRates(why string) Group {
	g := Group{
		Title: "Rate and processor time of one operation", Place: ddtPlace(), Ratio: "of the first row",
		Columns: []Column{{Key: "rate", Name: "rate", Unit: PerSecond},
			{Key: "each", Name: "processor time for one", Unit: Micros}},
	}
	first := key(ddtCells()[0].key(), "rate")
	for _, c := range ddtCells() {
		g.Rows = append(g.Rows, Row{Key: c.key(), Place: c.place(), Published: values(c.rate, c.each),
			Ratio: Ratio{Of: key(c.key(), "rate"), To: []string{first}}, Why: why})
	}
	g.Rows[len(g.Rows)-1].Headlines = []Headline{
		{Text: "large cache, most threads: rate, of small cache and fewest threads"},
		{Text: "the same: processor time of one operation, µs", Key: key(ddtCells()[len(g.Rows)-1].key(), "each")},
	}
	return g
}

func ddtPlace() []string {
	return []string{"cache (size x number)", "oplogWrite / oplogNsBucket", "here: `--apply-buffer`, `--partitions`"}
}

func ddtUse(why string) Group {
	g := Group{
		Title: "What the tool uses", Place: ddtPlace(),
		Columns: []Column{{Key: "cpu", Name: "processors", Unit: Percent}, {Key: "memory", Name: "memory", Unit: Megabytes}},
	}
	for _, c := range ddtCells() {
		g.Rows = append(g.Rows, Row{Key: c.key(), Place: c.place(), Published: values(c.cpu, c.memory), Why: why})
	}
	return g
}

func ddtLatency(why string) Group {
	g := Group{
		Title: "Latency of changes at the target", Place: ddtPlace(),
		Columns: []Column{{Key: "p50", Name: "median", Unit: Millis}, {Key: "p99", Name: "99th percentile", Unit: Millis}},
	}
	for _, c := range ddtCells() {
		g.Rows = append(g.Rows, Row{Key: c.key(), Place: c.place(), Why: why})
	}
	return g
}

// ddtRun measures the fourth table: a backlog by partitions and bytes in flight.
type ddtRun struct{}

// The scenarios of the table.
const (
	ddtSweep = "incr-threads"
	ddtDelay = "latency-threads"
)

// ddtSeconds are how long the latency of a row is measured in a round, at small scale and above.
const ddtSeconds = 5

// ddtOperations are those of the scenario at medium scale.
const ddtOperations = 2_000_000

// ddtValues are the figures of a row by the bench's names for them.
func ddtValues(scenario string) map[string]string {
	if scenario == ddtDelay {
		return map[string]string{"p50": "p50 ms", "p99": "p99 ms"}
	}
	return map[string]string{"rate": "operations/s, 10 s average", "cpu": "CPU %", "memory": "memory MB",
		"each": "CPU us an operation"}
}

// ddtContender is the bench's setting for a published row: bytes in flight and partitions.
func ddtContender(c ddtCell) string {
	return map[int]string{16: "16MiB", 32: "64MiB"}[c.cache] + ", " + strconv.Itoa(c.writers)
}

// Measure runs the sweep of the table.
func (ddtRun) Measure(ctx context.Context, o Options, m *Measured) error {
	m.Sizes = fmt.Sprintf(
		"a backlog of %s operations on documents of 140 B in 10 collections; how many the publication had is not known",
		humanize.Comma(int64(ddtOperations*o.Scale.Factor)))
	if o.Scale.Factor < 1 {
		m.Notes = append(m.Notes, "The backlog is too small for the larger buffer to limit anything. Some rows take less "+
			"than a second; their rate is that of the whole process.")
	}
	var all []step
	for _, scenario := range []string{ddtSweep, ddtDelay} {
		var keys []string
		for _, c := range ddtCells() {
			for column := range ddtValues(scenario) {
				keys = append(keys, key(c.key(), column))
			}
		}
		all = append(all, step{scenario: scenario, keys: keys,
			change: func(b *bench.Options) { b.Scale.Duration = min(b.Scale.Duration, ddtSeconds*time.Second) },
			take:   func(r *bench.Report) error { return takeDDT(r, m) }})
	}
	return o.steps(ctx, m, all)
}

func takeDDT(r *bench.Report, m *Measured) error {
	c := &r.Cases[0]
	names := ddtValues(c.Scenario)
	for _, cell := range ddtCells() {
		x, err := contender(c, ddtContender(cell))
		if err != nil {
			return err
		}
		for _, column := range slices.Sorted(maps.Keys(names)) {
			m.set(key(cell.key(), column), x.Each(func(r bench.Round) float64 { return r.Values[names[column]] }))
		}
	}
	return nil
}
