package published

import (
	"bytes"
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
	"time"

	"github.com/millrace/millrace/workshop/bench"
)

// Results are what was measured, table by table: the document beside the page.
type Results struct {
	// Tables by their numbers.
	Tables map[string]*Measured `json:"tables"`
}

// Measured is one run of a table.
type Measured struct {
	Version string        `json:"version"` // of millrace
	Command string        `json:"command"`
	Machine bench.Machine `json:"machine"`
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended"`
	Scale   string        `json:"scale"`
	// Sizes says how the work relates to the published one.
	Sizes  string `json:"sizes"`
	Rounds int    `json:"rounds"`
	// Cut: the run was ended before it was done.
	Cut bool `json:"cut,omitempty"`
	// Figures are the values of the rounds by the keys of the table's figures,
	// in the units that are measured here.
	Figures map[string][]float64 `json:"figures"`
	// Missing says why figures were not measured, by key.
	Missing map[string]string `json:"missing,omitempty"`
	// Curves are what was seen over time.
	Curves []Curve `json:"curves,omitempty"`
	// Notes say what else belongs to the figures.
	Notes []string `json:"notes,omitempty"`
	// Before is the run that this one has repeated; nil for none.
	Before *Earlier `json:"before,omitempty"`
}

// Curve is one line of a chart of something over time.
type Curve struct {
	// Chart names the chart, and the file that it becomes; Title is above it.
	Chart string `json:"chart"`
	Title string `json:"title"`
	// Name is the line's.
	Name string `json:"name"`
	// X are seconds.
	X []float64 `json:"x"`
	Y []float64 `json:"y"`
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
		return fmt.Errorf("results %s hold no table", path)
	}
	for name, m := range r.Tables {
		n, err := strconv.Atoi(name)
		if err != nil || m == nil {
			return fmt.Errorf("results %s: %q is no table", path, name)
		}
		tables, err := Find([]int{n})
		if err != nil {
			return fmt.Errorf("results %s: %w", path, err)
		}
		if err := m.check(&tables[0]); err != nil {
			return fmt.Errorf("results %s: table %d: %w", path, n, err)
		}
	}
	return nil
}

// check fails for figures that the table does not have: they would be lost
// without a word.
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

// Better reports whether what a run measured of a table takes the place of what is
// known: a whole run does, and of a run that was cut off what has more figures than
// another such.
func (r *Results) Better(table int, m *Measured) bool {
	was := r.Of(table)
	return was == nil || !m.Cut || was.Cut && len(m.Figures) > len(was.Figures)
}

// Put replaces what is known of one table, and nothing else. What was measured of the same
// work on the same machine stays with it, as the run before.
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

// ratio is a figure divided by the best of others, round by round where they
// have the same rounds, else that of the medians.
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

// noise is the middle and the largest of the figures' spreads, each as a part
// of its median, and of how many figures; those of one round, and those that are 0, have
// none.
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
