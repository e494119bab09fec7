package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/plot"
)

// growth are the cases of the seed scenario that have been measured, to show side by side how both ways grow.
type growth []*Case

// table compares the ways, medians over the rounds; ratios are those of rounds.
func (g growth) table() (header []string, rows [][]string) {
	header = []string{"collections", "indexes each", seedLogical, seedTwoPass, "times as fast",
		"of which the new mongod's start", "locked, one pass", "two passes", "of it", "source stalled, one pass",
		"two passes"}
	for _, c := range g {
		seed, logical, one := c.contender(seedTwoPass), c.contender(seedLogical), c.contender(seedOnePass)
		faster, _ := c.against(seedLogical, seedTwoPass)
		_, lock := c.against(seedTwoPass, seedOnePass)
		rows = append(rows, []string{
			itoa(c.Collections), itoa(c.Indexes), figure(logical.Seconds.Median) + " s", figure(seed.Seconds.Median) + " s",
			figure(faster.Median),
			figure(seed.part(partListen)+seed.part(partAnswer)) + " s", figure(one.Values[valueLocked].Median) + " s",
			figure(seed.Values[valueLocked].Median) + " s",
			strconv.FormatFloat(lock.Median*100, 'f', 1, 64) + " %",
			figure(one.Values[valueStall].Median) + " s", figure(seed.Values[valueStall].Median) + " s",
		})
	}
	return header, rows
}

// part is the median of a duration within the rounds.
func (x *Contender) part(name string) float64 {
	return median(x.Each(func(r Round) float64 { return r.Parts[name] }))
}

// charts draw seconds over the number of indexes and of collections.
func (g growth) charts(s *plot.Sheet) {
	for _, axis := range []struct {
		title string
		name  func(*Case) string
		on    func(*Case) bool
	}{
		{"seconds until the new member has caught up, over indexes of one collection",
			func(c *Case) string { return itoa(c.Indexes) }, func(c *Case) bool { return c.Collections == 1 }},
		{"the same, over collections of five indexes each",
			func(c *Case) string { return itoa(c.Collections) }, func(c *Case) bool { return c.Indexes == 5 }},
	} {
		var names []string
		// their order in the cases' charts
		lines := []plot.Line{{Name: seedOnePass}, {Name: seedTwoPass}, {Name: seedLogical}}
		for _, c := range g {
			if !axis.on(c) {
				continue
			}
			for i := range lines {
				l := &lines[i]
				l.X, l.Y = append(l.X, float64(len(names))), append(l.Y, c.contender(l.Name).Seconds.Median)
			}
			names = append(names, axis.name(c))
		}
		if len(names) > 1 {
			s.Lines(axis.title, lines, names...)
		}
	}
}

// seedTimes are what both ways took, published and here: minutes and seconds, of which only ratios are compared.
type seedTimes struct{ theirLogical, theirCopy, ourLogical, ourCopy float64 }

func (c *Case) seedTimes() seedTimes {
	return seedTimes{c.Published.LogicalMinutes, c.Published.CopyMinutes,
		c.contender(seedLogical).Seconds.Median, c.contender(seedTwoPass).Seconds.Median}
}

// test is the part of one published test, its largest cell last.
func (g growth) test(number int) (of growth) {
	for _, c := range g {
		if c.Published.Test == number {
			of = append(of, c)
		}
	}
	return of
}

// publishedTable sets each cell beside its published one. Shares are those of the largest cell of its test.
func (g growth) publishedTable() (header []string, rows [][]string) {
	header = []string{"test", "collections", "indexes", "document", "data (on disk), published", "here",
		"logical, published", "here", "min-max", "of the largest, published", "here",
		"files, published", "here", "min-max", "of the largest, published", "here",
		"logical / files, published", "here"}
	for _, c := range g {
		cells := g.test(c.Published.Test)
		last := cells[len(cells)-1].seedTimes()
		t, p := c.seedTimes(), c.Published
		logical, files := c.contender(seedLogical), c.contender(seedTwoPass)
		faster, _ := c.against(seedLogical, seedTwoPass)
		rows = append(rows, []string{
			itoa(p.Test), itoa(p.Collections), itoa(p.Indexes), grouped(int64(p.DocumentBytes)) + " B",
			fmt.Sprintf("%g (%g) GB", p.DataGB, p.DiskGB),
			fmt.Sprintf("%s (%s) MB", figure(float64(c.DataBytes)/1e6), figure(float64(c.DiskBytes)/1e6)),
			fmt.Sprintf("%g min", t.theirLogical), figure(t.ourLogical) + " s", between(logical.Seconds),
			figure(per(t.theirLogical, last.theirLogical)), figure(per(t.ourLogical, last.ourLogical)),
			fmt.Sprintf("%g min", t.theirCopy), figure(t.ourCopy) + " s", between(files.Seconds),
			figure(per(t.theirCopy, last.theirCopy)), figure(per(t.ourCopy, last.ourCopy)),
			figure(per(t.theirLogical, t.theirCopy)), figure(faster.Median),
		})
	}
	return header, rows
}

func between(s Stat) string { return figure(s.Min) + "-" + figure(s.Max) }

// publishedCharts draw each test in relative form, so that the difference between machines cancels out.
func (g growth) publishedCharts(s *plot.Sheet) {
	for number := range publishedTests {
		cells := g.test(number + 1)
		if len(cells) < 2 {
			continue
		}
		draw := cells.overIndexes
		if cells[0].Published.DataGB != cells[1].Published.DataGB {
			draw = cells.overData
		}
		draw(s, fmt.Sprintf("test %d: ", number+1))
	}
}

// overIndexes draws a test whose data are the same in all cells.
func (g growth) overIndexes(s *plot.Sheet, test string) {
	var names []string
	for _, c := range g {
		names = append(names, itoa(c.Indexes))
	}
	place := func(i int, _ *Case) float64 { return float64(i) }
	s.Lines(test+"time over indexes, of the time of most indexes", g.relative(place, func(*Case) float64 { return 1 }),
		names...)
}

// overData draws a test whose data grow with the collections: the time, and the time a gigabyte.
func (g growth) overData(s *plot.Sheet, test string) {
	largest := g[len(g)-1].Published.DataGB
	share := func(_ int, c *Case) float64 { return c.Published.DataGB / largest * 100 }
	s.Lines(test+"time, of that of the largest cell, over its data in %",
		g.relative(share, func(*Case) float64 { return 1 }))
	s.Lines(test+"time a gigabyte, of that of the largest cell, over its data in %",
		g.relative(share, func(c *Case) float64 { return c.Published.DataGB / largest }))
}

// relative are the four lines of a test: times divided by that of the last cell and by what is given.
func (g growth) relative(x func(int, *Case) float64, by func(*Case) float64) []plot.Line {
	lines := []plot.Line{{Name: "files, published"}, {Name: "files, here"}, {Name: "logical, published"},
		{Name: "logical, here"}}
	last := g[len(g)-1].seedTimes()
	for i, c := range g {
		t := c.seedTimes()
		for j, y := range []float64{per(t.theirCopy, last.theirCopy), per(t.ourCopy, last.ourCopy),
			per(t.theirLogical, last.theirLogical), per(t.ourLogical, last.ourLogical)} {
			lines[j].X, lines[j].Y = append(lines[j].X, x(i, c)), append(lines[j].Y, y/by(c))
		}
	}
	return lines
}

// publishedNotes name the cells in which files lose, and the straight lines through the cells whose data grow.
func (g growth) publishedNotes() []string {
	var theirs, ours []string
	for _, c := range g {
		t := c.seedTimes()
		name := fmt.Sprintf("%s (%g GB, %s)", c.Variant, c.Published.DataGB, "%s")
		if t.theirLogical < t.theirCopy {
			theirs = append(theirs, fmt.Sprintf(name, figure(per(t.theirLogical, t.theirCopy))))
		}
		if t.ourLogical < t.ourCopy {
			ours = append(ours, fmt.Sprintf(name, figure(per(t.ourLogical, t.ourCopy))))
		}
	}
	notes := []string{"cells where copying files takes longer than the logical way (logical / files); published: " +
		cmp.Or(strings.Join(theirs, ", "), "none") + "; here: " + cmp.Or(strings.Join(ours, ", "), "none")}
	cells := g.test(publishedTests)
	if len(cells) < 3 {
		return notes
	}
	var data []float64
	times := make([][]float64, 4)
	for _, c := range cells {
		data = append(data, c.Published.DataGB)
		t := c.seedTimes()
		for i, y := range []float64{t.theirCopy, t.theirLogical, t.ourCopy, t.ourLogical} {
			times[i] = append(times[i], y)
		}
	}
	line := func(i int, unit string) string {
		each := slope(data, times[i])
		return fmt.Sprintf("%s %s and %s %s for each 100 published GB", figure(mean(times[i])-each*mean(data)), unit,
			figure(each*100), unit)
	}
	return append(notes, fmt.Sprintf("straight lines through the cells of test %d (time without any data, and growth); "+
		"published: files %s, logical %s; here: files %s, logical %s",
		publishedTests, line(0, "min"), line(1, "min"), line(2, "s"), line(3, "s")))
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}

// partsTable names what the seconds of each seed consist of, medians over the rounds.
func (g growth) partsTable() (header []string, rows [][]string) {
	// A way that locks nothing has no lock to be named.
	var names []string
	for _, p := range seedParts() {
		if slices.ContainsFunc(g, func(c *Case) bool { return c.contender(seedTwoPass).part(p.name) > 0 }) {
			names = append(names, p.name)
		}
	}
	header = append([]string{"seed", "seconds"}, names...)
	for _, c := range g {
		x := c.contender(seedTwoPass)
		row := []string{c.Name(), figure(x.Seconds.Median)}
		for _, name := range names {
			row = append(row, figure(x.part(name)))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// fixedNotes name the parts of the shortest seed that do not grow with the data.
func (g growth) fixedNotes() []string {
	shortest := slices.MinFunc(g, func(a, b *Case) int {
		return cmp.Compare(a.contender(seedTwoPass).Seconds.Median, b.contender(seedTwoPass).Seconds.Median)
	})
	x := shortest.contender(seedTwoPass)
	var sum float64
	var texts []string
	for _, p := range seedParts() {
		if took := x.part(p.name); took > 0 && p.fixed {
			sum += took
			texts = append(texts, p.name+" "+figure(took)+" s")
		}
	}
	return []string{fmt.Sprintf("of the %s s of the shortest, %s, %s s are parts that do not depend on the data: %s",
		figure(x.Seconds.Median), shortest.Name(), figure(sum), strings.Join(texts, "; "))}
}

// PublishedSeed is a cell of a published comparison of file copy and logical initial sync. Its servers were Percona
// Server for MongoDB 8.0.12-4, three members of 4 processors and 16 GB, disks of 1.2 TB and 3600 operations a second.
type PublishedSeed struct {
	Test           int     `json:"test"`        // 1 to 5
	Collections    int     `json:"collections"` // Collections of the set, and secondary indexes of each.
	Indexes        int     `json:"indexes"`
	DocumentBytes  int     `json:"documentBytes"` // DocumentBytes is the size of a document.
	DataGB         float64 `json:"dataGB"`        // DataGB are the documents, DiskGB what they took on disk.
	DiskGB         float64 `json:"diskGB"`
	LogicalMinutes float64 `json:"logicalMinutes"` // LogicalMinutes and CopyMinutes are what the two ways took.
	CopyMinutes    float64 `json:"copyMinutes"`
}

// PublishedSeeds returns all cells in published order. Tests 1 to 4 vary the indexes, test 5 the collections.
func PublishedSeeds() []PublishedSeed {
	return []PublishedSeed{
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

// publishedTests is the number of published tests, publishedShare the part of the data at medium scale.
const (
	publishedTests = 5
	publishedShare = 0.01
)

// cell is its place in the matrix.
func (p PublishedSeed) cell() seedCase { return seedCase{p.Collections, p.Indexes, &p} }

// publishedCells are the cells of some tests; names leaves those of these names.
func publishedCells(tests []int, names []string) ([]seedCase, error) {
	for _, t := range tests {
		if t < 1 || t > publishedTests {
			return nil, mongo.WithHint(fmt.Errorf("there is no published test %d of seeding", t),
				"name tests 1 to "+itoa(publishedTests))
		}
	}
	var cells []seedCase
	left := slices.Clone(names)
	for _, p := range PublishedSeeds() {
		name := p.cell().place()
		if !slices.Contains(tests, p.Test) || len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		cells = append(cells, p.cell())
		left = slices.DeleteFunc(left, func(s string) bool { return s == name })
	}
	if len(left) > 0 {
		return nil,
			mongo.WithHint(fmt.Errorf("the published tests that were chosen have no cell %s", strings.Join(left, ", ")),
				"name cells of these tests as collections x indexes, or leave --cells out")
	}
	return cells, nil
}

// dataset is the cell's data at a scale, in decimal gigabytes as disks are sold.
func (p PublishedSeed) dataset(s Scale) dataset {
	docs := p.DataGB * 1e9 * publishedShare * s.Factor / float64(p.DocumentBytes)
	return dataset{thirdRandom(p.DocumentBytes), max(int(docs), 10*p.Collections), p.Collections}
}

// The values that updates set, of a document that is a third random.
const thirdFields = ycsbFields

// thirdRandom makes documents of a size that take about a third of it on disk, as the published ones did. They have
// ten random integers, and a body of random bytes and a run. The published documents are not known.
func thirdRandom(size int) *shape {
	return &shape{
		name: "ten 32-bit integers, a body; a third of it random", noise: newNoise(), fields: thirdFields, size: size,
		id: func(_ *shape, dst []byte, key uint32) []byte {
			return bsoncore.AppendInt64Element(dst, "_id", int64(mix(uint64(key))))
		},
		body: func(s *shape, dst []byte, key uint32, version []uint32) []byte {
			for f := range thirdFields {
				dst = thirdField(s, dst, key, f, at(version, f))
			}
			return appendBody(s, dst, key)
		},
		field: thirdField,
	}
}

func thirdField(_ *shape, dst []byte, key uint32, field int, version uint32) []byte {
	return bsoncore.AppendInt32Element(dst, "field"+itoa(field),
		int32(mix(mix(uint64(key)<<32|uint64(version))+uint64(field))))
}

func appendBody(s *shape, dst []byte, key uint32) []byte {
	const (
		around    = 4 + 13 + thirdFields*12 + 11 + 1 // length, _id, fields, the body's own header, end
		numbers   = 8 + thirdFields*4                // random bytes outside the body
		unpressed = 70                               // names and headers, as snappy leaves them, and the page's own bytes
		runs      = 21                               // how many times smaller snappy makes a run
	)
	n := max(s.size-around, 0)
	// Somewhat less than a third: a table's file has room that is free.
	random := min(max(s.size*3/10-numbers-unpressed-n/runs, 0), n)
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeBinary, "body")
	dst = append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24), 0)
	dst = append(dst, s.bytes(key, thirdFields, 0, random)...)
	for range n - random {
		dst = append(dst, 'x')
	}
	return dst
}

// stored is the size of the documents and what they take on disk, in bytes, on the member whose files are copied.
func (w *seedWork) stored(ctx context.Context) (data, disk int64, err error) {
	for c := range w.data.collections {
		raw, err := w.source.nodes[w.from].Command(ctx, dataDB, bson.D{{Key: "collStats", Value: collection(c)}})
		if err != nil {
			return 0, 0, fmt.Errorf("ask for the size of %s: %w", collection(c), err)
		}
		size, ok := raw.Lookup("size").AsInt64OK()
		storage, ok2 := raw.Lookup("storageSize").AsInt64OK()
		if !ok || !ok2 {
			return 0, 0, fmt.Errorf("the server returned no size of %s", collection(c))
		}
		data, disk = data+size, disk+storage
	}
	return data, disk, nil
}

type overview struct {
	Title  string
	Header []string
	Rows   [][]string
	Notes  []string
	plot.Sheet
}

// overviews are those of a report, none where it has no such cases.
func (r *Report) overviews() []overview {
	all := r.seedOverviews()
	if c := r.chaining(); len(c) > 0 {
		header, rows := c.table()
		all = append(all, overview{Title: "Chaining off against on, beside what was published", Header: header, Rows: rows})
	}
	return all
}

// seedOverviews are those of new members.
func (r *Report) seedOverviews() (all []overview) {
	own, published := r.seeded()
	if len(own) > 0 {
		o := overview{Title: "How both ways to a new member grow"}
		o.Header, o.Rows = own.table()
		own.charts(&o.Sheet)
		all = append(all, o)
	}
	if len(published) > 0 {
		o := overview{Title: "Logical initial sync and files, published and here", Notes: published.publishedNotes()}
		o.Header, o.Rows = published.publishedTable()
		published.publishedCharts(&o.Sheet)
		all = append(all, o)
	}
	if g := slices.Concat(own, published); len(g) > 0 {
		o := overview{Title: "What the seconds of a seed consist of", Notes: g.fixedNotes()}
		o.Header, o.Rows = g.partsTable()
		all = append(all, o)
	}
	return all
}

// seeded are the cases of new members: of the scenario's own matrix, and of published cells.
func (r *Report) seeded() (own, published growth) {
	for i := range r.Cases {
		c := &r.Cases[i]
		switch {
		case len(c.contender(seedTwoPass).Rounds) == 0 || len(c.contender(seedLogical).Rounds) == 0:
		case c.Published != nil:
			published = append(published, c)
		default:
			own = append(own, c)
		}
	}
	return own, published
}
