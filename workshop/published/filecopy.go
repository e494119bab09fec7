package published

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
)

// growthTest is the published test in which the data grow with the collections;
// in those before it the indexes do.
const growthTest = 5

// growthCells are the cells of that test.
func growthCells() (cells []bench.PublishedSeed) {
	for _, p := range bench.PublishedSeeds() {
		if p.Test == growthTest {
			cells = append(cells, p)
		}
	}
	return cells
}

// fileCopy is the comparison of file copy with logical initial sync.
func fileCopy() Table {
	return Table{
		Number: 3, Title: "File copy against logical initial sync", By: "Percona: Percona Server for MongoDB 8.0.12-4",
		Machine:    "three members of 4 virtual processors, 16 GB and a disk of 1.2 TB gp2 with 3,600 operations a second each",
		Conditions: "a member is stopped, its data removed, and it is started again; minutes until it is a secondary",
		Says: []string{
			"File copy takes from twice as long as the logical way (4 GB: 2 minutes against 1) to a fifth of it (530 GB: 21 against 96). The more data and indexes, the larger the advantage.",
			"The logical way grows faster than the data, file copy grows with them.",
		},
		Here: []string{
			"The left way is the server's own logical initial sync, the right one `millrace seed`, which copies files, too.",
			"Sizes are scaled, and times are seconds.",
			"The member is a new one, and 200 documents a second are written meanwhile. Source and copy are mostly in memory.",
		},
		Absent: []Absent{
			{"Percona Server for MongoDB 8.0.12-4 with its own file copy", "there is no program of it, nor another mongod of 8.0, for this machine; the servers are mongod 6.0"},
			{"sets of 30 GB to 3 TB", "the disk does not hold them; the sizes are those that the scale says"},
			{"members on machines and disks of their own", "there is one machine with one disk"},
		},
		Groups: []Group{fileTestGroup(), fileGrowthGroup()},
		charts: fileCharts, found: fileLost,
	}
}

// fileColumns are the two ways.
func fileColumns() []Column {
	return []Column{
		{Key: "logical", Name: "logical", Unit: Minutes, HereUnit: Seconds},
		{Key: "files", Name: "file copy", Unit: Minutes, HereName: "millrace seed", HereUnit: Seconds},
	}
}

const (
	fixedSecond = "A seed has a fixed part, mostly the start of the new mongod and the second in which it chooses whom to follow. At the scale of this machine it weighs more than in minutes of copying."
	samePlace   = "Source and copy lie on one disk here and no network is between them; the published disks give 3,600 operations a second to either way. " + fixedSecond
)

func fileTestGroup() Group {
	g := Group{
		Title: "Tests 1 to 4: indexes", Place: []string{"test", "collections", "document", "data (on disk)", "indexes"},
		Columns: fileColumns(), Ratio: "logical / file copy",
	}
	for _, p := range bench.PublishedSeeds() {
		if p.Test == growthTest {
			continue
		}
		k := fileKey(p)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(p.Test), strconv.Itoa(p.Collections), documentSize(p), dataSize(p), strconv.Itoa(p.Indexes)},
			Published: values(p.LogicalMinutes, p.CopyMinutes), Ratio: over(k, "logical", "files"), Why: samePlace})
	}
	g.Rows[len(g.Rows)-2].Headlines = []Headline{{Text: "a new member, 60 collections of 5 indexes: logical / file copy"}}
	return g
}

func fileGrowthGroup() Group {
	g := Group{
		Title: "Test 5: data that grow with the collections, 5 indexes each, documents of 3 KB", Place: []string{"collections", "data (on disk)"},
		Columns: fileColumns(), Ratio: "logical / file copy",
	}
	for _, p := range growthCells() {
		k := fileKey(p)
		r := Row{Key: k, Place: []string{strconv.Itoa(p.Collections), dataSize(p)},
			Published: values(p.LogicalMinutes, p.CopyMinutes), Ratio: over(k, "logical", "files"), Why: samePlace}
		if p.LogicalMinutes < p.CopyMinutes {
			r.Why = "In the publication copying files takes longer than the logical way, for 4 GB on a disk. At this scale neither way has much to copy, and the fixed parts of both are compared."
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
			lost = append(lost, fmt.Sprintf("test %d with %d collections of %d indexes (%s)", p.Test, p.Collections, p.Indexes, spread(s, Group{}.ratioText)))
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return []string{"Cells in which copying files took longer here, in one round at least: " + strings.Join(lost, ", ") + "."}
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
