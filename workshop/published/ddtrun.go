package published

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
)

// ddtRun measures the fourth table: a backlog by partitions and bytes in flight.
type ddtRun struct{}

// ddtSweep is the scenario that sweeps both.
const ddtSweep = "incr-threads"

// ddtOperations are those of the scenario at medium scale.
const ddtOperations = 2_000_000

// ddtValues are the figures of a row by the bench's names for them.
func ddtValues() map[string]string {
	return map[string]string{"rate": "operations/s, 10 s average", "cpu": "CPU %", "memory": "memory MB", "each": "CPU us an operation"}
}

// ddtContender is the setting that stands in the place of a published row: its
// bytes in flight and its partitions, as the bench names it.
func ddtContender(c ddtCell) string {
	return map[int]string{16: "16MiB", 32: "64MiB"}[c.cache] + ", " + strconv.Itoa(c.writers)
}

// Measure runs the sweep of the table.
func (ddtRun) Measure(ctx context.Context, o Options, m *Measured) error {
	m.Sizes = fmt.Sprintf("a backlog of %s operations on documents of 140 B in 10 collections; how many the publication had is not known",
		humanize.Comma(int64(ddtOperations*o.Scale.Factor)))
	if o.Scale.Factor < 1 {
		m.Notes = append(m.Notes, "The backlog is too small for the larger buffer to bound anything, and some rows take less than a second, of which the rate is that of the whole process.")
	}
	table := ddt()
	var keys []string
	for _, f := range table.Figures() {
		keys = append(keys, f.Key)
	}
	return o.steps(ctx, m, []step{{scenario: ddtSweep, keys: keys, take: func(r *bench.Report) error { return takeDDT(r, m) }}})
}

// takeDDT reads the rows out of a report.
func takeDDT(r *bench.Report, m *Measured) error {
	c := &r.Cases[0]
	names := ddtValues()
	for _, cell := range ddtCells() {
		x, err := contender(c, ddtContender(cell))
		if err != nil {
			return err
		}
		for _, column := range slices.Sorted(maps.Keys(names)) {
			m.set(key(cell.key(), column), rounds(x, func(r bench.Round) float64 { return r.Values[names[column]] }))
		}
	}
	return nil
}
