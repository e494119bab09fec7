package published

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

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

type ycsbClass struct{ name, stated string }

func ycsbClassList() []ycsbClass {
	return []ycsbClass{
		{"1:2", "local SSD ahead by 7–50 %, most at 4 cores, 8 GB"},
		{"1:4", "about 10 %: local SSD ahead for writes, network disk for reads"},
		{"1:8", "equal; network disk ahead most at 4 cores and 32 GB"},
	}
}

// ycsbClassMixes are the mixes in which the classes are compared.
func ycsbClassMixes() []string { return []string{"100:0", "50:50", "0:100"} }

func (c ycsbClass) key(mix string) string { return key(key("class", c.name), mix) }

func ycsbClasses(why string) Group {
	g := Group{
		Title: "Kinds of instance", Place: []string{"processors:memory", "reads:writes"}, Ratio: "local against network disk",
		Change: true,
		Columns: []Column{{Key: "local", Name: "local SSD", Unit: PerSecond, HereName: "local disk"},
			{Key: "network", Name: "network disk", Unit: PerSecond, HereName: "network disk"}},
	}
	for _, c := range ycsbClassList() {
		for _, mix := range ycsbClassMixes() {
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

// The divisors of published counts at medium scale. Classes have more records, for the least cache.
const (
	mediumYCSB      = 10
	mediumClasses   = 1  // records
	mediumClassRuns = 50 // operations
)

// Measure loads the records and runs the mixes, round after round.
func (d ycsbRun) Measure(ctx context.Context, o Options, m *Measured) error {
	records, operations := d.part(o.Scale, ycsb.PublishedRecords, mediumYCSB),
		d.part(o.Scale, ycsb.PublishedOperations, mediumYCSB)
	m.Sizes = fmt.Sprintf("%s records and %s operations a mix (1:%s of the published). %s records and %s operations in "+
		"the kinds of instance, %d threads as published",
		humanize.Comma(records), humanize.Comma(operations), ratioTo(ycsb.PublishedRecords, int(records)),
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

// classes compares both disks in each class. Their figures are missing where the machine cannot limit or slow.
func (d ycsbRun) classes(ctx context.Context, o Options, m *Measured) error {
	options, err := d.classOptions(o)
	for round := 0; err == nil && round < o.Rounds; round++ {
		var all *ycsb.Classes
		if all, err = ycsb.RunClasses(ctx, options); err != nil {
			break
		}
		for _, class := range all.Classes {
			for _, side := range class.Sides {
				for _, c := range side.Cells {
					m.add(key(ycsbClass{name: class.Name}.key(c.Mix.String()), side.Name), c.Throughput)
				}
			}
		}
	}
	if err != nil {
		for _, c := range ycsbClassList() {
			for _, mix := range ycsbClassMixes() {
				m.miss(oneLine(err), key(c.key(mix), "local"), key(c.key(mix), "network"))
			}
		}
	}
	return err
}

func (d ycsbRun) classOptions(o Options) (all ycsb.ClassOptions, err error) {
	all = ycsb.ClassOptions{Matrix: ycsb.Published(ycsb.Properties{}, o.Scale.Factor/mediumClasses), Cores: 1,
		Versions: []string{o.Servers.Version}}
	all.Matrix.Operations = d.part(o.Scale, ycsb.PublishedOperations, mediumClassRuns)
	all.Matrix.Progress, all.Matrix.Mixes = o.Progress, nil
	for _, text := range ycsbClassMixes() {
		mix, err := ycsb.ParseMix(text)
		if err != nil {
			return all, err
		}
		all.Matrix.Mixes = append(all.Matrix.Mixes, mix)
	}
	for _, text := range []string{"local=100us", "network=500us:4000"} {
		disk, err := ycsb.ParseDisk(text)
		if err != nil {
			return all, err
		}
		all.Disks = append(all.Disks, disk)
	}
	for _, c := range ycsbClassList() {
		class, err := ycsb.ParseClass(c.name)
		if err != nil {
			return all, err
		}
		all.Classes = append(all.Classes, class)
	}
	return all, nil
}
