package published

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/test/golden"
	"github.com/millrace/millrace/workshop/bench"
)

// invented are small results: made up for this test, of no machine.
func invented(t *testing.T) *Results {
	t.Helper()
	r, err := Read("testdata/results.json")
	if err != nil || len(r.Tables) == 0 {
		t.Fatal(len(r.Tables), err)
	}
	return r
}

// TestGoldenPage writes the page of small results.
func TestGoldenPage(t *testing.T) {
	var b strings.Builder
	charts, err := Page(&b, invented(t), "published")
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "published.md", b.String())
	var names []string
	for _, c := range charts {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(c.Name, "img/published-"), ".svg"))
		if !strings.HasPrefix(c.Text, "<svg") || !strings.Contains(b.String(), "("+c.Name+")") {
			t.Errorf("%s is not a picture of the page: %.40q", c.Name, c.Text)
		}
	}
	want := []string{"1-ratios", "1-full-one-rate", "3-growth-published", "3-growth-here", "5-writes-published",
		"5-cpu-published", "5-writes-here", "5-cpu-here"}
	if !slices.Equal(names, want) {
		t.Errorf("charts %q, want %q", names, want)
	}
}

// TestPageOfNothing has all published figures, and says that none was measured.
func TestPageOfNothing(t *testing.T) {
	var b strings.Builder
	charts, err := Page(&b, &Results{}, "published")
	if err != nil || len(charts) > 0 {
		t.Fatal(charts, err)
	}
	if n := strings.Count(b.String(), "**Measured** not yet."); n != 5 {
		t.Errorf("%d tables are said not to be measured", n)
	}
	for _, want := range []string{"| 11,000 | 1.38 |", "+43.5 %", "local SSD ahead by 7–50 %", "120,030"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestRatios are of rounds where both sides have the same number of them.
func TestRatios(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{"a": {10, 20, 30}, "b": {10, 10, 10}, "c": {5, 5}, "zero": {0, 1, 2}}}
	for _, c := range []struct {
		of   string
		to   []string
		want bench.Stat
		ok   bool
	}{
		{"a", []string{"b"}, bench.Stat{Median: 2, Min: 1, Max: 3}, true},
		{"a", []string{"c"}, bench.Stat{Median: 4, Min: 4, Max: 4}, true},
		{"b", []string{"a", "c"}, bench.Stat{Median: 0.5, Min: 1.0 / 3, Max: 1}, true}, // the better of both
		{"a", []string{"none"}, bench.Stat{}, false},
		{"a", []string{"b", "none"}, bench.Stat{}, false},
		{"none", []string{"a"}, bench.Stat{}, false},
		{"a", []string{"zero"}, bench.Stat{}, false},
	} {
		if got, ok := m.ratio(Ratio{c.of, c.to}); ok != c.ok || got != c.want {
			t.Errorf("%s of %s: %+v, %v", c.of, c.to, got, ok)
		}
	}
}

// TestWriteAndRead: a document is what was written, with lists on one line.
func TestWriteAndRead(t *testing.T) {
	r := &Results{}
	r.Put(1,
		&Measured{Version: "[\n1 ]", Figures: map[string][]float64{"full-one/millrace": {1.5, 2e-9, 3}, "full-one/dts": {}}})
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\n    \"full-one/millrace\": [1.5, 2e-9, 3]") {
		t.Error(b.String())
	}
	path := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFill(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{"a/b": {1000, 3000, 2000}}}
	if got := m.fill("there 5, here {a/b} and {c}"); got != "there 5, here 2,000 and (not measured)" {
		t.Error(got)
	}
}

// TestMerge: a table that is measured replaces itself alone, and only when it
// gave figures.
func TestMerge(t *testing.T) {
	r := invented(t)
	was := *r.Of(1)
	failing := errors.New("it broke")
	tables, err := Find([]int{3, 5})
	if err != nil {
		t.Fatal(err)
	}
	runners := map[int]Runner{
		3: runs(func(m *Measured) error { m.set("5/1/files", []float64{2.123456}); return failing }),
		5: runs(func(*Measured) error { return nil }),
	}
	five := r.Of(5)
	kept := 0
	err = Run(t.Context(), tables, Options{Options: bench.Options{Rounds: 1}}, runners,
		func(table *Table, m *Measured) error {
			kept++
			r.Put(table.Number, m)
			return nil
		})
	if !errors.Is(err, failing) || !strings.Contains(err.Error(), "table 5: nothing was measured") || kept != 1 {
		t.Errorf("%d kept, %v", kept, err)
	}
	if got := r.Of(3).Figures; len(got) != 1 || got["5/1/files"][0] != 2.1235 {
		t.Errorf("table 3: %v", got)
	}
	if r.Of(5) != five || r.Of(1).Version != was.Version {
		t.Error("other tables were changed")
	}
}

// TestStop: a run that is stopped before it has measured anything keeps nothing,
// and the tables after it are not begun. TestCut is of one that has measured.
func TestStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tables, _ := Find([]int{1, 2})
	runners := map[int]Runner{
		1: runs(func(*Measured) error { cancel(); return ctx.Err() }),
		2: runs(func(*Measured) error { t.Error("the next table was begun"); return nil }),
	}
	err := Run(ctx, tables, Options{Options: bench.Options{Rounds: 1}}, runners,
		func(*Table, *Measured) error { t.Error("kept"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// runs is a runner of a test.
type runs func(*Measured) error

func (r runs) Measure(_ context.Context, _ Options, m *Measured) error { return r(m) }

// TestFiguresOfNoTable are refused, measured or read.
func TestFiguresOfNoTable(t *testing.T) {
	tables, _ := Find([]int{1})
	wrong := map[int]Runner{1: runs(func(m *Measured) error { m.set("full-two/x", []float64{1}); return nil })}
	err := Run(t.Context(), tables, Options{Options: bench.Options{Rounds: 1}}, wrong,
		func(*Table, *Measured) error { t.Error("kept"); return nil })
	if err == nil || !strings.Contains(err.Error(), "full-two/x") {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"figure": `{"tables": {"1": {"figures": {"full-two/x": [1]}}}}`, "table": `{"tables": {"6": {}}}`,
		"no number": `{"tables": {"x": {}}}`,
		"other":     `{"cases": []}`, "no JSON": `x`, "null": `{"tables": {"1": null}}`,
	} {
		path := filepath.Join(t.TempDir(), "r.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil {
			t.Errorf("%s: it was read", name)
		}
	}
}

// TestCompare: what is apart is said, with what chance gives, and nothing is judged that
// has one round.
func TestCompare(t *testing.T) {
	of := func(figures map[string][]float64) *Results {
		r := &Results{}
		r.Put(1, &Measured{Scale: "small", Figures: figures})
		return r
	}
	was := of(map[string][]float64{"same": {10, 11, 12}, "near": {10, 11, 12}, "far": {10, 11, 12}, "one": {5},
		"gone": {1, 2}, "none": {0, 0, 0},
		"full-one/millrace": {10, 11, 12}, "full-one/mongoshake": {10, 11, 12}})
	is := of(map[string][]float64{"same": {10, 11, 12}, "near": {12, 14, 15}, "far": {20, 22, 24}, "one": {9},
		"new": {1, 2}, "none": {0, 0, 0},
		"full-one/millrace": {20, 22, 24}, "full-one/mongoshake": {20, 22, 24}})
	c := Compare(was, is)
	var apart []string
	for _, d := range c.Figures.Apart {
		apart = append(apart, d.Key)
	}
	if want := []string{"far", "full-one/millrace", "full-one/mongoshake"}; c.Figures.Compared != 5 ||
		!slices.Equal(apart, want) || math.Abs(c.Figures.Chance-0.5) > 1e-9 || c.Figures.Most != 1 {
		t.Errorf("figures: %+v", c.Figures)
	}
	if r := c.Ratios; r.Compared != 1 || len(r.Apart) != 0 || r.Differs() || len(c.Unjudged) != 3 || len(c.Skipped) != 0 {
		t.Errorf("%+v", c)
	}
	if !c.Figures.Differs() || !strings.Contains(c.Text(), "table 1, far: 11.0 (10.0–12.0), then 22.0 (20.0–24.0)") {
		t.Error(c.Text())
	}
	is.Of(1).Machine.System = "another kernel"
	if c := Compare(was, is); c.Figures.Compared != 5 || len(c.Notes) != 1 || len(c.Skipped) != 0 {
		t.Errorf("another kernel: %+v", c)
	}
	is.Of(1).Machine.Cores = 2
	if c := Compare(was, is); c.Figures.Compared != 0 || len(c.Skipped) != 1 {
		t.Errorf("another machine: %+v", c)
	}
}

// TestDiffers: as many are apart as chance gives, or a few more, is no difference.
func TestDiffers(t *testing.T) {
	for _, c := range []struct {
		apart  int
		chance float64
		want   bool
	}{{0, 0, false}, {1, 0, true}, {1, 0.1, false}, {2, 0.2, true}, {7, 3.9, false}, {8, 3.9, true}, {3, 3.9, false}} {
		s := Shift{Apart: make([]Difference, c.apart), Chance: c.chance}
		if s.Differs() != c.want {
			t.Errorf("%d apart where chance gives %g: %v", c.apart, c.chance, s.Differs())
		}
	}
}

// TestBefore: what is measured again keeps the run before, of the same work only.
func TestBefore(t *testing.T) {
	r, started := &Results{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := &Measured{Scale: "small", Rounds: 2, Started: started,
		Figures: map[string][]float64{"full-one/millrace": {10, 12}, "full-one/mongoshake": {10, 10}}}
	r.Put(1, first)
	r.Put(1, &Measured{Scale: "small", Rounds: 2,
		Figures: map[string][]float64{"full-one/millrace": {20, 24}, "full-one/mongoshake": {10, 10}}})
	got := r.Of(1)
	if got.Before == nil || !got.Before.Started.Equal(started) {
		t.Fatalf("%+v", got.Before)
	}
	tables, _ := Find([]int{1})
	text := strings.Join(got.work(&tables[0]), "\n")
	for _, want := range []string{"Compared with the run of 2026-01-02 03:04:05, 1 of 2 figures changed in all rounds " +
		"(by chance 0.7). Medians moved by 50 % (the middle one), 100 % at most", "1 of 1 ratio changed"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if line := Summary(r)[0]; line.Before != "1.10 (1.00–1.20)" || line.Here != "2.20 (2.00–2.40)" {
		t.Errorf("%+v", line)
	}
	r.Put(1, &Measured{Scale: "medium", Figures: map[string][]float64{"full-one/millrace": {20}}})
	if r.Of(1).Before != nil {
		t.Error("other work is no run before")
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 123456.7: 123460, 0.0123456: 0.012346, -1.234567: -1.2346} {
		if got := short(v); got != want {
			t.Errorf("%g became %g, want %g", v, got, want)
		}
	}
}

// TestPageOfEverything: with all figures measured nothing is said to be missing,
// and each table has its charts.
func TestPageOfEverything(t *testing.T) {
	r := &Results{}
	for _, table := range Tables() {
		m := &Measured{Rounds: 2, Figures: map[string][]float64{}}
		for i, f := range table.Figures() {
			if f.Absent == "" {
				m.set(f.Key, []float64{float64(100 + i), float64(101 + i)})
			}
		}
		r.Put(table.Number, m)
	}
	var b strings.Builder
	charts, err := Page(&b, r, "all")
	if err != nil || strings.Contains(b.String(), "Not measured") {
		t.Fatal(err, b.String())
	}
	var names []string
	for _, c := range charts {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(c.Name, "img/all-"), ".svg"))
	}
	want := []string{"1-ratios", "2-rate", "2-ral", "2-wal", "2-classes-100-0", "2-classes-95-5",
		"2-classes-50-50", "2-classes-5-95", "2-classes-0-100", "2-classes-difference", "3-growth-published", "3-growth-here",
		"4-cpu-published", "4-memory-published", "4-cpu-here", "4-memory-here", "5-writes-published", "5-cpu-published",
		"5-writes-here", "5-cpu-here"}
	if !slices.Equal(names, want) {
		t.Errorf("charts %q, want %q", names, want)
	}
	for _, line := range Summary(r) {
		if line.Published == none || line.Here == none {
			t.Errorf("the summary lacks a side: %+v", line)
		}
	}
}

// TestPageOfOneFigure: whatever single figure was measured, the page can be
// written.
func TestPageOfOneFigure(t *testing.T) {
	for _, table := range Tables() {
		for _, f := range table.Figures() {
			r := &Results{}
			r.Put(table.Number, &Measured{Rounds: 1, Figures: map[string][]float64{f.Key: {1.5}}})
			if _, err := Page(io.Discard, r, "one"); err != nil {
				t.Errorf("table %d, %s: %v", table.Number, f.Key, err)
			}
		}
	}
}
