package published

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/ycsb"
)

func ycsbMixes() (all []string) {
	for _, m := range ycsb.PublishedMixes() {
		all = append(all, m.String())
	}
	return all
}

// ycsbLoad stands in the place of a mix for the load of the records.
const ycsbLoad = "load"

// ycsbPaper fills the white paper of performance by kind of instance.
func ycsbPaper(t *Table) {
	t.Groups = []Group{ycsbMixed(t.Why["mixes"]), ycsbClasses(t.Why["classes"]), ycsbJava(t.Why["clients"])}
	t.charts = ycsbCharts
}

func ycsbMixed(why string) Group {
	g := Group{
		Title: "Mixes", Place: []string{"published: recordcount", "published: operationcount", "threads", "reads:writes"},
		Columns: []Column{{Key: "rate", Name: "throughput", Unit: PerSecond}, {Key: "ral", Name: "RAL", Unit: Micros},
			{Key: "wal", Name: "WAL", Unit: Micros}},
	}
	for _, mix := range append([]string{ycsbLoad}, ycsbMixes()...) {
		operations := int64(ycsb.PublishedOperations)
		if mix == ycsbLoad {
			operations = ycsb.PublishedRecords
		}
		place := []string{humanize.Comma(ycsb.PublishedRecords), humanize.Comma(operations),
			strconv.Itoa(ycsb.PublishedThreads), mix}
		g.Rows = append(g.Rows, Row{Key: key("mix", mix), Place: place, Published: []*float64{nil, nil, nil},
			Why: why})
	}
	return g
}

// ycsbClass is a size of server, processors to memory. Here its cache has room for a share of the records.
type ycsbClass struct {
	name, stated string
	share        float64
}

func ycsbClassList() []ycsbClass {
	return []ycsbClass{
		{"1:2", "local SSD ahead by 7–50 %, most at 4 cores, 8 GB", 0.375},
		{"1:4", "about 10 %: local SSD ahead for writes, network disk for reads", 0.75},
		{"1:8", "equal; network disk ahead most at 4 cores and 32 GB", 1.5},
	}
}

// ycsbKind is a kind of instance, by its column.
type ycsbKind struct {
	column, version string
	disk            lab.DiskSpeed
}

func ycsbKinds() []ycsbKind {
	return []ycsbKind{
		{"local", "4.2", lab.DiskSpeed{Latency: 100 * time.Microsecond}},
		{"network", "4.4", lab.DiskSpeed{Latency: 500 * time.Microsecond, PerSecond: 4000}},
	}
}

func (c ycsbClass) key(mix string) string { return key(key("class", c.name), mix) }

func ycsbClasses(why string) Group {
	g := Group{
		Title: "Kinds of instance", Place: []string{"processors:memory", "reads:writes"}, Ratio: "local against network disk",
		Change: true,
		Columns: []Column{{Key: "local", Name: "4.2, local SSD", Unit: PerSecond, HereName: "4.2, local disk"},
			{Key: "network", Name: "4.4, network disk", Unit: PerSecond}},
	}
	for _, c := range ycsbClassList() {
		for _, mix := range ycsbMixes() {
			k := c.key(mix)
			g.Rows = append(g.Rows, Row{Key: k, Place: []string{c.name, mix}, Published: []*float64{nil, nil}, Stated: c.stated,
				Ratio: over(k, "local", "network"),
				Why:   why})
		}
	}
	return g
}

func ycsbJava(why string) Group {
	g := Group{
		Title: "The same load by the Java tool", Place: []string{"reads:writes"}, Ratio: "millrace against Java",
		Columns: []Column{{Key: "millrace", Name: "millrace ycsb", Unit: PerSecond},
			{Key: "java", Name: "YCSB 0.17.0", Unit: PerSecond},
			{Key: "millrace-cpu", Name: "client's processor time for one, millrace", Unit: Micros},
			{Key: "java-cpu", Name: "YCSB 0.17.0", Unit: Micros}},
	}
	for _, mix := range ycsbMixes() {
		k := key("client", mix)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{mix}, Ratio: over(k, "millrace", "java"), Why: why})
	}
	return g
}

// ycsbRun measures the second table: mixes on three members by millrace and the Java tool, and classes of servers.
type ycsbRun struct{}

// The divisors of published counts at medium scale. Classes have more records, so that a share of them is a cache.
const (
	mediumYCSB      = 10 // records
	mediumYCSBRuns  = 20 // operations
	mediumClasses   = 1  // records
	mediumClassRuns = 50 // operations
)

// Measure loads the records and runs the mixes, round after round.
func (d ycsbRun) Measure(ctx context.Context, o Options, m *Measured) error {
	records, operations := d.part(o.Scale, ycsb.PublishedRecords, mediumYCSB),
		d.part(o.Scale, ycsb.PublishedOperations, mediumYCSBRuns)
	m.Sizes = fmt.Sprintf("%s records (1:%s of the published) and %s operations a mix (1:%s). %s records and %s "+
		"operations in the kinds of instance, %d threads as published",
		humanize.Comma(records), ratioTo(ycsb.PublishedRecords, int(records)), humanize.Comma(operations),
		ratioTo(ycsb.PublishedOperations, int(operations)),
		humanize.Comma(d.part(o.Scale, ycsb.PublishedRecords, mediumClasses)),
		humanize.Comma(d.part(o.Scale, ycsb.PublishedOperations, mediumClassRuns)), ycsb.PublishedThreads)
	return errors.Join(d.mixes(ctx, o, m), d.classes(ctx, o, m))
}

// part is that of a published count of which medium scale has one in so many.
func (ycsbRun) part(s bench.Scale, published, medium int) int64 {
	return max(int64(float64(published)/float64(medium)*s.Factor), 1)
}

func (d ycsbRun) mixes(ctx context.Context, o Options, m *Measured) (err error) {
	var peer *ycsb.Peer
	if o.Java != "" {
		if peer, err = ycsb.ParsePeer("ycsb=" + o.Java); err != nil {
			return err
		}
	}
	o.Progress("starting servers")
	servers, err := lab.Start(ctx, lab.Options{Version: o.Servers.Version, Topology: "rs:3"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Stop()) }()
	url := strings.Replace(servers.URI(), "/?", "/ycsb?w=1&", 1)
	for round := range o.Rounds {
		// A collection for each round, so that each has its load.
		options := ycsb.Published(ycsb.Properties{"mongodb.url": url, "table": "round" + strconv.Itoa(round+1)},
			o.Scale.Factor/mediumYCSB)
		options.Operations = d.part(o.Scale, ycsb.PublishedOperations, mediumYCSBRuns)
		options.Peer, options.Progress = peer, o.Progress
		c, err := ycsb.RunMatrix(ctx, options)
		if err != nil {
			return err
		}
		for _, side := range c.Sides {
			d.take(side, m)
		}
	}
	for _, mix := range ycsbMixes() {
		k := key("client", mix)
		m.miss("no --peer ycsb=… was given", key(k, "java"), key(k, "java-cpu"))
	}
	return nil
}

func (ycsbRun) take(side *ycsb.Matrix, m *Measured) {
	column := side.Client
	if column == "ycsb" {
		column = "java"
	}
	for _, c := range side.Cells {
		client := key("client", c.Mix.String())
		m.add(key(client, column), c.Throughput)
		m.add(key(client, column+"-cpu"), c.ClientCPU)
	}
	if column == "java" {
		return
	}
	cells := side.Cells
	if side.Load != nil {
		cells = append(cells, *side.Load)
	}
	for _, c := range cells {
		k := key("mix", c.Mix.String())
		if c.Mix == (ycsb.Mix{}) {
			k = key("mix", ycsbLoad)
		}
		m.add(key(k, "rate"), c.Throughput)
		m.add(key(k, "ral"), c.RAL)
		m.add(key(k, "wal"), c.WAL)
	}
}

// classes compares both kinds of instance. Their figures are missing where the machine cannot limit or slow.
func (d ycsbRun) classes(ctx context.Context, o Options, m *Measured) error {
	var failed []error
	for _, c := range ycsbClassList() {
		if err := d.class(ctx, o, m, c); err != nil {
			failed = append(failed, fmt.Errorf("class %s: %w", c.name, err))
			for _, mix := range ycsbMixes() {
				m.miss(oneLine(err), key(c.key(mix), "local"), key(c.key(mix), "network"))
			}
		}
	}
	return errors.Join(failed...)
}

func (d ycsbRun) class(ctx context.Context, o Options, m *Measured, c ycsbClass) (err error) {
	const recordBytes, leastGB = 1176, 32.0 / 1024 // with a smaller cache the server does little but evict
	// The load is not measured.
	matrix := ycsb.Published(ycsb.Properties{"batchsize": "100"}, o.Scale.Factor/mediumClasses)
	matrix.Operations = d.part(o.Scale, ycsb.PublishedOperations, mediumClassRuns)
	matrix.Rounds, matrix.Progress = o.Rounds, func(line string) { o.Progress("class " + c.name + ", " + line) }
	bytes := d.part(o.Scale, ycsb.PublishedRecords, mediumClasses) * recordBytes
	var clusters []*lab.Cluster
	defer func() {
		for _, cluster := range clusters {
			err = errors.Join(err, cluster.Stop())
		}
	}()
	for _, kind := range ycsbKinds() {
		cluster, err := lab.Start(ctx, lab.Options{Version: kind.version, Cores: 1, DiskSpeed: kind.disk,
			CacheGB: max(c.share*float64(bytes)/(1<<30), leastGB), Logger: o.Log})
		if err != nil {
			return err
		}
		clusters = append(clusters, cluster)
		matrix.Servers = append(matrix.Servers,
			ycsb.Server{Name: kind.column, URI: strings.Replace(cluster.URI(), "/?", "/ycsb?w=1&", 1)})
	}
	all, err := ycsb.RunMatrix(ctx, matrix)
	if err != nil {
		return err
	}
	for _, side := range all.Sides {
		for _, cell := range side.Cells {
			m.set(key(c.key(cell.Mix.String()), side.Name), cell.Rounds)
		}
	}
	return nil
}
