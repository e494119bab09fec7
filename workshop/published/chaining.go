package published

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/workshop/bench"
)

// chainCell is a set with a write concern, and what was published of it.
type chainCell struct {
	members int
	concern string
	on, off topology.Cell
}

func chainSizes() []int { return []int{3, 7, 15} }

func chainCells() (cells []chainCell) {
	for _, concern := range chainConcerns() {
		for _, n := range chainSizes() {
			off, on, _ := topology.PublishedPair(n, concern == topology.Majority)
			cells = append(cells, chainCell{n, concern, on, off})
		}
	}
	return cells
}

func (c chainCell) set() string {
	return map[int]string{3: "primary, secondary, hidden", 7: "primary, 5 secondaries, hidden",
		15: "7 voting as above, 8 read-only without a vote"}[c.members]
}

// chainKey begins the keys of a cell's figures.
func chainKey(members int, concern string) string { return strconv.Itoa(members) + "/" + concern }

func chaining(t *Table) {
	t.Groups = []Group{chainRates(t.Why), chainTimes(t.Why), chainCPU(t.Why), chainFar(t.Why), chainPlanned(t.Why)}
	t.charts = chainCharts
}

func chainPlace() []string { return []string{"members", "write concern"} }

// chainRows are the published sets with a figure of their cells.
func chainRows(why map[string]string, of func(topology.Cell) float64) (rows []Row) {
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		rows = append(rows, Row{Key: k, Place: []string{strconv.Itoa(c.members) + " (" + c.set() + ")", c.concern},
			Published: values(of(c.on), of(c.off)), Why: why["w:"+c.concern]})
	}
	return rows
}

func chainRates(why map[string]string) Group {
	g := Group{
		Title: "Writes", Place: chainPlace(), Ratio: "off against on", Change: true,
		Columns: []Column{{Key: "on", Name: "chaining on", Unit: PerSecond}, {Key: "off", Name: "off", Unit: PerSecond}},
		Rows:    chainRows(why, func(c topology.Cell) float64 { return c.OpsPerSecond }),
	}
	for i, c := range chainCells() {
		r := &g.Rows[i]
		r.Ratio = over(r.Key, "off", "on")
		if c.members > 3 {
			r.Headlines = []Headline{{Text: "chaining off against on, " + strconv.Itoa(c.members) + " members, w:" + c.concern}}
		}
	}
	return g
}

// chainTimes are mean response times of writes.
func chainTimes(why map[string]string) Group {
	g := Group{Title: "Response times of writes", Place: chainPlace(), Ratio: "off against on", Change: true,
		Columns: []Column{{Key: "on-ms", Name: "chaining on", Unit: Millis}, {Key: "off-ms", Name: "off", Unit: Millis},
			{Key: "planned-ms", Name: "planned", Unit: Millis},
			{Key: "on-far-ms", Name: "on, 1 ms between members", Unit: Millis},
			{Key: "off-far-ms", Name: "off, the same", Unit: Millis}}}
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(c.members), c.concern},
			Ratio: over(k, "off-ms", "on-ms"), Why: why["times"]})
	}
	return g
}

func chainCPU(why map[string]string) Group {
	return Group{
		Title: "Processors of the primary", Place: chainPlace(),
		Columns: []Column{{Key: "on-cpu", Name: "chaining on", Unit: Percent}, {Key: "off-cpu", Name: "off", Unit: Percent}},
		Rows:    chainRows(why, func(c topology.Cell) float64 { return math.Round(100 * c.CPU) }),
	}
}

// chainFar are the same sets with longer ways between the members.
func chainFar(why map[string]string) Group {
	g := Group{
		Title: "The same with 1 ms between members", Place: chainPlace(), Ratio: "off against on", Change: true,
		Columns: []Column{{Key: "on-far", Name: "chaining on", Unit: PerSecond},
			{Key: "off-far", Name: "off", Unit: PerSecond},
			{Key: "on-far-cpu", Name: "primary's processors, on", Unit: Percent},
			{Key: "off-far-cpu", Name: "off", Unit: Percent}},
	}
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(c.members), c.concern},
			Ratio: over(k, "off-far", "on-far"),
			Why:   why["far"]})
	}
	return g
}

// chainPlanned are millrace's trees against the better of the two.
func chainPlanned(why map[string]string) Group {
	g := Group{
		Title: "millrace's planned tree", Place: chainPlace(), Ratio: "of the better of on and off",
		Columns: []Column{{Key: "planned", Name: "planned", Unit: PerSecond},
			{Key: "planned-cpu", Name: "primary's processors", Unit: Percent}},
	}
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(c.members), c.concern},
			Ratio: Ratio{Of: key(k, "planned"), To: []string{key(k, "on"), key(k, "off")}}, Why: why["planned"]})
	}
	return g
}

// chainRun measures the fifth table: sets with chaining on, off, and planned.
type chainRun struct{}

// The names in the bench's reports.
const (
	benchOff        = "chaining off"
	benchOn         = "chaining on"
	benchPlanned    = "planned"
	benchPrimaryCPU = "primary CPU %"
	benchAverage    = "avg ms"
)

const chainClients = 8 // as published

// chainLink is a round trip between members, and what ends the keys of its ways.
type chainLink struct {
	rtt  time.Duration
	ends string
	ways []string
}

// chainLinks are that of the publication between client and server, and a longer one.
func chainLinks() []chainLink {
	return []chainLink{
		{100 * time.Microsecond, "", []string{"on", "off", "planned"}},
		{time.Millisecond, "-far", []string{"on", "off"}},
	}
}

// Measure measures a set of each size.
func (chainRun) Measure(ctx context.Context, o Options, m *Measured) error {
	members := chainSizes()
	m.Sizes = fmt.Sprintf("inserts for some seconds in place of 5,000,000 records; %d clients as published, 0.1 ms "+
		"between members", chainClients)
	if o.Scale.Name == "tiny" {
		members = members[:1]
		for _, n := range chainSizes()[1:] {
			for _, l := range chainLinks() {
				m.miss("the scale tiny measures sets of 3 members only", l.keys(n)...)
			}
		}
	}
	var all []step
	for _, n := range members {
		for _, l := range chainLinks() {
			all = append(all, step{scenario: "topology", keys: l.keys(n),
				change: func(b *bench.Options) {
					b.Topology = bench.TopologyOptions{Nodes: []int{n}, Clients: chainClients, PrimaryCores: 1,
						LinkRTTs: []time.Duration{l.rtt}}
				},
				take: func(r *bench.Report) error { return l.take(r, m, n) }})
		}
	}
	return o.steps(ctx, m, all)
}

// keys are the figures of the sets of one size.
func (l chainLink) keys(members int) (keys []string) {
	for _, concern := range chainConcerns() {
		k := chainKey(members, concern)
		for _, way := range l.ways {
			keys = append(keys, key(k, way+l.ends), key(k, way+l.ends+"-cpu"), key(k, way+l.ends+"-ms"))
		}
	}
	return keys
}

func chainConcerns() []string { return []string{topology.Majority, "1"} }

func (l chainLink) take(r *bench.Report, m *Measured, members int) error {
	for _, concern := range chainConcerns() {
		name := fmt.Sprintf("%d-w%s", members, concern)
		i := slices.IndexFunc(r.Cases, func(c bench.Case) bool {
			return c.Variant == name || strings.HasPrefix(c.Variant, name+"-")
		})
		if i < 0 {
			return fmt.Errorf("the report has no case %s", name)
		}
		if err := l.takeWays(&r.Cases[i], m, chainKey(members, concern)); err != nil {
			return err
		}
	}
	return nil
}

func (l chainLink) takeWays(c *bench.Case, m *Measured, k string) error {
	names := map[string]string{"off": benchOff, "on": benchOn, "planned": benchPlanned}
	for _, way := range l.ways {
		x, err := contender(c, names[way])
		if err != nil {
			return err
		}
		m.set(key(k, way+l.ends), rates(c, x))
		m.set(key(k, way+l.ends+"-cpu"), x.Each(func(r bench.Round) float64 { return r.Values[benchPrimaryCPU] }))
		m.set(key(k, way+l.ends+"-ms"), x.Each(func(r bench.Round) float64 { return r.Values[benchAverage] }))
	}
	return nil
}
