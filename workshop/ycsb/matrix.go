package ycsb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
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

	disk func() lab.DiskUse // what was asked of the server's slowed disk, nil without one.
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
	// DiskEach is what was asked of a slowed disk for an operation: reads, writes and flushes.
	DiskEach float64 `json:"diskOperationsPerOperation,omitempty"`
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
	rounds = slices.Clone(rounds)
	slices.SortFunc(rounds, func(a, b *Report) int { return int(a.Throughput - b.Throughput) })
	r := rounds[(len(rounds)-1)/2]
	c := Cell{Mix: mix, Threads: threads, Throughput: r.Throughput, Lowest: rounds[0].Throughput,
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
	if r.disk != nil {
		c.DiskEach = float64(r.disk.Reads+r.disk.Writes+r.disk.Flushes) / float64(max(r.Operations, 1))
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

// Class is a size of server, processors to memory, by its cache. In 1:8 the cache holds 1.5 times the records, in
// 1:4 half of that, in 1:2 a quarter.
type Class struct {
	Name  string  `json:"name"`
	share float64 // of the records that the cache has room for
}

// ParseClass reads 1:2, 1:4 or 1:8.
func ParseClass(s string) (Class, error) {
	for name, share := range map[string]float64{"1:2": 0.375, "1:4": 0.75, "1:8": 1.5} {
		if s == name {
			return Class{name, share}, nil
		}
	}
	return Class{}, fmt.Errorf("class %q: want 1:2, 1:4 or 1:8, processors to memory", s)
}

// cacheGB is the cache of the class for so many bytes of records.
func (c Class) cacheGB(bytes int64) float64 {
	const least = 32.0 / 1024 // with less the server does little but evict
	return max(c.share*float64(bytes)/(1<<30), least)
}

// Disk is a kind of disk by name.
type Disk struct {
	Name  string        `json:"name"`
	Speed lab.DiskSpeed `json:"speed"`
}

// ParseDisk reads NAME=LATENCY[:OPERATIONS A SECOND]; see [lab.ParseDiskSpeed].
func ParseDisk(s string) (Disk, error) {
	name, speed, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return Disk{}, fmt.Errorf("disk %q: want NAME=SPEED, such as network=500us:4000", s)
	}
	d, err := lab.ParseDiskSpeed(speed)
	return Disk{name, d}, err
}

// ClassOptions describe a comparison of disks over classes of servers.
type ClassOptions struct {
	Matrix   MatrixOptions // Matrix is measured in each class; its Servers are made here.
	Classes  []Class
	Disks    []Disk       // Disks are compared with the first of them, each with a server of its own.
	Cores    float64      // Cores that each server may use, which may be a part of one; 0 is all.
	Versions []string     // Versions of mongod, one for all disks or one for each; none is 6.0.
	Log      *slog.Logger // may be nil
}

// Classes are what was measured in each class.
type Classes struct {
	Cores   float64       `json:"cores"` // 0 is all
	Disks   []Disk        `json:"disks"`
	Servers []string      `json:"mongod"` // versions, by disk
	Classes []ClassResult `json:"classes"`
}

// ClassResult is one class.
type ClassResult struct {
	Class
	CacheGB   float64 `json:"cacheGB"`
	RecordsGB float64 `json:"recordsGB"` // RecordsGB is how much the records' fields are, without the index.
	*Comparison
}

// RunClasses starts a server for each disk, one class after the other, measures the matrix on both and ends them.
func RunClasses(ctx context.Context, o ClassOptions) (*Classes, error) {
	if len(o.Versions) == 0 {
		o.Versions = []string{"6.0"}
	}
	if len(o.Versions) == 1 {
		o.Versions = slices.Repeat(o.Versions, len(o.Disks))
	}
	if len(o.Disks) < 1 || len(o.Versions) != len(o.Disks) || len(o.Classes) == 0 {
		return nil, fmt.Errorf("%w: want a class and a disk at least, and a version for each disk or one for all",
			ErrProperties)
	}
	c, err := parse(o.Matrix.Properties, Load)
	if err != nil {
		return nil, err
	}
	const perField, perRecord = 14, 36 // names, lengths and types in BSON; the key
	bytes := c.records * (int64(len(c.fields))*(c.longestField+perField) + perRecord)
	all := &Classes{Cores: o.Cores, Disks: o.Disks, Servers: o.Versions}
	for _, class := range o.Classes {
		r := ClassResult{Class: class, CacheGB: class.cacheGB(bytes), RecordsGB: float64(bytes) / (1 << 30)}
		if r.Comparison, err = o.run(ctx, r); err != nil {
			return nil, fmt.Errorf("class %s: %w", class.Name, err)
		}
		all.Classes = append(all.Classes, r)
	}
	return all, nil
}

func (o ClassOptions) run(ctx context.Context, r ClassResult) (c *Comparison, err error) {
	m := o.Matrix
	m.Servers = nil
	for i, d := range o.Disks {
		cluster, failed := lab.Start(ctx, lab.Options{Version: o.Versions[i], CacheGB: r.CacheGB, Cores: o.Cores,
			DiskSpeed: d.Speed, Logger: o.Log})
		if failed != nil {
			return nil, explainClass(failed)
		}
		defer func() { err = errors.Join(err, cluster.Stop()) }()
		member := cluster.Members()[0]
		server := Server{Name: d.Name, URI: strings.Replace(cluster.URI(), "/?", "/"+defaultDatabase+"?w=1&", 1)}
		if d.Speed.Slow() {
			server.disk = member.DiskUse
		}
		m.Servers = append(m.Servers, server)
	}
	if progress := m.Progress; progress != nil {
		m.Progress = func(line string) { progress("class " + r.Name + ", " + line) }
	}
	return RunMatrix(ctx, m)
}

func explainClass(err error) error {
	switch {
	case errors.Is(err, lab.ErrNoQuota):
		return mongo.WithHint(err, "--cores 0 lets servers use all processors")
	case errors.Is(err, lab.ErrNoSlowDisk):
		return mongo.WithHint(err, "a speed of 0 leaves a disk as it is, such as --disk local=0")
	}
	return err
}

func (c *Classes) facts() []string {
	cores := "all processors"
	if c.Cores > 0 {
		cores = "at most " + plot.Figure(c.Cores) + " processors"
	}
	facts := []string{"one member a server, on this machine; " + cores + " each"}
	for i, d := range c.Disks {
		facts = append(facts, fmt.Sprintf("%s: mongod %s, disk %s", d.Name, c.Servers[i], d.Speed))
	}
	for _, r := range c.Classes {
		fact := fmt.Sprintf("class %s: cache of %s GB for records of %s GB", r.Name, plot.Figure(r.CacheGB),
			plot.Figure(r.RecordsGB))
		if r.share < 1 && r.CacheGB > r.RecordsGB {
			fact += ", which is the least: too few records for this class"
		}
		facts = append(facts, fact)
	}
	return append(facts, "a slowed disk has each read, write and flush take a turn and wait, with no page cache before it")
}

// summary is each other disk against the first, over all classes.
func (c *Classes) summary() sheetTable {
	t := sheetTable{Title: "differences over the classes",
		Header: []string{"class", "other", "base", "threads", "read:write", "throughput", "RAL", "WAL"}}
	for _, r := range c.Classes {
		for _, d := range r.Differences {
			for _, x := range d.Cells {
				t.Rows = append(t.Rows, append([]string{r.Name, d.Other, d.Base}, x.row()...))
			}
		}
	}
	return t
}

func (c *Classes) tables() (all []sheetTable) {
	for _, r := range c.Classes {
		t := r.figures()
		t.Title = "class " + r.Name
		all = append(all, t)
	}
	return append(all, c.summary())
}

// WriteText writes the tables for a terminal.
func (c *Classes) WriteText(w io.Writer) error {
	return writeTables(w, c.facts(), c.tables())
}

// WriteHTML writes the tables and their charts as one page.
func (c *Classes) WriteHTML(w io.Writer) error {
	s := &sheet{Title: "millrace-bench ycsb matrix --classes", Facts: c.facts(), Tables: c.tables()}
	var against []plot.Line
	names := c.Classes[0].mixes()
	for _, r := range c.Classes {
		first := len(s.Charts)
		r.charts(s)
		for i := range s.Charts[first:] {
			s.Charts[first+i].Title = "class " + r.Name + ": " + s.Charts[first+i].Title
		}
		for _, l := range againstLines(r.Differences, names) {
			l.Name = r.Name + ": " + l.Name
			against = append(against, l)
		}
	}
	s.drawAgainst("all classes: operations a second, in % of the base", against, names)
	return s.write(w)
}
