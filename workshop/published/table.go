package published

import (
	"fmt"
	"slices"
	"strings"
)

// Unit is what a figure counts.
type Unit string

// The units of the tables.
const (
	PerSecond Unit = "a second"
	Minutes   Unit = "minutes"
	Seconds   Unit = "s"
	Percent   Unit = "%"
	Megabytes Unit = "MB"
	Micros    Unit = "µs"
)

// Table is one published table.
type Table struct {
	// Number is its place in the list of tables, from 1.
	Number int
	Title  string
	// By is who published it, Machine what was measured on, Conditions what was
	// measured and how.
	By, Machine, Conditions string
	// Says is what the publication concludes, or shows as a picture without
	// figures.
	Says []string
	// Here is what stands in the place of the published machine and sizes.
	Here []string
	// Absent is what cannot be had here.
	Absent []Absent
	Groups []Group
	// found says what figures of here show beside the table's cells; nil is nothing.
	found func(*Measured) []string
	// charts draws the table, published and here.
	charts func(*charts, *Table, *Measured)
}

// Absent is something of a publication that cannot be had here, and why.
type Absent struct{ What, Why string }

// Group is rows of one form.
type Group struct {
	Title string
	// Place are the headings of what tells the rows apart.
	Place   []string
	Columns []Column
	// Ratio is the heading of the ratio, empty where nothing is compared.
	Ratio string
	// Change shows ratios as differences in per cent.
	Change bool
	Rows   []Row
}

// Column is one figure of each row.
type Column struct {
	// Key ends the keys of the column's figures.
	Key string
	// Name and Unit are those of the publication.
	Name string
	Unit Unit
	// HereName and HereUnit are what is measured here; empty is the same.
	HereName string
	HereUnit Unit
}

// Row is the figures of one place.
type Row struct {
	// Key begins the keys of the row's figures.
	Key   string
	Place []string
	// Published are the figures in the order of the columns; nil is one that was
	// not published. None at all is a row of ours.
	Published []*float64
	// Stated is what the publication says of the ratio where it has no figures.
	Stated string
	// Ratio is what is compared; empty compares nothing.
	Ratio Ratio
	// Absent says why nothing can be measured here, Why what makes the ratio
	// differ. {key} stands for the median of a figure that was measured.
	Absent, Why string
	// Headlines are what the summary has of the row.
	Headlines []Headline
}

// Headline is a line of the summary: the row's ratio or, with a key, a figure.
type Headline struct{ Text, Key string }

// Ratio is one figure divided by the best of others.
type Ratio struct {
	Of string
	To []string
}

// String names it: what is divided by what.
func (r Ratio) String() string { return r.Of + " of " + strings.Join(r.To, " or ") }

// Figure is one cell with its key, which is unique within the table.
type Figure struct {
	Key       string
	Published *float64
	Unit      Unit
	// Own says that it belongs to a row of ours.
	Own bool
	// Absent says why it cannot be measured here.
	Absent string
}

// key joins the key of a row and of a column; either may be empty.
func key(row, column string) string {
	if column == "" {
		return row
	}
	return row + "/" + column
}

// Figures are all cells of the table in the order of the page.
func (t *Table) Figures() (all []Figure) {
	for _, g := range t.Groups {
		for _, r := range g.Rows {
			for i, c := range g.Columns {
				f := Figure{Key: key(r.Key, c.Key), Unit: c.Unit, Own: len(r.Published) == 0, Absent: r.Absent}
				if i < len(r.Published) {
					f.Published = r.Published[i]
				}
				all = append(all, f)
			}
		}
	}
	return all
}

// published is the value of a figure, and whether there is one.
func (t *Table) published(key string) (float64, bool) {
	all := t.Figures()
	i := slices.IndexFunc(all, func(f Figure) bool { return f.Key == key })
	if i < 0 || all[i].Published == nil {
		return 0, false
	}
	return *all[i].Published, true
}

// ratio is a published ratio, and whether both sides were published.
func (t *Table) ratio(r Ratio) (float64, bool) {
	of, ok := t.published(r.Of)
	if !ok {
		return 0, false
	}
	var best float64
	for _, key := range r.To {
		to, ok := t.published(key)
		if !ok {
			return 0, false
		}
		best = max(best, to)
	}
	if best == 0 {
		return 0, false
	}
	return of / best, true
}

// Tables are the five published tables.
func Tables() []Table {
	return []Table{dts(), ycsbPaper(), fileCopy(), ddt(), chaining()}
}

// Find gives the tables of these numbers, all if there are none.
func Find(numbers []int) ([]Table, error) {
	all := Tables()
	if len(numbers) == 0 {
		return all, nil
	}
	var chosen []Table
	for _, n := range numbers {
		if n < 1 || n > len(all) {
			return nil, fmt.Errorf("there is no table %d; use 1 to %d", n, len(all))
		}
		if !slices.ContainsFunc(chosen, func(t Table) bool { return t.Number == n }) {
			chosen = append(chosen, all[n-1])
		}
	}
	return chosen, nil
}

// values are published figures.
func values(v ...float64) (all []*float64) {
	for _, n := range v {
		all = append(all, new(n))
	}
	return all
}

// over compares two columns of a row.
func over(row, of, to string) Ratio {
	return Ratio{Of: key(row, of), To: []string{key(row, to)}}
}
