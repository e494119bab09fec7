package published

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/bench"
)

// The places of the first table, which are cases of the bench, too.
const (
	fullOne  = "full-one"
	fullMany = "full-many"
	backlog  = "incr-backlog"
	inShards = "sharded" // incr-sharded, of which the rows count what each router took.
)

func dts(t *Table) {
	t.Groups, t.charts = []Group{dtsRates(t.Why), dtsCeilings(t.Why["ceilings"]), dtsCosts(t.Why["costs"])}, dtsCharts
}

// dtsRates are the published figures with rows of ours beside them.
func dtsRates(why map[string]string) Group {
	const service = "DTS is a service of its cloud"
	const noRouter = "with the balancer on it needs the change stream of a mongos, and this machine has none"
	shake := func(work string) Ratio { return Ratio{Of: "", To: []string{key(work, "mongoshake")}} }
	row := func(work, text, tool, name string, published ...float64) Row {
		r := Row{Key: key(work, tool), Place: []string{text, name}, Published: values(published...), Why: why["one machine"]}
		if tool != "mongoshake" {
			r.Ratio = shake(work)
			r.Ratio.Of = r.Key
		}
		if work == backlog {
			r.Why = why["backlog"]
		}
		return r
	}
	absent := func(r Row, why string) Row {
		r.Absent, r.Why = why, ""
		return r
	}
	headline := func(r Row, text string) Row {
		r.Headlines = []Headline{{Text: text}}
		return r
	}
	const one, five = "full, one table of 10,000,000", "full, five tables of 5,000,000"
	const incremental = "incremental, one table"
	const sharded = "sharded, incremental, balancer of the source on"
	routed := why["sharded"]
	const defaults, spared = "mongoshake-defaults", "millrace-spared"
	const ours, shakes, shakesDefaults = "millrace", "MongoShake, published settings", "MongoShake, its defaults"
	both := absent(row(inShards, sharded, "dts", "DTS, both mongos together", 46_000), service)
	both.Ratio.To = []string{key(inShards, "mongoshake-1")}
	spare := row(fullMany, five, spared, "millrace, --source-load low")
	spare.Why = why["spared"]
	return Group{
		Title: "Rates at the target", Place: []string{"work", "tool"}, Ratio: "rate, of MongoShake's",
		Columns: []Column{{Name: "rate", Unit: PerSecond}},
		Rows: []Row{
			row(fullOne, one, "mongoshake", shakes, 8_000),
			row(fullOne, one, defaults, shakesDefaults),
			absent(row(fullOne, one, "dts", "DTS", 11_000), service),
			headline(row(fullOne, one, "millrace", ours),
				"full copy of one table, rate of MongoShake's (DTS there, millrace here)"),
			row(fullMany, five, "mongoshake", shakes, 18_000),
			row(fullMany, five, defaults, shakesDefaults),
			absent(row(fullMany, five, "dts-spared", "DTS, by default: readers held back to spare the source", 15_000), service),
			absent(row(fullMany, five, "dts", "DTS, three readers a table", 20_000), service),
			spare,
			headline(row(fullMany, five, "millrace", ours), "full copy of five tables, the same"),
			row(backlog, incremental, "mongoshake", shakes, 44_000),
			row(backlog, incremental, defaults, shakesDefaults),
			absent(row(backlog, incremental, "dts", "DTS", 49_000), service),
			headline(row(backlog, incremental, "millrace", ours), "incremental, the same"),
			absent(Row{Key: key(inShards, "mongoshake-1"), Place: []string{sharded, "MongoShake, through mongos 1"},
				Published: values(28_000)}, noRouter),
			absent(Row{Key: key(inShards, "mongoshake-2"), Place: []string{sharded, "MongoShake, through mongos 2"},
				Published: values(0)}, noRouter),
			absent(Row{Key: key(inShards, "dts-1"), Place: []string{sharded, "DTS, through mongos 1"},
				Published: values(23_000)}, service),
			absent(Row{Key: key(inShards, "dts-2"), Place: []string{sharded, "DTS, through mongos 2"},
				Published: values(23_000)}, service),
			both,
			{Key: key(inShards, "millrace-1"), Place: []string{sharded, ours + ", through router 1: statements"}, Why: routed},
			{Key: key(inShards, "millrace-2"), Place: []string{sharded, ours + ", through router 2: statements"}, Why: routed},
			headline(Row{Key: key(inShards, "millrace"), Place: []string{sharded, ours + ", both routers: operations"},
				Why: routed, Ratio: over(inShards, "millrace", "mongoshake")},
				"incremental, three shards to three, the same; MongoShake here: balancer off"),
			{Key: key(inShards, "millrace-off"), Place: []string{sharded, ours + ", the same with the balancer off"},
				Why: routed},
			{Key: key(inShards, "millrace-stream"),
				Place: []string{sharded, ours + ", the same by a change stream of a router"}, Why: routed},
			{Key: key(inShards, "mongoshake"),
				Place: []string{sharded, "MongoShake by oplogs, published settings, balancer off"}, Why: routed},
		},
	}
}

// dtsCeilings compare millrace with what the servers allow here.
func dtsCeilings(why string) Group {
	g := Group{
		Title: "What the servers here allow", Place: []string{"work"}, Ratio: "of the ceiling",
		Columns: []Column{{Key: "millrace", Name: "millrace", Unit: PerSecond},
			{Key: "ceiling", Name: "ceiling", Unit: PerSecond}},
	}
	for _, work := range []string{fullOne, fullMany, backlog} {
		g.Rows = append(g.Rows, Row{Key: key(work, "limit"), Place: []string{"`" + work + "`"},
			Ratio: over(key(work, "limit"), "millrace", "ceiling"),
			Why:   why})
	}
	return g
}

// dtsCosts are what the publication has as pictures.
func dtsCosts(why string) Group {
	g := Group{
		Title: "What the tools use", Place: []string{"work", "tool"},
		Columns: []Column{{Key: "each", Name: "processor time for one", Unit: Micros},
			{Key: "peak", Name: "memory at most", Unit: Megabytes}},
	}
	for _, work := range []string{fullOne, fullMany, backlog} {
		for _, tool := range []string{"mongoshake", "mongoshake-defaults", "millrace"} {
			g.Rows = append(g.Rows, Row{Key: key(work, tool), Place: []string{"`" + work + "`", tool}, Why: why})
		}
	}
	return g
}

// dtsRun measures the first table: copies and a backlog onto three members with majority.
type dtsRun struct{}

// PeerMongoShake is the name of MongoShake among the peers.
const PeerMongoShake = "mongoshake"

// The names of contenders in the bench's reports.
const (
	benchMillrace       = "millrace"
	benchShakePublished = "mongoshake-published"
	benchShakeDefaults  = "mongoshake-defaults"
	variantSpared       = "source spared" // millrace held back to spare the source.
	variantStream       = "change stream"
)

const (
	publishedOne  = 10_000_000
	publishedMany = 25_000_000
	mediumFull    = 1_000_000 // documents of full-one and of full-many
)

// Measure runs the scenarios of the table.
func (d dtsRun) Measure(ctx context.Context, o Options, m *Measured) error {
	one := int(mediumFull * o.Scale.Factor)
	m.Sizes = fmt.Sprintf("one table of %s documents of 1.2 KB (1:%s of the published). Five tables of %s together "+
		"(1:%s). A backlog of %s operations (its size was not published)",
		humanize.Comma(int64(one)), ratioTo(publishedOne, one), humanize.Comma(int64(d.many(one))),
		ratioTo(publishedMany, d.many(one)), humanize.Comma(int64(one)))
	m.Notes = append(m.Notes, "A checkpoint waits for the majority of the three members (`--write-concern=majority`).")
	return o.steps(ctx, m, []step{
		d.step(o, m, fullOne), d.step(o, m, fullMany), d.step(o, m, backlog), d.sharded(o, m),
	})
}

// many is how many documents five tables have together: in the publication 2.5 times those of the one table.
func (dtsRun) many(one int) int { return one * publishedMany / publishedOne }

// ratioTo is by how much a published number is larger.
func ratioTo(published, here int) string {
	return humanize.Comma(int64(float64(published)/float64(max(here, 1)) + 0.5))
}

// fits puts the bench onto the table's servers.
func (d dtsRun) fits(o Options, work string, b *bench.Options) {
	b.Servers.TargetTopology = "rs:3"
	b.MillraceArgs = append(b.MillraceArgs, "--write-concern=majority")
	if work == fullMany {
		b.Scale.Factor *= float64(publishedMany) / publishedOne
		b.Variants = []bench.Variant{{Name: variantSpared, Args: []string{"--source-load=low"}}}
	}
	b.Peers = append(b.Peers, d.shakes(o)...)
}

// shakes are MongoShake with the published settings, and with its own.
func (dtsRun) shakes(o Options) (all []bench.Peer) {
	given, ok := o.peer(PeerMongoShake)
	if !ok {
		return nil
	}
	for _, name := range []string{benchShakePublished, benchShakeDefaults} {
		if p, err := bench.ParsePeer(name + "=" + given.Program); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func (d dtsRun) step(o Options, m *Measured, work string) step {
	if _, ok := o.peer(PeerMongoShake); !ok {
		m.miss("no --peer "+PeerMongoShake+"=… was given", d.peerKeys(work)...)
	}
	return step{scenario: work, keys: append(d.keys(work), d.peerKeys(work)...),
		change: func(b *bench.Options) { d.fits(o, work, b) },
		take:   func(r *bench.Report) error { return d.take(r, m, work) }}
}

// sharded is the backlog of three shards, for three behind two routers.
func (d dtsRun) sharded(o Options, m *Measured) step {
	shake := key(inShards, "mongoshake")
	var peer bench.Peer
	shakes := d.shakes(o)
	given := len(shakes) > 0
	if given {
		peer = shakes[0]
	} else {
		m.miss("no --peer "+PeerMongoShake+"=… was given", shake)
	}
	all := map[string]func(bench.Round) float64{key(inShards, "millrace-1"): router(1),
		key(inShards, "millrace-2"): router(2)}
	return step{scenario: "incr-sharded", keys: append(slices.Sorted(maps.Keys(all)), key(inShards, "millrace"),
		key(inShards, "millrace-off"), key(inShards, "millrace-stream"), shake),
		change: func(b *bench.Options) {
			b.Servers.SourceTopology, b.Servers.TargetTopology = "sharded:3x1", "sharded:3x1"
			b.Variants = []bench.Variant{{Name: variantStream, Args: []string{"--capture=change-streams", "--via=routers"}}}
			if given {
				b.Peers = append(b.Peers, peer)
			}
		},
		take: func(r *bench.Report) error {
			c := &r.Cases[0]
			on, err := contender(c, benchMillrace+bench.BalancerOn)
			if err != nil {
				return err
			}
			m.set(key(inShards, "millrace"), rates(c, on))
			for k, of := range all {
				m.set(k, on.Each(of))
			}
			if off, err := contender(c, benchMillrace+bench.BalancerOff); err == nil {
				m.set(key(inShards, "millrace-off"), rates(c, off))
			}
			stream, err := contender(c, benchMillrace+", "+variantStream+bench.BalancerOn)
			if err != nil {
				return err
			}
			m.set(key(inShards, "millrace-stream"), rates(c, stream))
			if x, err := contender(c, peer.Name+bench.BalancerOff); err == nil {
				m.set(shake, rates(c, x))
			} else if given {
				m.miss(oneLine(err), shake)
			}
			return nil
		}}
}

// router is what one of the target's took a second.
func router(n int) func(bench.Round) float64 {
	return func(r bench.Round) float64 { return r.Values[bench.RouterRate(n)] }
}

// keys are the figures that a scenario gives of millrace and its ceiling.
func (dtsRun) keys(work string) []string {
	mine, limit := key(work, "millrace"), key(work, "limit")
	keys := []string{mine, key(mine, "each"), key(mine, "peak"), key(limit, "millrace"), key(limit, "ceiling")}
	if work == fullMany {
		keys = append(keys, key(work, "millrace-spared"))
	}
	return keys
}

// peerKeys are those of MongoShake.
func (dtsRun) peerKeys(work string) (keys []string) {
	for _, tool := range []string{"mongoshake", "mongoshake-defaults"} {
		k := key(work, tool)
		keys = append(keys, k, key(k, "each"), key(k, "peak"))
	}
	return keys
}

// take reads millrace, its ceiling and the peers out of a report.
func (d dtsRun) take(r *bench.Report, m *Measured, work string) error {
	c := &r.Cases[0]
	ours, err := contender(c, benchMillrace)
	if err != nil {
		return err
	}
	d.tool(c, ours, m, key(work, "millrace"))
	m.set(key(key(work, "limit"), "millrace"), rates(c, ours))
	for i := range c.Contenders {
		x := &c.Contenders[i]
		switch {
		case work == fullMany && x.Name == benchMillrace+", "+variantSpared && finished(c, x) == nil:
			m.set(key(work, "millrace-spared"), rates(c, x))
		case x.Kind == bench.KindCeiling && finished(c, x) == nil:
			m.set(key(key(work, "limit"), "ceiling"), rates(c, x))
		case x.Kind == bench.KindPeer:
			tool := key(work, map[string]string{benchShakePublished: "mongoshake",
				benchShakeDefaults: "mongoshake-defaults"}[x.Name])
			if err := finished(c, x); err != nil {
				m.miss(oneLine(err), tool, key(tool, "each"), key(tool, "peak"))
				continue
			}
			d.tool(c, x, m, tool)
		}
		d.curves(c, x, m, work)
	}
	return nil
}

func (dtsRun) tool(c *bench.Case, x *bench.Contender, m *Measured, at string) {
	m.set(at, rates(c, x))
	m.set(key(at, "each"), x.Each(func(r bench.Round) float64 { return 1e6 * r.ToolCPU / r.Operations(c.Count) }))
	m.set(key(at, "peak"), x.Each(func(r bench.Round) float64 { return float64(r.Peak) / 1e6 }))
}

// curves keeps a tool's courses over time.
func (dtsRun) curves(c *bench.Case, x *bench.Contender, m *Measured, work string) {
	if x.Kind != bench.KindMillrace && x.Kind != bench.KindPeer {
		return
	}
	for _, of := range bench.Curves() {
		if seconds, values := x.Course(of); len(seconds) > 0 {
			m.Curves = append(m.Curves, Curve{Chart: work + "-" + of.Name, Title: c.Name() + ": " + of.Title + ", over seconds",
				Name: x.Name,
				X:    thin(seconds), Y: thin(values)})
		}
	}
}

// thin leaves as many values as a picture can show, with five digits.
func thin(values []float64) (some []float64) {
	const most = 100
	every := len(values)/most + 1
	for i := 0; i < len(values); i += every {
		some = append(some, short(values[i]))
	}
	return some
}
