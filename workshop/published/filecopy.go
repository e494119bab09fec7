package published

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
	"github.com/millrace/millrace/workshop/lab"
)

// seedCell is a published set: minutes until a member without data is a secondary again, by both ways.
type seedCell struct {
	test, collections, indexes int // indexes of each collection, beside that of _id
	documentBytes              int
	dataGB, diskGB             float64 // the documents, and what they take on disk
	logical, files             float64 // minutes
}

func seedCells() []seedCell {
	return []seedCell{
		{1, 1, 1, 500, 30, 10, 4, 2}, {1, 1, 2, 500, 30, 10, 5, 2}, {1, 1, 5, 500, 30, 10, 8, 3},
		{1, 1, 10, 500, 30, 10, 12, 3},
		{2, 2, 2, 10_000, 300, 100, 25, 9}, {2, 2, 3, 10_000, 300, 100, 26, 11}, {2, 2, 4, 10_000, 300, 100, 28, 12},
		{2, 2, 5, 10_000, 300, 100, 29, 12},
		{3, 5, 1, 10_000, 1500, 500, 111, 44}, {3, 5, 4, 10_000, 1500, 500, 125, 46}, {3, 5, 7, 10_000, 1500, 500, 129, 46},
		{3, 5, 10, 10_000, 1500, 500, 131, 48},
		{4, 60, 0, 8_000, 3000, 1000, 212, 87}, {4, 60, 5, 8_000, 3000, 1000, 235, 93},
		{4, 60, 10, 8_000, 3000, 1000, 275, 102},
		{5, 1, 5, 3_000, 4, 2, 1, 2}, {5, 5, 5, 3_000, 30, 10, 4, 2}, {5, 10, 5, 3_000, 66, 22, 9, 3},
		{5, 20, 5, 3_000, 123, 41, 17, 5},
		{5, 40, 5, 3_000, 230, 76, 35, 9}, {5, 60, 5, 3_000, 330, 110, 54, 13}, {5, 80, 5, 3_000, 426, 142, 82, 17},
		{5, 100, 5, 3_000, 530, 177, 96, 21},
	}
}

// growthTest is the published test in which the data grow with the collections; in those before it the indexes do.
const growthTest = 5

func testCells(test int) (cells []seedCell) {
	for _, c := range seedCells() {
		if c.test == test {
			cells = append(cells, c)
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
	for _, p := range seedCells() {
		if p.test == growthTest {
			continue
		}
		k := fileKey(p)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(p.test), strconv.Itoa(p.collections),
			documentSize(p), dataSize(p), strconv.Itoa(p.indexes)},
			Published: values(p.logical, p.files), Ratio: over(k, "logical", "files"), Why: why["same place"]})
	}
	g.Rows[len(g.Rows)-2].Headlines = []Headline{{
		Text: "a member without data, 60 collections of 5 indexes: logical / file copy"}}
	return g
}

func fileGrowthGroup(why map[string]string) Group {
	g := Group{
		Title:   "Test 5: data that grow with the collections, 5 indexes each, documents of 3 KB",
		Place:   []string{"collections", "data (on disk)"},
		Columns: fileColumns(), Ratio: "logical / file copy",
	}
	for _, p := range testCells(growthTest) {
		k := fileKey(p)
		r := Row{Key: k, Place: []string{strconv.Itoa(p.collections), dataSize(p)},
			Published: values(p.logical, p.files), Ratio: over(k, "logical", "files"), Why: why["same place"]}
		if p.logical < p.files {
			r.Why = why["smallest"]
		}
		g.Rows = append(g.Rows, r)
	}
	g.Rows[0].Headlines = []Headline{{Text: "the smallest set, one collection of 4 GB: logical / file copy"}}
	g.Rows[len(g.Rows)-1].Headlines = []Headline{{Text: "100 collections, 530 GB: logical / file copy"}}
	return g
}

// dataSize is the gigabytes of data, and of files.
func dataSize(p seedCell) string {
	return humanize.Comma(int64(p.dataGB)) + " (" + humanize.Comma(int64(p.diskGB)) + ") GB"
}

func documentSize(p seedCell) string {
	if p.documentBytes < 1000 {
		return strconv.Itoa(p.documentBytes) + " B"
	}
	return strconv.Itoa(p.documentBytes/1000) + " KB"
}

// fileLost names the cells in which copying files took longer here, in a round at least.
func fileLost(m *Measured) []string {
	var lost []string
	for _, p := range seedCells() {
		k := fileKey(p)
		if s, ok := m.ratio(over(k, "logical", "files")); ok && s.Min < 1 {
			lost = append(lost, fmt.Sprintf("Test %d, collections x indexes %d x %d: %s.", p.test, p.collections, p.indexes,
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

// fileDisk is the published disk. Its latency was not published.
func fileDisk() lab.DiskSpeed { return lab.DiskSpeed{PerSecond: 3600} }

// part is by how much smaller than published the data of a test are. At medium scale the largest set of a test has 3
// to 5 GB, so that no test consists of fixed seconds only.
func (fileRun) part(test int, s bench.Scale) float64 {
	return []float64{10, 100, 500, 1000, 100}[test-1] / s.Factor
}

// set is a cell here.
func (d fileRun) set(p seedCell, s bench.Scale) bench.SeedSet {
	documents := int(p.dataGB * 1e9 / d.part(p.test, s) / float64(p.documentBytes))
	return bench.SeedSet{Documents: max(documents, 10*p.collections), DocumentBytes: p.documentBytes,
		Collections: p.collections, Indexes: p.indexes}
}

// Measure measures each test by itself, so that one that fails leaves the others.
func (d fileRun) Measure(ctx context.Context, o Options, m *Measured) error {
	var parts []string
	var all []step
	for test := 1; test <= growthTest; test++ {
		parts = append(parts, "1:"+humanize.Comma(int64(math.Round(d.part(test, o.Scale)))))
		var cells []seedCell
		var sets []bench.SeedSet
		var keys []string
		for _, p := range testCells(test) {
			k := fileKey(p)
			if o.Scale.Name == "tiny" && (p.collections > 1 || p.indexes > 5) {
				m.miss("the scale tiny measures the smallest sets only", key(k, "logical"), key(k, "files"))
				continue
			}
			cells, sets = append(cells, p), append(sets, d.set(p, o.Scale))
			keys = append(keys, key(k, "logical"), key(k, "files"))
		}
		if len(cells) > 0 {
			all = append(all, step{scenario: "seed", keys: keys,
				change: func(b *bench.Options) { b.Seeds, b.SeedDisk = sets, fileDisk() },
				take:   func(r *bench.Report) error { return d.take(r, m, cells) }})
		}
	}
	m.Sizes = "of the published data tests 1 to 5 have " + strings.Join(parts, ", ") + ", in as many collections with " +
		"as many indexes and documents as large as published"
	return o.steps(ctx, m, all)
}

// fileKey begins the keys of a cell's figures.
func fileKey(p seedCell) string {
	if p.test == growthTest {
		return key(strconv.Itoa(p.test), strconv.Itoa(p.collections))
	}
	return key(strconv.Itoa(p.test), strconv.Itoa(p.indexes))
}

func (fileRun) take(r *bench.Report, m *Measured, cells []seedCell) error {
	for i, p := range cells {
		for name, column := range map[string]string{benchLogical: "logical", benchSeed: "files"} {
			x, err := contender(&r.Cases[i], name)
			if err != nil {
				return err
			}
			m.set(key(fileKey(p), column), x.Each(func(r bench.Round) float64 { return r.Seconds }))
		}
	}
	return nil
}
