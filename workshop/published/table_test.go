package published

import (
	"fmt"
	"math"
	"testing"
)

// TestPublishedCells counts the figures of each table, and adds them up: none
// may be lost, changed or there twice.
func TestPublishedCells(t *testing.T) {
	for i, want := range []struct {
		figures int
		sum     float64
	}{
		{12, 8_000 + 11_000 + 18_000 + 15_000 + 20_000 + 44_000 + 49_000 + 28_000 + 0 + 23_000 + 23_000 + 46_000},
		{0, 0},
		// Tests 1 to 4, then the fifth: logical, and file copy.
		{46, 29 + 10 + 108 + 44 + 496 + 184 + 722 + 282 + (1 + 4 + 9 + 17 + 35 + 54 + 82 + 96) +
			(2 + 2 + 3 + 5 + 9 + 13 + 17 + 21)},
		// Rates, processors, memory, processor time of one.
		{32, 307_536 + 420_119 + 1_080 + 1_240 + 52_429 + 49_282 + 141 + 117.9},
		// Majority and w:1, then the processors of each.
		{24, 11_214 + 12_676 + 43_582 + 33_777 + 179 + 241 + 274 + 280},
	} {
		table := Tables()[i]
		n, sum, keys := 0, 0.0, map[string]bool{}
		for _, f := range table.Figures() {
			if keys[f.Key] {
				t.Errorf("table %d has %q twice", table.Number, f.Key)
			}
			keys[f.Key] = true
			if f.Published == nil {
				continue
			}
			n++
			sum += *f.Published
		}
		if n != want.figures || math.Abs(sum-want.sum) > 1e-6 || table.Number != i+1 {
			t.Errorf("table %d has %d figures with the sum %g, want %d with %g", table.Number, n, sum, want.figures, want.sum)
		}
	}
}

// TestRows: each row has what its group's columns ask for, a reason, and ratios
// of figures that there are.
func TestRows(t *testing.T) {
	for _, table := range Tables() {
		known := map[string]bool{}
		for _, f := range table.Figures() {
			known[f.Key] = true
		}
		for _, g := range table.Groups {
			for _, r := range g.Rows {
				name := fmt.Sprintf("table %d, %s, %s", table.Number, g.Title, r.Key)
				if len(r.Place) != len(g.Place) || len(r.Published) > 0 && len(r.Published) != len(g.Columns) {
					t.Errorf("%s: %d places and %d figures, want %d and %d", name, len(r.Place), len(r.Published), len(g.Place),
						len(g.Columns))
				}
				if (r.Why == "") == (r.Absent == "") {
					t.Errorf("%s: says %q and %q of its difference", name, r.Why, r.Absent)
				}
				for _, k := range append(r.Ratio.To, r.Ratio.Of) {
					if k != "" && !known[k] {
						t.Errorf("%s: compares %q, which is not there", name, k)
					}
				}
				if g.Ratio == "" && r.Ratio.Of != "" {
					t.Errorf("%s has a ratio without a heading", name)
				}
			}
		}
	}
}

// TestPublishedRatios are those that the publications print.
func TestPublishedRatios(t *testing.T) {
	all := Tables()
	for _, c := range []struct {
		table    int
		of, to   string
		want     float64
		decimals float64
	}{
		{1, "full-one/dts", "full-one/mongoshake", 1.38, 100},
		{1, "full-many/dts-spared", "full-many/mongoshake", 0.83, 100},
		{1, "full-many/dts", "full-many/mongoshake", 1.11, 100},
		{1, "incr-backlog/dts", "incr-backlog/mongoshake", 1.11, 100},
		{1, "sharded/dts", "sharded/mongoshake-1", 1.64, 100},
		{3, "5/1/logical", "5/1/files", 0.5, 10},
		{3, "5/80/logical", "5/80/files", 4.8, 10},
		{5, "3/majority/off", "3/majority/on", 0.993, 1000},
		{5, "7/majority/off", "7/majority/on", 1.435, 1000},
		{5, "15/majority/off", "15/majority/on", 1.065, 1000},
		{5, "3/1/off", "3/1/on", 0.981, 1000},
		{5, "7/1/off", "7/1/on", 0.797, 1000},
		{5, "15/1/off", "15/1/on", 0.532, 1000},
	} {
		got, ok := all[c.table-1].ratio(Ratio{Of: c.of, To: []string{c.to}})
		if !ok || math.Round(got*c.decimals)/c.decimals != c.want {
			t.Errorf("table %d: %s / %s is %g, want %g", c.table, c.of, c.to, got, c.want)
		}
	}
}

// TestPublishedCost: processor time of one operation is published beside rate
// and processors, of which it follows.
func TestPublishedCost(t *testing.T) {
	for _, c := range ddtCells() {
		if each := c.cpu * 1e4 / c.rate; math.Abs(each-c.each) > 0.06 {
			t.Errorf("%s: %g %% of a core for %g a second are %.2f µs, published %g", c.key(), c.cpu, c.rate, each, c.each)
		}
	}
}

func TestFind(t *testing.T) {
	if all, err := Find(nil); err != nil || len(all) != 5 {
		t.Errorf("all tables: %d, %v", len(all), err)
	}
	if some, err := Find([]int{3, 1, 3}); err != nil || len(some) != 2 || some[0].Number != 3 {
		t.Errorf("tables 3 and 1: %+v, %v", some, err)
	}
	for _, n := range []int{0, 6} {
		if _, err := Find([]int{n}); err == nil {
			t.Errorf("table %d was found", n)
		}
	}
}
