package ycsb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/workshop/plot"
)

// Mix is a share of reads and writes, as weights.
type Mix struct {
	Read  float64 `json:"read"`
	Write float64 `json:"write"`
}

// ParseMix reads "95:5".
func ParseMix(s string) (Mix, error) {
	a, b, ok := strings.Cut(s, ":")
	read, err1 := strconv.ParseFloat(strings.TrimSpace(a), 64)
	write, err2 := strconv.ParseFloat(strings.TrimSpace(b), 64)
	if !ok || err1 != nil || err2 != nil || !(read >= 0) || !(write >= 0) || read+write == 0 {
		return Mix{}, fmt.Errorf("mix %q: want reads and writes as weights, such as 95:5", s)
	}
	return Mix{read, write}, nil
}

// String is the mix as it was given.
func (m Mix) String() string {
	return strconv.FormatFloat(m.Read, 'f', -1, 64) + ":" + strconv.FormatFloat(m.Write, 'f', -1, 64)
}

// PublishedMixes are the mixes of the published tables.
func PublishedMixes() []Mix { return []Mix{{100, 0}, {95, 5}, {50, 50}, {5, 95}, {0, 100}} }

// The size of the published tables.
const (
	PublishedRecords    = 1_000_000
	PublishedOperations = 5_000_000
	PublishedThreads    = 8
)

// Server is one of those that a matrix measures.
type Server struct {
	Name string `json:"name"`
	URI  string `json:"-"` // it may hold a password
}

// ParseServer reads name=uri.
func ParseServer(s string) (Server, error) {
	name, uri, ok := strings.Cut(s, "=")
	if !ok || name == "" || !strings.Contains(uri, "://") || strings.Contains(name, "://") {
		return Server{}, errors.New("want servers as NAME=URI, such as local=mongodb://localhost:27017")
	}
	return Server{Name: name, URI: uri}, nil
}

// MatrixOptions describe a matrix.
type MatrixOptions struct {
	// Properties of all cells; proportions, threads and the phase's length are the matrix's.
	Properties Properties
	Mixes      []Mix
	Threads    []int
	// Operations of a cell, with the load of an empty collection measured too; 0 measures for a time.
	Operations int64
	Each       time.Duration // Each is how long a cell is measured without Operations, in full seconds.
	WarmUp     time.Duration // WarmUp is how long the first mix is run before anything is measured.
	Rounds     int           // Rounds of the whole matrix; a cell is the median of its rounds by throughput.
	Seed       uint64
	Progress   func(line string) // may be nil
	Servers    []Server          // Servers are compared with the first of them; none means that of Properties.
	Peer       *Peer             // Peer drives the same load beside millrace, unless it is nil.
}

// Published returns the options of the published tables, with a part of their counts; 1 is all.
func Published(p Properties, scale float64) MatrixOptions {
	part := func(n float64) int64 { return max(int64(n*scale+0.5), 1) }
	p = p.With("recordcount", strconv.FormatInt(part(PublishedRecords), 10))
	return MatrixOptions{Properties: p.Zipfian(), Operations: part(PublishedOperations), Threads: []int{PublishedThreads},
		Mixes: PublishedMixes(), Rounds: 1}
}

// Zipfian makes that the distribution of requests unless another one is given.
func (p Properties) Zipfian() Properties {
	if p["requestdistribution"] != "" {
		return p
	}
	return p.With("requestdistribution", "zipfian")
}

// Matrix is what was measured of one server by one client. Latencies are averages in microseconds.
type Matrix struct {
	Name           string    `json:"name,omitempty"` // Name of the server, "" when it is the only one.
	Client         string    `json:"client"`         // Client is millrace or ycsb, the Java tool.
	Address        string    `json:"address"`
	Database       string    `json:"database"`
	Collection     string    `json:"collection"`
	WriteConcern   string    `json:"writeConcern,omitempty"`
	ReadPreference string    `json:"readPreference"`
	Distribution   string    `json:"requestDistribution"`
	Records        int64     `json:"records"`
	Started        time.Time `json:"started"`
	Operations     int64     `json:"operationsEach,omitempty"` // Operations of a cell; 0 when EachSeconds is its length.
	EachSeconds    float64   `json:"secondsEach,omitempty"`
	Rounds         int       `json:"rounds"`
	// Load is the load of the records, where it was measured; its mix is 0:0.
	Load  *Cell  `json:"load,omitempty"`
	Cells []Cell `json:"cells"`
}

// Cell is one mix with one number of threads.
type Cell struct {
	Mix        Mix     `json:"mix"`
	Threads    int     `json:"threads"`
	Operations int64   `json:"operations"`
	Seconds    float64 `json:"seconds"`
	Throughput float64 `json:"operationsPerSecond"`
	Lowest     float64 `json:"lowestOperationsPerSecond"` // of the rounds
	Highest    float64 `json:"highestOperationsPerSecond"`
	RAL        float64 `json:"readAverageMicroseconds"`  // 0 without reads
	WAL        float64 `json:"writeAverageMicroseconds"` // 0 without writes
	ReadP99    int64   `json:"readP99Microseconds"`
	WriteP99   int64   `json:"writeP99Microseconds"`
	Failed     int64   `json:"failed"`
	// ClientSeconds is the client's processor time, for Java with the start of its virtual machine.
	ClientSeconds float64 `json:"clientCpuSeconds"`
	ClientCPU     float64 `json:"clientCpuMicrosecondsPerOperation"`
	// Rounds are the throughputs of the rounds in their order.
	Rounds []float64 `json:"-"`
}

// RunMatrix loads missing records, and measures all mixes and threads on all servers, with the peer.
func RunMatrix(ctx context.Context, o MatrixOptions) (*Comparison, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	sides, err := o.sides()
	if err != nil {
		return nil, err
	}
	for _, s := range sides {
		if err := s.fill(ctx, &o); err != nil {
			return nil, s.explain(err)
		}
	}
	if o.WarmUp > 0 {
		for _, s := range sides {
			if _, err := s.cell(ctx, &o, o.Mixes[0], slices.Max(o.Threads), o.WarmUp); err != nil {
				return nil, s.explain(err)
			}
		}
	}
	for round := range o.Rounds {
		for _, threads := range o.Threads {
			for _, mix := range o.Mixes {
				for _, s := range sides {
					if err := s.measure(ctx, &o, round, mix, threads); err != nil {
						return nil, s.explain(err)
					}
				}
			}
		}
	}
	c := &Comparison{}
	for _, s := range sides {
		c.Sides = append(c.Sides, s.matrix(&o))
	}
	c.compare()
	return c, nil
}

func cellOf(mix Mix, threads int, rounds []*Report) Cell {
	var each []float64
	for _, one := range rounds {
		each = append(each, one.Throughput)
	}
	rounds = slices.Clone(rounds)
	slices.SortFunc(rounds, func(a, b *Report) int { return int(a.Throughput - b.Throughput) })
	r := rounds[(len(rounds)-1)/2]
	c := Cell{Mix: mix, Threads: threads, Rounds: each, Throughput: r.Throughput, Lowest: rounds[0].Throughput,
		Highest:    rounds[len(rounds)-1].Throughput,
		Operations: r.Operations, Seconds: r.Seconds, ClientSeconds: r.Client.CPUSeconds, ClientCPU: r.Client.CPUEach}
	if s := r.Find(opRead.String()); s != nil {
		c.RAL, c.ReadP99 = s.Average, s.P99
	}
	for _, write := range []kind{opUpdate, opInsert} {
		if s := r.Find(write.String()); s != nil {
			c.WAL, c.WriteP99 = s.Average, s.P99
		}
	}
	for _, one := range rounds {
		c.Failed += one.Failed
	}
	return c
}

// figureOr is a figure, or something else for 0.
func figureOr(v float64, zero string) string {
	if v == 0 {
		return zero
	}
	return plot.Figure(v)
}

// measured are all cells, the load's first.
func (m *Matrix) measured() []Cell {
	if m.Load == nil {
		return m.Cells
	}
	return append([]Cell{*m.Load}, m.Cells...)
}

// name is the mix, or what else the cell is.
func (c *Cell) name() string {
	if c.Mix == (Mix{}) {
		return "load"
	}
	return c.Mix.String()
}

// label tells the side from the others of a comparison.
func (m *Matrix) label() string {
	switch {
	case m.Name == "":
		return m.Client
	case m.Client == clientMillrace:
		return m.Name
	}
	return m.Name + ", by " + m.Client
}
