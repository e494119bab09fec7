package published

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/workshop/bench"
	"github.com/millrace/millrace/workshop/lab"
)

// TestTable measures the second table for real, as small as it gets, and writes
// its page.
func TestTable(t *testing.T) {
	lab.NeedServers(t)
	t.Parallel() // it mostly waits for servers
	scale, err := ParseScale("tiny")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := Find([]int{2})
	if err != nil {
		t.Fatal(err)
	}
	r := &Results{}
	o := Options{Options: bench.Options{Scale: scale, Rounds: 1, Progress: func(line string) { t.Log(line) }}}
	err = Run(t.Context(), tables, o, Runners(), func(table *Table, m *Measured) error {
		r.Put(table.Number, m)
		return nil
	})
	m := r.Of(2)
	if m == nil || err != nil && m.Missing["class/1:2/100:0/local"] == "" { // not each machine has classes
		t.Fatal(err)
	}
	for _, mix := range ycsbMixes() {
		k := key("mix", mix)
		for column, none := range map[string]bool{"rate": false, "ral": mix == "0:100", "wal": mix == "100:0"} {
			if got := m.Figures[key(k, column)]; len(got) != 1 || none && got[0] > 0 {
				t.Errorf("%s of %s: %v", column, mix, got)
			}
		}
	}
	var b strings.Builder
	charts, err := Page(&b, r, "published")
	text := strings.Join(strings.Fields(b.String()), " ") // the page wraps its lines
	if err != nil || len(charts) < 3 || !strings.Contains(text, "scale tiny,") ||
		!strings.Contains(text, m.Sizes) {
		t.Errorf("%d charts, %v\n%s", len(charts), err, &b)
	}
}

// TestSteps: a scenario that fails leaves its figures missing, and the others go
// on.
func TestSteps(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{"b": {1}}, Missing: map[string]string{}}
	err := Options{Options: bench.Options{Rounds: 1, Progress: func(string) {}}}.steps(t.Context(), m, []step{
		{scenario: "no-such", keys: []string{"a", "b"}},
		{scenario: "nor-this", keys: []string{"c"}},
	})
	if err == nil || !strings.Contains(err.Error(), "nor-this") ||
		!strings.Contains(m.Missing["a"], `"no-such" is unknown`) || m.Missing["c"] == "" || m.Missing["b"] != "" {
		t.Errorf("%v, %+v", err, m.Missing)
	}
}

// report is a case with a ceiling, millrace and what else is given.
func report(c bench.Case, names map[string]bench.Kind) *bench.Report {
	for name, kind := range names {
		c.Contenders = append(c.Contenders, bench.Contender{Name: name, Kind: kind, Rounds: []bench.Round{
			{Seconds: 2, ToolCPU: 0.001, Peak: 5e6, Values: map[string]float64{benchPrimaryCPU: 60, benchAverage: 2,
				bench.RouterRate(1): 10, bench.RouterRate(2): 20},
				Series: []bench.Point{{Seconds: 0}, {Seconds: 1, Changed: 7, CPU: 0.5},
					{Seconds: 2, Changed: 9, CPU: 1}}},
		}})
	}
	return &bench.Report{Cases: []bench.Case{c}}
}

// cutRun ends the run after it has measured one figure.
type cutRun struct{ cut context.CancelFunc }

func (r cutRun) Measure(ctx context.Context, o Options, m *Measured) error {
	m.set(key("r", "a"), []float64{1})
	r.cut()
	return o.steps(ctx, m, []step{{scenario: "no-such", keys: []string{key("r", "b")}},
		{scenario: "nor-this", keys: []string{key("r", "c")}}})
}

// TestCut: a run that is cut off keeps what it has measured.
func TestCut(t *testing.T) {
	ctx, cut := context.WithCancel(t.Context())
	column := func(k string) Column { return Column{Key: k, Name: k} }
	table := Table{Number: 1,
		Groups: []Group{{Columns: []Column{column("a"), column("b"), column("c")}, Rows: []Row{{Key: "r"}}}}}
	var kept *Measured
	err := Run(ctx, []Table{table}, Options{Options: bench.Options{Rounds: 1}}, map[int]Runner{1: cutRun{cut}},
		func(_ *Table, m *Measured) error {
			kept = m
			return nil
		})
	if err == nil || kept == nil || !kept.Cut || len(kept.Figures) != 1 || kept.Missing[key("r", "b")] == "" ||
		kept.Missing[key("r", "c")] == "" {
		t.Errorf("%v, %+v", err, kept)
	}
}

// TestBetter: a part takes the place of nothing, or of a smaller part.
func TestBetter(t *testing.T) {
	of := func(n int, cut bool) *Measured {
		m := &Measured{Cut: cut, Figures: map[string][]float64{}}
		for i := range n {
			m.Figures[strconv.Itoa(i)] = []float64{1}
		}
		return m
	}
	for _, c := range []struct {
		was, is *Measured
		want    bool
	}{
		{nil, of(1, true), true}, {of(5, false), of(4, true), false}, {of(5, false), of(9, true), false},
		{of(5, false), of(3, false), true},
		{of(5, true), of(4, true), false}, {of(5, true), of(6, true), true}, {of(5, true), of(3, false), true},
	} {
		r := &Results{}
		if c.was != nil {
			r.Put(1, c.was)
		}
		if got := r.Better(1, c.is); got != c.want {
			t.Errorf("%+v after %+v: %t", c.is, c.was, got)
		}
	}
}

// TestFirstTableFromReports: every figure of the table that can be measured here
// is read out of the bench's reports.
func TestFirstTableFromReports(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{}, Missing: map[string]string{}}
	o := Options{Options: bench.Options{Peers: []bench.Peer{{Name: PeerMongoShake, Program: "/bin/true"}}}}
	all := map[string]bench.Kind{"ceiling": bench.KindCeiling, "no oplog": bench.KindReference,
		benchMillrace:       bench.KindMillrace,
		benchShakePublished: bench.KindPeer, benchShakeDefaults: bench.KindPeer, benchMillrace + ", " +
			variantSpared: bench.KindMillrace}
	for _, work := range []string{fullOne, fullMany, backlog} {
		s := dtsRun{}.step(o, m, work)
		if err := s.take(report(bench.Case{Scenario: work, Count: 1000}, all)); err != nil {
			t.Fatal(err)
		}
	}
	shards := map[string]bench.Kind{"ceiling": bench.KindCeiling, benchShakePublished + bench.BalancerOff: bench.KindPeer,
		benchMillrace + bench.BalancerOff: bench.KindMillrace, benchMillrace + bench.BalancerOn: bench.KindMillrace,
		benchMillrace + ", " + variantStream + bench.BalancerOn: bench.KindMillrace}
	if err := (dtsRun{}).sharded(o, m).
		take(report(bench.Case{Scenario: "incr-sharded", Count: 1000}, shards)); err != nil {
		t.Fatal(err)
	}
	complete(t, Tables()[0], m)
	for k, want := range map[string]float64{"full-one/millrace": 500, "sharded/millrace-2": 20,
		"incr-backlog/mongoshake/each": 1, "full-many/mongoshake-defaults/peak": 5} {
		if got := m.Figures[k]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %v, want %g", k, got, want)
		}
	}
	if len(m.Curves) != 3*4*5 {
		t.Errorf("%d curves", len(m.Curves))
	}
}

// complete fails for figures of a table that could be measured and were not.
func complete(t *testing.T, table Table, m *Measured) {
	t.Helper()
	if err := m.check(&table); err != nil {
		t.Error(err)
	}
	for _, f := range table.Figures() {
		if _, ok := m.Figures[f.Key]; ok == (f.Absent != "") {
			t.Errorf("table %d: %s: measured %v, absent %q", table.Number, f.Key, ok, f.Absent)
		}
	}
}

func TestThirdTableFromReports(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{}, Missing: map[string]string{}}
	ways := map[string]bench.Kind{benchLogical: bench.KindPeer, benchSeed: bench.KindMillrace}
	for _, p := range seedCells() {
		if err := (fileRun{}.take(report(bench.Case{Scenario: "seed"}, ways), m, []seedCell{p})); err != nil {
			t.Fatal(err)
		}
	}
	complete(t, Tables()[2], m)
}

func TestFourthTableFromReports(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{}, Missing: map[string]string{}}
	var c bench.Case
	for _, scenario := range []string{ddtSweep, ddtDelay} {
		c = bench.Case{Scenario: scenario}
		for i, cell := range ddtCells() {
			values := map[string]float64{}
			for _, name := range ddtValues(scenario) {
				values[name] = float64(i + 1)
			}
			c.Contenders = append(c.Contenders, bench.Contender{Name: ddtContender(cell), Kind: bench.KindMillrace,
				Rounds: []bench.Round{{Seconds: 1, Values: values}}})
		}
		if err := takeDDT(&bench.Report{Cases: []bench.Case{c}}, m); err != nil {
			t.Fatal(err)
		}
	}
	complete(t, Tables()[3], m)
	if got := m.Figures["32/15/rate"]; got[0] != 8 {
		t.Errorf("the last row has %v", got)
	}
	c.Contenders = c.Contenders[1:]
	if err := takeDDT(&bench.Report{Cases: []bench.Case{c}}, m); err == nil {
		t.Error("a row is missing")
	}
}

func TestFifthTableFromReports(t *testing.T) {
	m := &Measured{Figures: map[string][]float64{}, Missing: map[string]string{}}
	ways := map[string]bench.Kind{benchOff: bench.KindCeiling, benchOn: bench.KindCeiling,
		benchPlanned: bench.KindMillrace}
	for _, members := range []int{3, 7, 15} {
		for _, l := range chainLinks() {
			r := &bench.Report{}
			for _, concern := range []string{"1", "majority"} {
				c := bench.Case{Scenario: "topology", Variant: fmt.Sprintf("%d-w%s%s", members, concern, l.ends), Count: 100}
				r.Cases = append(r.Cases, report(c, ways).Cases...)
			}
			if err := l.take(r, m, members); err != nil {
				t.Fatal(err)
			}
		}
	}
	complete(t, Tables()[4], m)
}
