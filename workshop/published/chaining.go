package published

import (
	"math"
	"strconv"

	"github.com/millrace/millrace/internal/topology"
)

// chainCell is a set with a write concern, and what was published of it.
type chainCell struct {
	members int
	concern string
	on, off topology.Cell
}

// chainSizes are the published sets by their members.
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

// set names the set's members.
func (c chainCell) set() string {
	return map[int]string{3: "primary, secondary, hidden", 7: "primary, 5 secondaries, hidden", 15: "7 voting as above, 8 read-only without a vote"}[c.members]
}

// chainKey begins the keys of a cell's figures.
func chainKey(members int, concern string) string { return strconv.Itoa(members) + "/" + concern }

// chaining is the measurement of chained replication.
func chaining() Table {
	return Table{
		Number: 5, Title: "Chained replication", By: "Alibaba Cloud: ApsaraDB for MongoDB 5.0.30",
		Machine:    "members of 4 cores and 8 GB with cloud disks; round trip from client to server 0.103 ms, between members not published",
		Conditions: "YCSB load of 5,000,000 records with 8 threads",
		Says: []string{
			"Few members: either way. Many members and w:1: chaining on. Many members and majority: weigh the rate (off) against the primary's load (on).",
			"The trees and the mean latencies were not published.",
		},
		Here: []string{
			"All members run on one machine. The primary has processors to itself; the others share what is left, so that writes of majority concern wait for members that would have hosts of their own.",
			"Chaining on is a tree drawn from those that members choose by their rules, and told once: on one machine all are equally near, and members would nearly always follow the primary.",
		},
		Absent: []Absent{
			{"members on hosts of their own with cloud disks", "there is one machine"},
			{"ApsaraDB 5.0.30", "a product of its cloud; the servers are mongod 6.0"},
			{"the published trees and round trips between members", "not published"},
		},
		Groups: []Group{chainRates(), chainCPU(), chainFar(), chainPlanned()},
		charts: chainCharts,
	}
}

const (
	chainWhy = "The members other than the primary share processors here, and the round trip between members was not published. " +
		"Which of the two is ahead under majority depends on both: on how long a hop of the tree takes, and on how soon a member with little time gets to apply a write."
	chainW1Why = "With w:1 nobody waits for a member. There the primary was full (90 to 94 %), so that what it spends on those that fetch from it decided. Here it is full with 3 members only; " +
		"with 7 and 15 the clients share processors with the other members, and the rates compare what all of them leave to the clients."
)

func chainPlace() []string { return []string{"members", "write concern"} }

// chainRows are the published sets with a figure of their cells.
func chainRows(of func(topology.Cell) float64) (rows []Row) {
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		r := Row{Key: k, Place: []string{strconv.Itoa(c.members) + " (" + c.set() + ")", c.concern}, Published: values(of(c.on), of(c.off)), Why: chainWhy}
		if c.concern == "1" {
			r.Why = chainW1Why
		}
		rows = append(rows, r)
	}
	return rows
}

func chainRates() Group {
	g := Group{
		Title: "Writes", Place: chainPlace(), Ratio: "off against on", Change: true,
		Columns: []Column{{Key: "on", Name: "chaining on", Unit: PerSecond}, {Key: "off", Name: "off", Unit: PerSecond}},
		Rows:    chainRows(func(c topology.Cell) float64 { return c.OpsPerSecond }),
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

func chainCPU() Group {
	return Group{
		Title: "Processors of the primary", Place: chainPlace(),
		Columns: []Column{{Key: "on-cpu", Name: "chaining on", Unit: Percent}, {Key: "off-cpu", Name: "off", Unit: Percent}},
		Rows:    chainRows(func(c topology.Cell) float64 { return math.Round(100 * c.CPU) }),
	}
}

// chainFar are the same sets with longer ways between the members.
func chainFar() Group {
	g := Group{
		Title: "The same with 1 ms between members", Place: chainPlace(), Ratio: "off against on", Change: true,
		Columns: []Column{{Key: "on-far", Name: "chaining on", Unit: PerSecond}, {Key: "off-far", Name: "off", Unit: PerSecond},
			{Key: "on-far-cpu", Name: "primary's processors, on", Unit: Percent}, {Key: "off-far-cpu", Name: "off", Unit: Percent}},
	}
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(c.members), c.concern}, Ratio: over(k, "off-far", "on-far"),
			Why: "The published round trip is not known: this is the other end of what members of one data centre have."})
	}
	return g
}

// chainPlanned are millrace's trees against the better of the two.
func chainPlanned() Group {
	g := Group{
		Title: "millrace's planned tree", Place: chainPlace(), Ratio: "of the better of on and off",
		Columns: []Column{{Key: "planned", Name: "planned", Unit: PerSecond}, {Key: "planned-cpu", Name: "primary's processors", Unit: Percent}},
	}
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		g.Rows = append(g.Rows, Row{Key: k, Place: []string{strconv.Itoa(c.members), c.concern},
			Ratio: Ratio{Of: key(k, "planned"), To: []string{key(k, "on"), key(k, "off")}},
			Why:   "The publication has no such tree. `millrace topology` plans the tree for the set and holds it."})
	}
	return g
}
