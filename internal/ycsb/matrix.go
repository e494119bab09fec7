package ycsb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/plot"
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

// MatrixOptions describe a matrix.
type MatrixOptions struct {
	// Properties of all cells; proportions, threads and the phase's length are
	// the matrix's.
	Properties Properties
	Mixes      []Mix
	Threads    []int
	// Each is how long a cell is measured, in whole seconds.
	Each time.Duration
	// WarmUp is how long the first mix is run before anything is measured.
	WarmUp time.Duration
	// Rounds of the whole matrix; a cell is the median of its rounds by
	// throughput.
	Rounds   int
	Seed     uint64
	Progress func(line string) // may be nil
}

// Matrix is what was measured. Latencies are averages in microseconds.
type Matrix struct {
	Address        string    `json:"address"`
	Database       string    `json:"database"`
	Collection     string    `json:"collection"`
	WriteConcern   string    `json:"writeConcern,omitempty"`
	ReadPreference string    `json:"readPreference"`
	Distribution   string    `json:"requestDistribution"`
	Records        int64     `json:"records"`
	Started        time.Time `json:"started"`
	EachSeconds    float64   `json:"secondsEach"`
	Rounds         int       `json:"rounds"`
	Cells          []Cell    `json:"cells"`
}

// Cell is one mix with one number of threads.
type Cell struct {
	Mix        Mix     `json:"mix"`
	Threads    int     `json:"threads"`
	Throughput float64 `json:"operationsPerSecond"`
	Lowest     float64 `json:"lowestOperationsPerSecond"` // of the rounds
	Highest    float64 `json:"highestOperationsPerSecond"`
	RAL        float64 `json:"readAverageMicroseconds"`  // 0 without reads
	WAL        float64 `json:"writeAverageMicroseconds"` // 0 without writes
	ReadP99    int64   `json:"readP99Microseconds"`
	WriteP99   int64   `json:"writeP99Microseconds"`
	Failed     int64   `json:"failed"`
	ClientCPU  float64 `json:"clientCpuMicrosecondsPerOperation"`
}

// RunMatrix measures all mixes with all numbers of threads, each round in turn.
// Records that are missing are loaded first.
func RunMatrix(ctx context.Context, o MatrixOptions) (*Matrix, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	noise := NewNoise()
	c, err := parse(o.Properties, Run)
	if err != nil {
		return nil, err
	}
	if err := o.fill(ctx, c, noise); err != nil {
		return nil, err
	}
	m := &Matrix{Records: c.records, Started: time.Now(), EachSeconds: o.Each.Seconds(), Rounds: o.Rounds}
	cells := map[string][]*Report{}
	if o.WarmUp > 0 {
		if _, err := o.cell(ctx, o.Mixes[0], slices.Max(o.Threads), o.WarmUp, noise); err != nil {
			return nil, err
		}
	}
	for round := range o.Rounds {
		for _, threads := range o.Threads {
			for _, mix := range o.Mixes {
				rep, err := o.cell(ctx, mix, threads, o.Each, noise)
				if err != nil {
					return nil, err
				}
				if rep.Interrupted {
					return nil, context.Cause(ctx)
				}
				key := cellKey(mix, threads)
				cells[key] = append(cells[key], rep)
				one := cellOf(mix, threads, []*Report{rep})
				o.Progress(fmt.Sprintf("round %d, %s, %s: %s operations/s, RAL %s µs, WAL %s µs", round+1, several(int64(threads), "thread"), mix,
					plot.Figure(one.Throughput), figureOr(one.RAL, "-"), figureOr(one.WAL, "-")))
				m.Address, m.Database, m.Collection, m.Distribution = rep.Address, rep.Database, rep.Collection, rep.Distribution
				m.WriteConcern, m.ReadPreference = rep.WriteConcern, rep.ReadPreference
			}
		}
	}
	for _, threads := range o.Threads {
		for _, mix := range o.Mixes {
			m.Cells = append(m.Cells, cellOf(mix, threads, cells[cellKey(mix, threads)]))
		}
	}
	return m, nil
}

func cellKey(mix Mix, threads int) string { return fmt.Sprint(mix, "/", threads) }

// fill loads the records unless they are there.
func (o *MatrixOptions) fill(ctx context.Context, c *config, noise []byte) error {
	cluster, err := mongo.Connect(ctx, c.url, mongo.Options{AppName: "millrace ycsb"})
	if err != nil {
		return err
	}
	n, err := cluster.Client.Database(c.database).Collection(c.table).CountDocuments(ctx, bson.D{})
	cluster.Close()
	if err != nil {
		return fmt.Errorf("count %s.%s: %w", c.database, c.table, err)
	}
	if n >= c.records {
		return nil
	}
	o.Progress(fmt.Sprintf("%s.%s has %d of %d records: loading", c.database, c.table, n, c.records))
	_, err = Execute(ctx, Options{Phase: Load, Seed: o.Seed, Noise: noise,
		Properties: o.Properties.With("threadcount", "8", "batchsize", "100", "mongodb.upsert", strconv.FormatBool(n > 0), "target", "0", "maxexecutiontime", "0")})
	return err
}

func (o *MatrixOptions) cell(ctx context.Context, mix Mix, threads int, each time.Duration, noise []byte) (*Report, error) {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	rep, err := Execute(ctx, Options{Phase: Run, Seed: o.Seed, Noise: noise, Properties: o.Properties.With(
		"readproportion", f(mix.Read), "updateproportion", f(mix.Write), "insertproportion", "0", "scanproportion", "0", "readmodifywriteproportion", "0",
		"threadcount", strconv.Itoa(threads), "operationcount", "0", "maxexecutiontime", strconv.Itoa(int(max(each.Round(time.Second), time.Second)/time.Second)))})
	if err != nil {
		return nil, fmt.Errorf("mix %s, %d threads: %w", mix, threads, err)
	}
	if rep.Operations > 0 && rep.Failed >= rep.Operations {
		return nil, fmt.Errorf("mix %s, %d threads: all operations failed, the first with: %w", mix, threads, errors.New(rep.FirstError))
	}
	return rep, nil
}

// cellOf is the median of rounds.
func cellOf(mix Mix, threads int, rounds []*Report) Cell {
	rounds = slices.Clone(rounds)
	slices.SortFunc(rounds, func(a, b *Report) int { return int(a.Throughput - b.Throughput) })
	r := rounds[(len(rounds)-1)/2]
	c := Cell{Mix: mix, Threads: threads, Throughput: r.Throughput, Lowest: rounds[0].Throughput, Highest: rounds[len(rounds)-1].Throughput, ClientCPU: r.Client.CPUEach}
	if s := r.Find(opRead.String()); s != nil {
		c.RAL, c.ReadP99 = s.Average, s.P99
	}
	if s := r.Find(opUpdate.String()); s != nil {
		c.WAL, c.WriteP99 = s.Average, s.P99
	}
	for _, one := range rounds {
		c.Failed += one.Failed
	}
	return c
}

func (m *Matrix) table() (header []string, rows [][]string) {
	header = []string{"threads", "read:write", "operations/s", "RAL µs", "WAL µs", "read p99", "write p99", "client CPU µs", "failed"}
	blank := func(v float64) string { return figureOr(v, "") }
	for _, c := range m.Cells {
		rows = append(rows, []string{strconv.Itoa(c.Threads), c.Mix.String(), plot.Figure(c.Throughput), blank(c.RAL), blank(c.WAL),
			blank(float64(c.ReadP99)), blank(float64(c.WriteP99)), plot.Figure(c.ClientCPU), blank(float64(c.Failed))})
	}
	return header, rows
}

// figureOr is a figure, or something else for 0.
func figureOr(v float64, zero string) string {
	if v == 0 {
		return zero
	}
	return plot.Figure(v)
}

func (m *Matrix) facts() []string {
	r := Report{WriteConcern: m.WriteConcern, ReadPreference: m.ReadPreference}
	return []string{
		fmt.Sprintf("%s, %s.%s, %s records, %s requests, %s", m.Address, m.Database, m.Collection, humanize.Comma(m.Records), m.Distribution, r.concernText()),
		fmt.Sprintf("%s s a cell, medians of %s; RAL and WAL: average latency of reads and of writes (updates)", plot.Figure(m.EachSeconds), several(int64(m.Rounds), "round")),
	}
}

// WriteMatrixText writes the table for a terminal.
func WriteMatrixText(w io.Writer, m *Matrix) error {
	header, rows := m.table()
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	var columns []table.ColumnConfig
	for i := range header {
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	t.AppendHeader(row(header))
	for i, r := range rows {
		if i > 0 && m.Cells[i].Threads != m.Cells[i-1].Threads {
			t.AppendSeparator()
		}
		t.AppendRow(row(r))
	}
	_, err := fmt.Fprintf(w, "%s\n%s\n", strings.Join(m.facts(), "\n"), t.Render())
	return err
}

func row(cells []string) table.Row {
	out := table.Row{}
	for _, c := range cells {
		out = append(out, c)
	}
	return out
}

// WriteMatrixHTML writes the table and its charts as one page.
func WriteMatrixHTML(w io.Writer, m *Matrix) error {
	s := &sheet{Title: "millrace ycsb matrix", Facts: m.facts()}
	s.Header, s.Rows = m.table()
	var names []string
	for _, c := range m.Cells {
		if !slices.Contains(names, c.Mix.String()) {
			names = append(names, c.Mix.String())
		}
	}
	for _, of := range []struct {
		title string
		value func(Cell) float64
	}{
		{"operations a second, by reads:writes", func(c Cell) float64 { return c.Throughput }},
		{"average latency of reads (RAL), µs", func(c Cell) float64 { return c.RAL }},
		{"average latency of writes (WAL), µs", func(c Cell) float64 { return c.WAL }},
	} {
		if err := s.draw(of.title, m.lines(names, of.value), names...); err != nil {
			return err
		}
	}
	return s.write(w)
}

// lines are a figure by mix, a line for each number of threads.
func (m *Matrix) lines(names []string, of func(Cell) float64) []plot.Line {
	var all []plot.Line
	for _, c := range m.Cells {
		name := several(int64(c.Threads), "thread")
		at := slices.IndexFunc(all, func(l plot.Line) bool { return l.Name == name })
		if at < 0 {
			at = len(all)
			all = append(all, plot.Line{Name: name})
		}
		if v := of(c); v > 0 {
			all[at].X = append(all[at].X, float64(slices.Index(names, c.Mix.String())))
			all[at].Y = append(all[at].Y, v)
		}
	}
	return all
}
