package published

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/bench"
)

// dtsRun measures the first table: copies and a backlog onto three members with
// majority.
type dtsRun struct{}

// PeerMongoShake is the name of MongoShake among the peers.
const PeerMongoShake = "mongoshake"

// The names of contenders in the bench's reports.
const (
	benchMillrace       = "millrace"
	benchShakePublished = "mongoshake-published"
	benchShakeDefaults  = "mongoshake-defaults"
)

const (
	publishedOne  = 10_000_000
	publishedMany = 25_000_000
	mediumFull    = 1_000_000 // documents of full-one and of full-many
)

// Measure runs the scenarios of the table.
func (d dtsRun) Measure(ctx context.Context, o Options, m *Measured) error {
	one := int(mediumFull * o.Scale.Factor)
	m.Sizes = fmt.Sprintf("one table of %s documents of 1.2 KB (1:%s of the published), five tables of %s together (1:%s), a backlog of %s operations (its size was not published)",
		humanize.Comma(int64(one)), ratioTo(publishedOne, one), humanize.Comma(int64(d.many(one))), ratioTo(publishedMany, d.many(one)), humanize.Comma(int64(one)))
	m.Notes = append(m.Notes, "A checkpoint waits for the majority of the three members (`--write-concern=majority`).")
	return o.steps(ctx, m, []step{
		d.step(o, m, fullOne), d.step(o, m, fullMany), d.spared(o, m), d.step(o, m, backlog),
	})
}

// many is how many documents five tables have together: in the publication 2.5
// times those of the one table.
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

// spared is the copy of five tables that spares the source, of millrace alone.
func (d dtsRun) spared(o Options, m *Measured) step {
	at := key(fullMany, "millrace-spared")
	return step{scenario: fullMany, keys: []string{at},
		change: func(b *bench.Options) {
			d.fits(o, fullMany, b)
			b.MillraceArgs, b.Peers = append(b.MillraceArgs, "--source-load=low"), nil
		},
		take: func(r *bench.Report) error {
			c := &r.Cases[0]
			x, err := contender(c, benchMillrace)
			if err == nil {
				m.set(at, rates(c, x))
			}
			return err
		}}
}

// keys are the figures that a scenario gives of millrace and its ceiling.
func (dtsRun) keys(work string) []string {
	mine, limit := key(work, "millrace"), key(work, "limit")
	return []string{mine, key(mine, "each"), key(mine, "peak"), key(limit, "millrace"), key(limit, "ceiling")}
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
		case x.Kind == bench.KindCeiling && finished(c, x) == nil:
			m.set(key(key(work, "limit"), "ceiling"), rates(c, x))
		case x.Kind == bench.KindPeer:
			tool := key(work, map[string]string{benchShakePublished: "mongoshake", benchShakeDefaults: "mongoshake-defaults"}[x.Name])
			if err := finished(c, x); err != nil {
				m.miss(oneLine(err), tool, key(tool, "each"), key(tool, "peak"))
				continue
			}
			d.tool(c, x, m, tool)
		}
		d.curve(c, x, m, work)
	}
	return nil
}

// tool notes what a tool did and used.
func (dtsRun) tool(c *bench.Case, x *bench.Contender, m *Measured, at string) {
	m.set(at, rates(c, x))
	m.set(key(at, "each"), rounds(x, func(r bench.Round) float64 { return 1e6 * r.ToolCPU / done(c, r) }))
	m.set(key(at, "peak"), rounds(x, func(r bench.Round) float64 { return float64(r.Peak) / 1e6 }))
}

// curve keeps a contender's course over time.
func (dtsRun) curve(c *bench.Case, x *bench.Contender, m *Measured, work string) {
	if x.Kind != bench.KindMillrace && x.Kind != bench.KindPeer {
		return
	}
	points := thin(middle(x).Series)
	for _, of := range []struct {
		name, title string
		value       func(bench.Point) float64
	}{
		{"rate", "changed at the target a second, 10 s average, over seconds", func(p bench.Point) float64 { return p.Rate }},
		{"memory", "memory of the tool, MB, over seconds", func(p bench.Point) float64 { return float64(p.Resident) / 1e6 }},
	} {
		line := Curve{Chart: work + "-" + of.name, Title: c.Name() + ": " + of.title, Name: x.Name}
		for _, p := range points {
			line.X, line.Y = append(line.X, short(p.Seconds)), append(line.Y, short(of.value(p)))
		}
		if len(points) > 1 {
			m.Curves = append(m.Curves, line)
		}
	}
}

// middle is the round whose time is nearest to the median.
func middle(x *bench.Contender) bench.Round {
	var best bench.Round
	distance := func(r bench.Round) float64 { return max(r.Seconds-x.Seconds.Median, x.Seconds.Median-r.Seconds) }
	for i, r := range x.Rounds {
		if i == 0 || distance(r) < distance(best) {
			best = r
		}
	}
	return best
}

// thin leaves as many points as a picture can show.
func thin(points []bench.Point) (some []bench.Point) {
	const most = 100
	every := len(points)/most + 1
	for i := 0; i < len(points); i += every {
		some = append(some, points[i])
	}
	return some
}
