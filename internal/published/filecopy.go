package published

import (
	"strconv"

	"github.com/dustin/go-humanize"
)

// fileTest is one of the published tests: sets of some size with several
// numbers of indexes.
type fileTest struct {
	number, collections int
	document            string
	gigabytes, onDisk   int // of all documents
	cells               []fileCell
}

// fileCell is the minutes of both ways with so many indexes.
type fileCell struct {
	indexes        int
	logical, files float64
}

// fileTests are the first four tests.
func fileTests() []fileTest {
	return []fileTest{
		{1, 1, "500 B", 30, 10, []fileCell{{1, 4, 2}, {2, 5, 2}, {5, 8, 3}, {10, 12, 3}}},
		{2, 2, "10 KB", 300, 100, []fileCell{{2, 25, 9}, {3, 26, 11}, {4, 28, 12}, {5, 29, 12}}},
		{3, 5, "10 KB", 1_500, 500, []fileCell{{1, 111, 44}, {4, 125, 46}, {7, 129, 46}, {10, 131, 48}}},
		{4, 60, "8 KB", 3_000, 1_000, []fileCell{{0, 212, 87}, {5, 235, 93}, {10, 275, 102}}},
	}
}

// growthCell is a set of the fifth test, of five indexes a collection.
type growthCell struct {
	collections       int
	gigabytes, onDisk int
	logical, files    float64 // minutes
}

// growthCells are the fifth test, in which the data grow with the collections.
func growthCells() []growthCell {
	return []growthCell{
		{1, 4, 2, 1, 2}, {5, 30, 10, 4, 2}, {10, 66, 22, 9, 3}, {20, 123, 41, 17, 5},
		{40, 230, 76, 35, 9}, {60, 330, 110, 54, 13}, {80, 426, 142, 82, 17}, {100, 530, 177, 96, 21},
	}
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
		},
		Absent: []Absent{
			{"Percona Server for MongoDB 8.0.12-4 with its own file copy", "there is no program of it, nor another mongod of 8.0, for this machine; the servers are mongod 6.0"},
			{"sets of 30 GB to 3 TB", "the disk does not hold them; the sizes are those that the scale says"},
			{"members on machines and disks of their own", "there is one machine with one disk"},
		},
		Groups: []Group{fileTestGroup(), fileGrowthGroup()},
		charts: fileCharts,
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
	for _, t := range fileTests() {
		for _, c := range t.cells {
			k := key(strconv.Itoa(t.number), strconv.Itoa(c.indexes))
			r := Row{Key: k, Place: []string{strconv.Itoa(t.number), strconv.Itoa(t.collections), t.document, sizes(t.gigabytes, t.onDisk), strconv.Itoa(c.indexes)},
				Published: values(c.logical, c.files), Ratio: over(k, "logical", "files"), Why: samePlace}
			g.Rows = append(g.Rows, r)
		}
	}
	g.Rows[len(g.Rows)-2].Headlines = []Headline{{Text: "a new member, 60 collections of 5 indexes: logical / file copy"}}
	return g
}

func fileGrowthGroup() Group {
	g := Group{
		Title: "Test 5: data that grow with the collections, 5 indexes each, documents of 3 KB", Place: []string{"collections", "data (on disk)"},
		Columns: fileColumns(), Ratio: "logical / file copy",
	}
	for _, c := range growthCells() {
		k := key("5", strconv.Itoa(c.collections))
		r := Row{Key: k, Place: []string{strconv.Itoa(c.collections), sizes(c.gigabytes, c.onDisk)},
			Published: values(c.logical, c.files), Ratio: over(k, "logical", "files"), Why: samePlace}
		if c.logical < c.files {
			r.Why = "Here copying files loses in the publication: what it does beside the copying takes longer than all of the logical way. " + samePlace
		}
		g.Rows = append(g.Rows, r)
	}
	g.Rows[0].Headlines = []Headline{{Text: "the smallest set, one collection of 4 GB: logical / file copy"}}
	g.Rows[len(g.Rows)-1].Headlines = []Headline{{Text: "100 collections, 530 GB: logical / file copy"}}
	return g
}

// sizes are gigabytes of data, and of files.
func sizes(gigabytes, onDisk int) string {
	return humanize.Comma(int64(gigabytes)) + " (" + humanize.Comma(int64(onDisk)) + ") GB"
}
