package published

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
)

// growthTest is the published test in which the data grow with the collections; in those before it the indexes do.
const growthTest = 5

func growthCells() (cells []bench.PublishedSeed) {
	for _, p := range bench.PublishedSeeds() {
		if p.Test == growthTest {
			cells = append(cells, p)
		}
	}
	return cells
}

// fileCopy fills the comparison of file copy with logical initial sync.
func fileCopy(t *Table) {
	t.Groups = []Group{fileTestGroup(t.Why), fileGrowthGroup(t.Why)}
	t.charts, t.found = fileCharts, fileLost
}

func fileColumns() []Column {
	return []Column{
		{Key: "logical", Name: "logical", Unit: Minutes, HereUnit: Seconds},
		{Key: "files", Name: "file copy", Unit: Minutes, HereName: "millrace seed", HereUnit: Seconds},
	}
}

func fileTestGroup(why map[string]string) Group {
	g := Group{
		Title: "Tests 1 to 4: indexes", Place: []string{"test", "collections", "document", "data (on disk)", "indexes"},
		Columns: fileColumns(), Ratio: "logical / file copy",
	}
	for _, p := range bench.PublishedSeeds() {
		if p.Test == growthTest {
			continue
		}
		k := fileKey(p)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(p.Test), strconv.Itoa(p.Collections),
			documentSize(p), dataSize(p), strconv.Itoa(p.Indexes)},
			Published: values(p.LogicalMinutes, p.CopyMinutes), Ratio: over(k, "logical", "files"), Why: why["same place"]})
	}
	g.Rows[len(g.Rows)-2].Headlines = []Headline{{Text: "a new member, 60 collections of 5 indexes: logical / file copy"}}
	return g
}

func fileGrowthGroup(why map[string]string) Group {
	g := Group{
		Title:   "Test 5: data that grow with the collections, 5 indexes each, documents of 3 KB",
		Place:   []string{"collections", "data (on disk)"},
		Columns: fileColumns(), Ratio: "logical / file copy",
	}
	for _, p := range growthCells() {
		k := fileKey(p)
		r := Row{Key: k, Place: []string{strconv.Itoa(p.Collections), dataSize(p)},
			Published: values(p.LogicalMinutes, p.CopyMinutes), Ratio: over(k, "logical", "files"), Why: why["same place"]}
		if p.LogicalMinutes < p.CopyMinutes {
			r.Why = why["smallest"]
		}
		g.Rows = append(g.Rows, r)
	}
	g.Rows[0].Headlines = []Headline{{Text: "the smallest set, one collection of 4 GB: logical / file copy"}}
	g.Rows[len(g.Rows)-1].Headlines = []Headline{{Text: "100 collections, 530 GB: logical / file copy"}}
	return g
}

// dataSize is the gigabytes of data, and of files.
func dataSize(p bench.PublishedSeed) string {
	return humanize.Comma(int64(p.DataGB)) + " (" + humanize.Comma(int64(p.DiskGB)) + ") GB"
}

func documentSize(p bench.PublishedSeed) string {
	if p.DocumentBytes < 1000 {
		return strconv.Itoa(p.DocumentBytes) + " B"
	}
	return strconv.Itoa(p.DocumentBytes/1000) + " KB"
}

// fileLost names the cells in which copying files took longer here, in a round at least.
func fileLost(m *Measured) []string {
	var lost []string
	for _, p := range bench.PublishedSeeds() {
		k := fileKey(p)
		if s, ok := m.ratio(over(k, "logical", "files")); ok && s.Min < 1 {
			lost = append(lost, fmt.Sprintf("Test %d, collections x indexes %d x %d: %s.", p.Test, p.Collections, p.Indexes,
				spread(s, Group{}.ratioText)))
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return []string{"In these cells copying files took longer in at least one round. " + strings.Join(lost, " ")}
}

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
	m.Sizes = fmt.Sprintf("1:%s of the published data, in as many collections with as many indexes and documents as "+
		"large as published", ratioTo(mediumSeed*1_000_000, int(o.Scale.Factor*1_000_000)))
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

func (fileRun) take(r *bench.Report, m *Measured, k string) error {
	c := &r.Cases[0]
	for name, column := range map[string]string{benchLogical: "logical", benchSeed: "files"} {
		x, err := contender(c, name)
		if err != nil {
			return err
		}
		m.set(key(k, column), x.Each(func(r bench.Round) float64 { return r.Seconds }))
	}
	return nil
}
