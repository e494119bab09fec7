package published

import (
	"context"
	"fmt"
	"strconv"

	"github.com/millrace/millrace/workshop/bench"
)

// fileRun measures the third table: a new member in both ways.
type fileRun struct{}

// The names in the bench's reports.
const (
	benchLogical = "logical initial sync"
	benchSeed    = "millrace seed"
)

// mediumSeed is how much smaller than published the data are at medium scale.
const mediumSeed = 100

// Measure measures each cell by itself, so that one that fails leaves the others.
func (d fileRun) Measure(ctx context.Context, o Options, m *Measured) error {
	m.Sizes = fmt.Sprintf("1:%s of the published data, in as many collections with as many indexes and documents as large as published", ratioTo(mediumSeed*1_000_000, int(o.Scale.Factor*1_000_000)))
	var all []step
	for _, p := range bench.PublishedSeeds() {
		k := fileKey(p)
		keys := []string{key(k, "logical"), key(k, "files")}
		if o.Scale.Name == "tiny" && !d.tiny(p) {
			m.miss("the scale tiny measures the smallest cells only", keys...)
			continue
		}
		all = append(all, step{scenario: "seed", keys: keys,
			change: func(b *bench.Options) {
				b.SeedTests, b.Cells = []int{p.Test}, []string{fmt.Sprintf("%dx%d", p.Collections, p.Indexes)}
			},
			take: func(r *bench.Report) error { return d.take(r, m, k) }})
	}
	return o.steps(ctx, m, all)
}

// tiny reports that a cell is measured at the scale of that name.
func (fileRun) tiny(p bench.PublishedSeed) bool {
	return p.Collections == 1 && (p.Test == 5 || p.Test == 1 && p.Indexes == 1)
}

// fileKey begins the keys of a cell's figures.
func fileKey(p bench.PublishedSeed) string {
	if p.Test == growthTest {
		return key(strconv.Itoa(p.Test), strconv.Itoa(p.Collections))
	}
	return key(strconv.Itoa(p.Test), strconv.Itoa(p.Indexes))
}

// take reads both ways of a cell.
func (fileRun) take(r *bench.Report, m *Measured, k string) error {
	c := &r.Cases[0]
	for name, column := range map[string]string{benchLogical: "logical", benchSeed: "files"} {
		x, err := contender(c, name)
		if err != nil {
			return err
		}
		m.set(key(k, column), rounds(x, func(r bench.Round) float64 { return r.Seconds }))
	}
	return nil
}
