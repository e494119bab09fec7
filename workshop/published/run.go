package published

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/workshop/bench"
)

// Options are those of the bench, with the servers' version and the tools that take part.
type Options struct {
	bench.Options
	Java string // path of the Java YCSB, empty for none
}

// ParseScale knows the scales of the bench and tiny, which only shows that everything works.
func ParseScale(name string) (bench.Scale, error) {
	if name == "tiny" {
		return bench.Scale{Name: name, Factor: 0.002, Duration: 300 * time.Millisecond}, nil
	}
	return bench.ParseScale(name)
}

// Runner measures the figures of one table.
type Runner interface {
	// Measure adds figures to m, and notes and returns as an error what cannot be measured.
	Measure(ctx context.Context, o Options, m *Measured) error
}

// Runners are what measures the tables, by their numbers.
func Runners() map[int]Runner {
	return map[int]Runner{1: dtsRun{}, 2: ycsbRun{}, 3: fileRun{}, 4: ddtRun{}, 5: chainRun{}}
}

// Run measures tables by their runners. After each table with figures it calls keep, also when ctx ends, so that
// hours of work are not lost. A table without figures stays as it was.
func Run(ctx context.Context, tables []Table, o Options, runners map[int]Runner,
	keep func(*Table, *Measured) error) error {
	if o.Rounds < 1 {
		return fmt.Errorf("%d rounds are too few; measure at least 1", o.Rounds)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	var failed []error
	for i := range tables {
		err := measure(ctx, &tables[i], o, runners[tables[i].Number], keep)
		if ctx.Err() != nil {
			return errors.Join(append(failed, err)...)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func measure(ctx context.Context, t *Table, o Options, r Runner, keep func(*Table, *Measured) error) error {
	say := o.Progress
	o.Progress = func(line string) { say(fmt.Sprintf("table %d: %s", t.Number, line)) }
	m := &Measured{Version: o.Version, Command: o.Command, Machine: bench.ThisMachine(), Started: time.Now(),
		Scale:  o.Scale.Name,
		Rounds: o.Rounds, Figures: map[string][]float64{}, Missing: map[string]string{}}
	err := r.Measure(ctx, o, m)
	m.Ended, m.Cut = time.Now(), ctx.Err() != nil
	if err != nil {
		err = fmt.Errorf("table %d: %w", t.Number, err)
	}
	switch {
	case len(m.Figures) > 0:
	case m.Cut:
		return err
	default:
		return errors.Join(err, fmt.Errorf("table %d: nothing was measured", t.Number))
	}
	if wrong := m.check(t); wrong != nil {
		return errors.Join(err, fmt.Errorf("table %d: %w", t.Number, wrong))
	}
	return errors.Join(err, keep(t, m))
}

// set notes the rounds of a figure, with four digits.
func (m *Measured) set(key string, rounds []float64) {
	if len(rounds) == 0 {
		return
	}
	m.Figures[key] = nil
	for _, v := range rounds {
		m.Figures[key] = append(m.Figures[key], short(v))
	}
}

// add notes one more round of a figure.
func (m *Measured) add(key string, v float64) { m.Figures[key] = append(m.Figures[key], short(v)) }

// miss says why figures are not there.
func (m *Measured) miss(why string, keys ...string) {
	for _, key := range keys {
		if _, ok := m.Figures[key]; !ok {
			m.Missing[key] = why
		}
	}
}

// short is a number with five digits: what follows them is noise.
func short(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-4)
	r := math.Round(v/unit) * unit
	return math.Round(r*1e9) / 1e9
}

// step is one run of the bench that gives some of a table's figures.
type step struct {
	scenario string
	change   func(*bench.Options)      // change fits the bench's options; nil leaves them.
	keys     []string                  // the figures that are missing when the step fails.
	take     func(*bench.Report) error // take turns the report into figures.
}

// steps runs the bench for each step. One that fails leaves its figures missing.
func (o Options) steps(ctx context.Context, m *Measured, all []step) error {
	var failed []error
	for i, s := range all {
		b := o.Options
		b.Scenarios, b.Peers = []string{s.scenario}, nil
		b.Servers.SourceTopology, b.Servers.TargetTopology = "rs:1", "rs:1"
		if s.change != nil {
			s.change(&b)
		}
		report, err := bench.Run(ctx, b)
		if err == nil {
			err = s.take(report)
		}
		if ctx.Err() != nil {
			for _, left := range all[i:] {
				m.miss("the measurement was cut off", left.keys...)
			}
			return errors.Join(append(failed, err)...)
		}
		if err != nil {
			o.Progress(err.Error())
			m.miss(oneLine(err), s.keys...)
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// oneLine is the first line of an error.
func oneLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

func (o Options) peer(name string) (bench.Peer, bool) {
	i := slices.IndexFunc(o.Peers, func(p bench.Peer) bool { return p.Name == name })
	if i < 0 {
		return bench.Peer{}, false
	}
	return o.Peers[i], true
}

// contender is one of a case by its name, an error when it did not finish.
func contender(c *bench.Case, name string) (*bench.Contender, error) {
	for i := range c.Contenders {
		if x := &c.Contenders[i]; x.Name == name {
			return x, finished(c, x)
		}
	}
	return nil, fmt.Errorf("%s has no contender %q", c.Name(), name)
}

func finished(c *bench.Case, x *bench.Contender) error {
	switch {
	case x.Error != "":
		return errors.New(x.Error)
	case len(x.Rounds) == 0:
		return fmt.Errorf("%s: %s has no rounds", c.Name(), x.Name)
	}
	return nil
}

// rates are things a second, round by round.
func rates(c *bench.Case, x *bench.Contender) []float64 {
	return x.Each(func(r bench.Round) float64 { return r.Rate(c.Count) })
}
