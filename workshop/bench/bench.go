// Package bench measures what millrace does against what the servers allow.
//
// A scenario prepares data on a source, then runs contenders in turn, round after round. These are the ceiling,
// millrace as a process, and other tools whose binaries are given. The ceiling is lean code over internal/wire
// that asks the least possible work of the servers. Everything a round starts from is made equal before it.
// Figures are reported with their spread and with what exactly was measured.
//
// All data live in one database, mrbench, that the bench makes and drops.
package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

// Options say what is measured.
type Options struct {
	Scenarios []string // Scenarios by name; "all" stands for all of them.
	Scale     Scale
	Rounds    int // Rounds each contender has; at least 1.
	Servers   Servers
	Peers     []Peer
	Topology  TopologyOptions // Topology is for the scenario of that name.
	Service   ServiceOptions  // Service is for the scenario of that name.
	// Cells are places of the matrix of scenario seed, as "collections x indexes" without blanks; empty is all.
	Cells []string
	Seeds []SeedSet // Seeds are sets that the scenario seed measures in place of its matrix, see [SeedSet].
	// SeedDisk is the speed of their disks: a member has its own, and the lost member shares its own with the seed.
	SeedDisk         lab.DiskSpeed
	Millrace         string // Millrace is the measured program, and MillraceArgs more arguments of its sync.
	MillraceArgs     []string
	Router           string            // Router is the program whose command "lab router" is a router: millrace-bench.
	Variants         []Variant         // Variants are measured beside it wherever a sync is.
	Version, Command string            // Version and Command go into the report.
	Progress         func(line string) // Progress takes a line for each step; nil discards it.
	Log              *slog.Logger
}

type bench struct {
	o      Options
	report *Report
	dir    string // for the files of tools
}

// Run measures, and returns a report also with an error. A peer's failure is in the report, others end the run.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Rounds < 1 {
		return nil, fmt.Errorf("%d rounds are too few; measure at least 1", o.Rounds)
	}
	chosen, err := choice(o.Scenarios)
	if err != nil {
		return nil, err
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, p := range o.Peers {
		if err := p.check(); err != nil {
			return nil, err
		}
	}
	b := &bench{o: o, report: &Report{
		Version: o.Version, Command: o.Command, Started: time.Now(), Machine: ThisMachine(), Scale: o.Scale, Rounds: o.Rounds,
		Cases: []Case{},
	}}
	err = b.inDirectory(func() error {
		for _, s := range chosen {
			if err := s.run(ctx, b, s); err != nil {
				return fmt.Errorf("scenario %s: %w", s.name, err)
			}
		}
		return nil
	})
	b.report.Ended = time.Now()
	return b.report, err
}

// choice gives the scenarios of these names.
func choice(names []string) ([]scenario, error) {
	all := scenarios()
	if slices.Contains(names, "all") {
		return all, nil
	}
	var chosen []scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
		if i < 0 {
			var known []string
			for _, s := range all {
				known = append(known, s.name)
			}
			return nil, fmt.Errorf("scenario %q is unknown; there are %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func (b *bench) say(format string, args ...any) { b.o.Progress(fmt.Sprintf(format, args...)) }

// contender is one way to do the work of a case.
type contender struct {
	name string
	kind Kind
	how  string
	// prepare makes source and target as they have to be; it is not measured.
	prepare func(ctx context.Context) error
	run     func(ctx context.Context, m *meter) error // run does the work.
	check   func(ctx context.Context) error           // check says whether the work was done; nil asks nothing.
}

// meter takes the measures of a round. Its methods may be called concurrently.
type meter struct {
	mu             sync.Mutex
	round          Round
	pids           []int
	source, target *serverUsage // source and target are set where only a part of the round counts.
}

func (m *meter) runs(pid int) { m.set(func(*Round) { m.pids = append(m.pids, pid) }) }

func (m *meter) processes() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pids)
}

func (m *meter) set(note func(*Round)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	note(&m.round)
}

func (m *meter) used(seconds float64) { m.set(func(r *Round) { r.ToolCPU += seconds }) }

// ended says that the work was done before the round ends: its time, and what the tool has used by now.
func (m *meter) ended(began time.Time) {
	took := time.Since(began).Seconds()
	m.set(func(r *Round) { r.Seconds = took })
	m.used(processCPU(m.processes()))
}

func (m *meter) value(name string, v float64) { m.set(func(r *Round) { put(&r.Values, name, v) }) }

// note notes a duration that lies within the round.
func (m *meter) note(part string, seconds float64) {
	m.set(func(r *Round) { put(&r.Parts, part, seconds) })
}

func put(in *map[string]float64, name string, v float64) {
	if *in == nil {
		*in = map[string]float64{}
	}
	(*in)[name] = v
}

// during measures only do: its time, the servers' work and that of the tool's processes.
func (m *meter) during(ctx context.Context, st *site, do func() error) error {
	var used float64
	u, took, err := st.whileDoing(ctx, func() error {
		cpu := processCPU(m.processes())
		err := do()
		used = processCPU(m.processes()) - cpu
		return err
	})
	if err != nil {
		return err
	}
	m.set(func(r *Round) {
		m.source, m.target = &u.source, &u.target
		r.Seconds, r.ToolCPU = took, used
	})
	return nil
}

// newMember notes the processor time of a server that was started in the round.
func (m *meter) newMember(cpu float64) {
	m.set(func(*Round) { m.target = &serverUsage{cpu: cpu} })
}

// part does and times one part of a ceiling; the parts are the round's time.
func (m *meter) part(name string, work func() error) error {
	cpu, began := ownCPU(), time.Now()
	if err := work(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(began).Seconds()
	m.note(name, took)
	m.set(func(r *Round) {
		r.Seconds += took
		r.ToolCPU += ownCPU() - cpu
	})
	return nil
}

// compete runs all contenders, round after round, and adds the case.
func (b *bench) compete(ctx context.Context, st *site, c Case, all []contender) error {
	c.Servers = st.describe()
	for _, x := range all {
		c.Contenders = append(c.Contenders, Contender{Name: x.name, Kind: x.kind, How: x.how, Rounds: []Round{}})
	}
	defer func() {
		c.summarize()
		b.report.Cases = append(b.report.Cases, c)
	}()
	for round := range b.o.Rounds {
		for i, x := range all {
			out := &c.Contenders[i]
			if out.Error != "" {
				continue
			}
			r, err := measure(ctx, st, x)
			if err == nil {
				b.say("%s  round %d  %s: %.2f s", c.Name(), round+1, x.name, r.Seconds)
				out.Rounds = append(out.Rounds, r)
				continue
			}
			err = fmt.Errorf("%s, round %d, %s: %w", c.Name(), round+1, x.name, err)
			if ctx.Err() != nil || x.kind != KindPeer {
				return err
			}
			out.Error = err.Error()
			b.say("%v", err)
		}
	}
	return nil
}

func measure(ctx context.Context, st *site, x contender) (Round, error) {
	if err := x.prepare(ctx); err != nil {
		return Round{}, fmt.Errorf("prepare: %w", err)
	}
	m := &meter{}
	var series []Point
	var peak int64
	u, took, err := st.whileDoing(ctx, func() error {
		w := watch(ctx, st, m.processes)
		err := x.run(ctx, m)
		var watched error
		series, peak, watched = w.stop()
		return errors.Join(err, watched)
	})
	if err != nil {
		return Round{}, err
	}
	if x.check != nil {
		if err := x.check(ctx); err != nil {
			return Round{}, fmt.Errorf("the work is not done: %w", err)
		}
	}
	r := m.round
	if r.Seconds == 0 {
		r.Seconds = took
	}
	if m.source != nil {
		u.source = *m.source
	}
	if m.target != nil {
		u.target = *m.target
	}
	r.SourceCPU, r.TargetCPU, r.SourceSent, r.TargetReceived = u.source.cpu, u.target.cpu, u.source.out, u.target.in
	r.Peak, r.Series = peak, series
	return r, nil
}
