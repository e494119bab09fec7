package published

import "strconv"

// chainCell is what was published of a set with a write concern: chaining on
// and off.
type chainCell struct {
	members int
	set     string
	concern string
	on, off float64 // writes a second
	// onCPU and offCPU are the primary's, in per cent.
	onCPU, offCPU float64
}

func chainCells() []chainCell {
	const three, seven = "primary, secondary, hidden", "primary, 5 secondaries, hidden"
	const fifteen = "7 voting as above, 8 read-only without a vote"
	return []chainCell{
		{3, three, "majority", 5277, 5241, 65, 65}, {7, seven, "majority", 3005, 4312, 56, 85}, {15, fifteen, "majority", 2932, 3123, 58, 91},
		{3, three, "1", 15075, 14785, 93, 93}, {7, seven, "1", 14414, 11492, 91, 93}, {15, fifteen, "1", 14093, 7500, 90, 94},
	}
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

// chainRows are the published sets with the figures that of picks.
func chainRows(of func(chainCell) (on, off float64)) (rows []Row) {
	for _, c := range chainCells() {
		k := chainKey(c.members, c.concern)
		on, off := of(c)
		r := Row{Key: k, Place: []string{strconv.Itoa(c.members) + " (" + c.set + ")", c.concern}, Published: values(on, off), Why: chainWhy}
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
		Rows:    chainRows(func(c chainCell) (float64, float64) { return c.on, c.off }),
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
		Rows:    chainRows(func(c chainCell) (float64, float64) { return c.onCPU, c.offCPU }),
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
