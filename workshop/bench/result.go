package bench

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/topology"
)

// Report is the outcome of a run of the bench.
type Report struct {
	Version string    `json:"version"` // of millrace
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Machine Machine   `json:"machine"`
	Scale   Scale     `json:"scale"`
	Rounds  int       `json:"rounds"`
	Command string    `json:"command"` // Command is the bench's own command line.
	Cases   []Case    `json:"cases"`
}

// Machine is where the bench ran.
type Machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"` // usable by the bench
	MemoryMB  int64  `json:"memoryMB"`
	System    string `json:"system"`
}

// Case is one measured piece of work. A scenario has one or several.
type Case struct {
	Scenario string `json:"scenario"`
	// Variant tells the cases of a scenario apart, empty when it has one.
	Variant string `json:"variant,omitempty"`
	Work    string `json:"work"`    // what had to be done
	Ceiling string `json:"ceiling"` // what the ceiling is
	Servers string `json:"servers"`
	Unit    string `json:"unit"` // Unit is what Count counts: documents or operations.
	Count   int    `json:"count"`
	Bytes   int    `json:"bytes"`
	// Collections and Indexes in each are the case's place in a matrix.
	Collections int `json:"collections,omitempty"`
	Indexes     int `json:"indexes,omitempty"`
	// DataBytes is the size of the documents, DiskBytes their size on disk, where measured.
	DataBytes int64 `json:"dataBytes,omitempty"`
	DiskBytes int64 `json:"diskBytes,omitempty"`
	// RatioOf is the value that OfCeiling compares, small being good; empty compares the rates.
	RatioOf string `json:"ratioOf,omitempty"`

	Columns    []string    `json:"columns,omitempty"` // Columns of the table, by their headings; none is the usual ones.
	Contenders []Contender `json:"contenders"`
	Notes      []string    `json:"notes,omitempty"` // Notes say what else was found out, such as the settings tried.
}

// Name of the case: scenario and variant.
func (c *Case) Name() string {
	if c.Variant == "" {
		return c.Scenario
	}
	return c.Scenario + "/" + c.Variant
}

// ceiling is the case's ceiling, the fastest if there are several ways, nil when it has none.
func (c *Case) ceiling() *Contender {
	var best *Contender
	for i := range c.Contenders {
		x := &c.Contenders[i]
		if x.Kind == KindCeiling && len(x.Rounds) > 0 && (best == nil || x.better(best)) {
			best = x
		}
	}
	return best
}

// better compares two ways by their time or, where the time was given, by what they did.
func (x *Contender) better(y *Contender) bool {
	if x.Rounds[0].Done > 0 && y.Rounds[0].Done > 0 {
		return x.Rate.Median > y.Rate.Median
	}
	return x.Seconds.Median < y.Seconds.Median
}

// Kind says what a contender is.
type Kind string

// The kinds of contenders.
const (
	KindCeiling   Kind = "ceiling"
	KindMillrace  Kind = "millrace"
	KindPeer      Kind = "peer"
	KindReference Kind = "reference" // KindReference is measured to compare with, but is no limit.
)

// Contender is what one way to do the work has shown.
type Contender struct {
	Name   string  `json:"name"`
	Kind   Kind    `json:"kind"`
	How    string  `json:"how"`             // How is the command that ran, or the settings of a ceiling.
	Error  string  `json:"error,omitempty"` // Error says why there are fewer rounds than there should be.
	Rounds []Round `json:"rounds"`

	Seconds Stat `json:"seconds"`
	Rate    Stat `json:"rate"` // Rate is documents or operations a second.
	// OfCeiling is the rate divided by the ceiling's, round by round; zero where that makes no sense.
	OfCeiling Stat `json:"ofCeiling"`
	ToolCPU   Stat `json:"toolCPUSeconds"`
	Peak      Stat `json:"peakResidentBytes"` // Peak is the largest resident memory of the tool's processes in bytes.
	// CPUEach is microseconds of the tool's processor time per document or operation.
	CPUEach Stat `json:"toolCPUMicrosEach"`
	// Values are figures of this scenario alone, with their units in their names.
	Values map[string]Stat `json:"values,omitempty"`
}

// Round is one measurement. CPU is in seconds; that of servers includes whatever else they did.
type Round struct {
	Seconds float64 `json:"seconds"`
	// Done is how many operations were done, 0 for the case's Count.
	Done      int     `json:"done,omitempty"`
	ToolCPU   float64 `json:"toolCPUSeconds"`
	SourceCPU float64 `json:"sourceCPUSeconds"`
	TargetCPU float64 `json:"targetCPUSeconds"`
	Peak      int64   `json:"peakResidentBytes"`
	// SourceSent and TargetReceived are bytes as the servers count them.
	SourceSent     int64 `json:"sourceSentBytes"`
	TargetReceived int64 `json:"targetReceivedBytes"`
	// Parts are the durations that Seconds is made of, or that lie within it.
	Parts  map[string]float64 `json:"parts,omitempty"`
	Values map[string]float64 `json:"values,omitempty"` // Values are other figures, by name and unit.
	Series []Point            `json:"series,omitempty"`
	// Tree is the replication tree at the end and Members how far each was behind, where that is measured.
	Tree    *topology.Set `json:"tree,omitempty"`
	Members []MemberLag   `json:"members,omitempty"`
}

func (c *Case) summarize() {
	for i := range c.Contenders {
		c.Contenders[i].summarize(c.Count)
	}
	top := c.ceiling()
	if top == nil {
		return
	}
	for i := range c.Contenders {
		x := &c.Contenders[i]
		ratios := x.beside(top, c.ratio)
		x.OfCeiling = StatOf(slices.DeleteFunc(ratios, func(ratio float64) bool { return ratio <= 0 }))
	}
}

// ratio is how near a round comes to that of the ceiling.
func (c *Case) ratio(x, top Round) float64 {
	if c.RatioOf != "" {
		return per(top.Values[c.RatioOf], x.Values[c.RatioOf])
	}
	return per(x.Rate(c.Count), top.Rate(c.Count))
}

// Operations are those that the round did; count is how many where it does not say.
func (r Round) Operations(count int) float64 {
	if r.Done > 0 {
		count = r.Done
	}
	return float64(count)
}

// Rate is operations a second.
func (r Round) Rate(count int) float64 { return per(r.Operations(count), r.Seconds) }

// Each is a figure of each round.
func (x *Contender) Each(of func(Round) float64) (all []float64) {
	for _, r := range x.Rounds {
		all = append(all, of(r))
	}
	return all
}

// beside compares the rounds of two contenders that were measured one after the other.
func (x *Contender) beside(y *Contender, of func(a, b Round) float64) (all []float64) {
	for i := range min(len(x.Rounds), len(y.Rounds)) {
		all = append(all, of(x.Rounds[i], y.Rounds[i]))
	}
	return all
}

func (x *Contender) summarize(count int) {
	figure := func(of func(Round) float64) Stat { return StatOf(x.Each(of)) }
	x.Seconds = figure(func(r Round) float64 { return r.Seconds })
	x.ToolCPU = figure(func(r Round) float64 { return r.ToolCPU })
	x.Peak = figure(func(r Round) float64 { return float64(r.Peak) })
	x.Rate = figure(func(r Round) float64 { return r.Rate(count) })
	x.CPUEach = figure(func(r Round) float64 { return per(r.ToolCPU*1e6, r.Rate(count)*r.Seconds) })
	x.Values = nil
	for _, r := range x.Rounds {
		for name := range r.Values {
			if x.Values == nil {
				x.Values = map[string]Stat{}
			}
			x.Values[name] = figure(func(r Round) float64 { return r.Values[name] })
		}
	}
}

// per is n/seconds, 0 for no time.
func per(n, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return n / seconds
}

// Stat is a figure over the rounds: its median and its extremes.
type Stat struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// StatOf is the median and the extremes of values, all zero for none.
func StatOf(values []float64) Stat {
	if len(values) == 0 {
		return Stat{}
	}
	return Stat{Median: median(values), Min: slices.Min(values), Max: slices.Max(values)}
}

// Spread is the distance of the extremes as a part of the median.
func (s Stat) Spread() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.Max - s.Min) / math.Abs(s.Median)
}

// median is the middle value, the mean of the middle two of an even number, and 0 of none.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// percentile is the smallest value that p of all (0 to 1) do not exceed: the nearest rank.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// slope is the growth of y per unit of x by least squares, 0 when it has none.
func slope(x, y []float64) float64 {
	n := float64(min(len(x), len(y)))
	if n < 2 {
		return 0
	}
	var sx, sy, sxx, sxy float64
	for i := range int(n) {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	d := n*sxx - sx*sx
	if d == 0 {
		return 0
	}
	return (n*sxy - sx*sy) / d
}

// ThisMachine reads what Linux tells of the machine; elsewhere less is known.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()}
	m.Processor = lookup("/proc/cpuinfo", "model name")
	m.MemoryMB = kilobytes("/proc/meminfo", "MemTotal") >> 20
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += ", kernel " + strings.TrimSpace(string(raw))
	}
	return m
}

// kilobytes is a "name: n kB" of a file, in bytes; 0 where there is none.
func kilobytes(file, name string) int64 {
	kb, err := strconv.ParseInt(strings.TrimSuffix(lookup(file, name), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return kb << 10
}

// lookup finds the first "name: value" of a file.
func lookup(file, name string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(raw) {
		if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
