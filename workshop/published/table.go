// Package published holds what others have published of their tools, table by
// table, measures what this machine gives for it, and writes the page that
// shows both side by side.
//
// The published figures are data here, or in the package that measures itself
// against them. A cell that was not published is missing: nobody guesses it. What
// was measured comes from runs only and is kept as a JSON document, from which the
// page can be written again at any time. The measurements themselves are those of
// packages bench and ycsb; each table has one file that asks them for its figures.
package published

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/workshop/bench"
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
	Millis    Unit = "ms"
	Micros    Unit = "µs"
)

// texts are the words of all tables, in their order.
//
//go:embed tables.yaml
var texts []byte

// Table is one published table.
type Table struct {
	Number  int // Number is its place in the list of tables, from 1.
	Title   string
	Picture string // Picture is the chart that the page shows; it names the others.
	// By is who published it, Machine what was measured on, Conditions what was
	// measured and how.
	By, Machine, Conditions string
	// Says is what the publication concludes, or shows as a picture without
	// figures.
	Says   []string
	Here   []string          // Here is what stands in the place of the published machine and sizes.
	Absent []Absent          // Absent is what cannot be had here.
	Why    map[string]string // Why has the reasons for which figures differ, by the names that rows know them by.
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
	Title   string
	Place   []string // Place are the headings of what tells the rows apart.
	Columns []Column
	Ratio   string // Ratio is the heading of the ratio, empty where nothing is compared.
	Change  bool   // Change shows ratios as differences in per cent.
	Rows    []Row
}

// Column is one figure of each row.
type Column struct {
	Key      string // Key ends the keys of the column's figures.
	Name     string // Name and Unit are those of the publication.
	Unit     Unit
	HereName string // HereName and HereUnit are what is measured here; empty is the same.
	HereUnit Unit
}

// Row is the figures of one place.
type Row struct {
	Key   string // Key begins the keys of the row's figures.
	Place []string
	// Published are the figures in the order of the columns; nil is one that was
	// not published. None at all is a row of ours.
	Published []*float64
	Stated    string // Stated is what the publication says of the ratio where it has no figures.
	Ratio     Ratio  // Ratio is what is compared; empty compares nothing.
	// Absent says why nothing can be measured here, Why what makes the ratio
	// differ. {key} stands for the median of a figure that was measured.
	Absent, Why string
	Headlines   []Headline // Headlines are what the summary has of the row.
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
	Own       bool   // Own says that it belongs to a row of ours.
	Absent    string // Absent says why it cannot be measured here.
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
	var all []Table
	if err := yaml.Unmarshal(texts, &all); err != nil {
		panic(err) // constant
	}
	for i, fill := range []func(*Table){dts, ycsbPaper, fileCopy, ddt, chaining} {
		fill(&all[i])
	}
	return all
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

// Results are what was measured, table by table: the document beside the page.
type Results struct {
	Tables map[string]*Measured `json:"tables"` // Tables by their numbers.
}

// Measured is one run of a table.
type Measured struct {
	Version string        `json:"version"` // of millrace
	Command string        `json:"command"`
	Machine bench.Machine `json:"machine"`
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended"`
	Scale   string        `json:"scale"`
	Sizes   string        `json:"sizes"` // Sizes says how the work relates to the published one.
	Rounds  int           `json:"rounds"`
	Cut     bool          `json:"cut,omitempty"` // Cut: the run was ended before it was done.
	// Figures are the values of the rounds by the keys of the table's figures, in the units that are measured here.
	Figures map[string][]float64 `json:"figures"`
	Missing map[string]string    `json:"missing,omitempty"` // Missing says why figures were not measured, by key.
	Curves  []Curve              `json:"curves,omitempty"`  // Curves are what was seen over time.
	Notes   []string             `json:"notes,omitempty"`   // Notes say what else belongs to the figures.
	Before  *Earlier             `json:"before,omitempty"`  // Before is the run that this one has repeated; nil for none.
}

// Curve is one line of a chart of something over time.
type Curve struct {
	Chart string    `json:"chart"` // Chart names the chart, and the file that it becomes; Title is above it.
	Title string    `json:"title"`
	Name  string    `json:"name"` // Name is the line's.
	X     []float64 `json:"x"`    // X are seconds.
	Y     []float64 `json:"y"`
}

// Read reads a document; a file that is not there is empty results.
func Read(path string) (*Results, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Results{Tables: map[string]*Measured{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var r Results
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("read results %s: %w", path, err)
	}
	return &r, r.check(path)
}

// check finds what no run of this program has written.
func (r *Results) check(path string) error {
	if len(r.Tables) == 0 {
		return fmt.Errorf("results %s have no table", path)
	}
	tables := Tables()
	for name, m := range r.Tables {
		n, err := strconv.Atoi(name)
		if err != nil || m == nil {
			return fmt.Errorf("results %s: unknown table %q", path, name)
		}
		if n < 1 || n > len(tables) {
			return fmt.Errorf("results %s: there is no table %d; use 1 to %d", path, n, len(tables))
		}
		if err := m.check(&tables[n-1]); err != nil {
			return fmt.Errorf("results %s: table %d: %w", path, n, err)
		}
	}
	return nil
}

// check fails for figures that the table does not have: they would be lost without a word.
func (m *Measured) check(t *Table) error {
	known := map[string]bool{}
	for _, f := range t.Figures() {
		known[f.Key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(m.Figures)) {
		if !known[key] {
			return fmt.Errorf("the table has no figure %q; measure it again", key)
		}
	}
	return nil
}

// Write writes the document, with a line for each list of numbers.
func (r *Results) Write(w io.Writer) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	// No string of JSON has a line break in it, so that these are lists.
	lists := regexp.MustCompile(`\[\n[-+.,0-9eE\s]*\]`)
	text := lists.ReplaceAllFunc(b.Bytes(), func(list []byte) []byte {
		return bytes.ReplaceAll(bytes.Join(bytes.Fields(list), nil), []byte(","), []byte(", "))
	})
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// Better reports whether a run replaces what is known: it is complete, or has more figures than another cut off.
func (r *Results) Better(table int, m *Measured) bool {
	was := r.Of(table)
	return was == nil || !m.Cut || was.Cut && len(m.Figures) > len(was.Figures)
}

// Put replaces one table. The earlier run of the same work on the same machine stays as Before.
func (r *Results) Put(table int, m *Measured) {
	if r.Tables == nil {
		r.Tables = map[string]*Measured{}
	}
	if was := r.Of(table); was != nil && m != nil && !was.Cut && m.repeats(was) {
		m.Before = &Earlier{Version: was.Version, Started: was.Started, Figures: was.Figures}
	}
	r.Tables[strconv.Itoa(table)] = m
}

// Of is what was measured for a table, nil for nothing.
func (r *Results) Of(table int) *Measured { return r.Tables[strconv.Itoa(table)] }

// figure is the median and extremes of a figure, and whether there is one.
func (m *Measured) figure(key string) (bench.Stat, bool) {
	if m == nil || len(m.Figures[key]) == 0 {
		return bench.Stat{}, false
	}
	return bench.StatOf(m.Figures[key]), true
}

// ratio is a figure divided by the best of others, round by round where possible, else by medians.
func (m *Measured) ratio(r Ratio) (bench.Stat, bool) {
	if m == nil {
		return bench.Stat{}, false
	}
	all := ratios(m.Figures, r)
	if len(all) == 0 {
		return bench.Stat{}, false
	}
	return bench.StatOf(all), true
}

// ratios are those of the rounds, or the one of the medians.
func ratios(figures map[string][]float64, r Ratio) (all []float64) {
	mine, to := figures[r.Of], best(figures, r.To)
	theirs := figures[to]
	if len(mine) == 0 || to == "" || slices.Contains(theirs, 0) {
		return nil
	}
	if len(mine) != len(theirs) {
		return []float64{bench.StatOf(mine).Median / bench.StatOf(theirs).Median}
	}
	for i := range mine {
		all = append(all, mine[i]/theirs[i])
	}
	return all
}

// best is the key with the largest median; empty unless all were measured.
func best(figures map[string][]float64, keys []string) (best string) {
	var most float64
	for _, key := range keys {
		if len(figures[key]) == 0 {
			return ""
		}
		if s := bench.StatOf(figures[key]); best == "" || s.Median > most {
			best, most = key, s.Median
		}
	}
	return best
}

// noise is the median and the largest relative spread of figures with several rounds, and their number.
func (m *Measured) noise() (middle, most float64, figures int) {
	var all []float64
	for _, rounds := range m.Figures {
		if s := bench.StatOf(rounds); len(rounds) > 1 && s.Median != 0 {
			all = append(all, s.Spread())
		}
	}
	s := bench.StatOf(all)
	return s.Median, s.Max, len(all)
}
