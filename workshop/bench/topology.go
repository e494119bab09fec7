package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/workshop/plot"
)

// TopologyOptions shape the scenario topology; the zero value is complete.
type TopologyOptions struct {
	Nodes         []int    // Nodes are the sizes of the sets, 3 to 50 members; none is 3.
	WriteConcerns []string // WriteConcerns are "1" and "majority"; none is both.
	// Clients that write at once, each waiting for its write; 0 is 8, as many as the published measurements had.
	Clients int
	// PrimaryCores is how many processors only the primary uses; 0 has all servers share all.
	PrimaryCores int
	// PrimaryShare is the part of these that it may use, up to 1; 0 is 1. It fills the primary before the others.
	PrimaryShare float64
	// LinkRTTs are the round trips between members that are measured; 0 is the loopback interface, none is 0.
	LinkRTTs []time.Duration
}

func (o TopologyOptions) complete() (TopologyOptions, error) {
	if len(o.Nodes) == 0 {
		o.Nodes = []int{3}
	}
	if len(o.WriteConcerns) == 0 {
		o.WriteConcerns = []string{"1", "majority"}
	}
	if len(o.LinkRTTs) == 0 {
		o.LinkRTTs = []time.Duration{0}
	}
	o.Clients, o.PrimaryShare = cmp.Or(o.Clients, 8), cmp.Or(o.PrimaryShare, 1)
	for _, n := range o.Nodes {
		if n < 3 || n > 50 {
			return o, fmt.Errorf("a set of %d members cannot be measured; use 3 to 50", n)
		}
	}
	for _, w := range o.WriteConcerns {
		if w != "1" && w != "majority" {
			return o, fmt.Errorf("write concern %q cannot be measured; use 1 or majority", w)
		}
	}
	if o.Clients < 1 || o.PrimaryCores < 0 || slices.Min(o.LinkRTTs) < 0 {
		return o, errors.New("clients have to be above zero, and the primary's cores and the round trips not below")
	}
	if o.PrimaryShare < 0.01 || o.PrimaryShare > 1 || o.PrimaryShare < 1 && o.PrimaryCores == 0 {
		return o, errors.New("the primary's share has to be from 0.01 to 1, of processors that it has to itself")
	}
	return o, nil
}

// The figures of the scenario topology.
const (
	writeAverage = "avg ms"
	writeP99     = "p99 ms"
	primaryCPU   = "primary CPU %"
	primaryEach  = "primary us"
	innerEach    = "inner us"
	leafEach     = "leaf us"
	followedRate = "followed rate"
	lagRunning   = "lag running s"
	lagAtEnd     = "lag end s"
	underPrimary = "direct"
	treeDepth    = "depth"
	sourcesMoved = "moved"
	modelRate    = "model rate"
	modelOf      = "model of ceiling"
	modelCPU     = "model CPU %"
)

// trees is the experiment of replica sets with chaining off, on, and planned.
type trees struct{}

func (trees) run(ctx context.Context, b *bench, s scenario) error {
	o, err := b.o.Topology.complete()
	if err != nil {
		return err
	}
	if b.o.Servers.given() {
		return mongo.WithHint(errors.New("this measurement reconfigures replica sets, which is not done to given clusters"),
			"run it without --source-uri and --target-uri")
	}
	for _, n := range o.Nodes {
		for _, rtt := range o.LinkRTTs {
			if err := b.treesOf(ctx, s, o, n, rtt); err != nil {
				return err
			}
		}
	}
	return nil
}

// treesOf measures sets of n members with a round trip between them.
func (b *bench) treesOf(ctx context.Context, s scenario, o TopologyOptions, n int, rtt time.Duration) (err error) {
	b.say("%s: starting %d servers", s.name, n)
	f, err := b.openForest(ctx, o, n, rtt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	for _, concern := range o.WriteConcerns {
		c := Case{
			Scenario: s.name, Variant: f.variant(concern), Ceiling: s.ceiling, Unit: "inserts",
			Work: fmt.Sprintf("YCSB load (inserts of 1 KB records) for %s by %d clients, write concern %s, on a set of %s",
				f.duration, o.Clients, concern, f.roles()),
			Columns: []string{"of ceiling", "rate", "rates", followedRate, writeAverage, writeP99, primaryCPU, primaryEach,
				innerEach, leafEach, lagRunning, lagAtEnd, underPrimary, treeDepth, sourcesMoved, modelRate, modelOf, modelCPU},
			Notes: f.notes(),
		}
		if err := b.compete(ctx, f.st, c, f.contenders(concern)); err != nil {
			return err
		}
	}
	return nil
}

func (f *forest) variant(concern string) string {
	name := itoa(f.n) + "-w" + concern
	if f.rtt > 0 {
		name += fmt.Sprintf("-%gms", millis(f.rtt))
	}
	return name
}

// contenders are chaining off, chaining on, and plans for any write concern and for the measured one.
func (f *forest) contenders(concern string) []contender {
	off := contender{name: chainingOff, kind: KindCeiling, how: "chainingAllowed: false; all fetch from the primary",
		prepare: func(ctx context.Context) error { return f.prepare(ctx, f.direct) },
		run:     func(ctx context.Context, m *meter) error { return f.measure(ctx, m, concern, false) }}
	draws := 0
	on := contender{name: chainingOn, kind: KindCeiling,
		how: "chainingAllowed: true; a tree of those that members choose by their rules, set once with replSetSyncFrom. " +
			"By the model it is the median one in the first round, then the quartiles, and so on",
		prepare: func(ctx context.Context) error {
			draws++
			return f.prepare(ctx, func(ctx context.Context) error { return f.chained(ctx, concern, spread(draws)) })
		}, run: off.run}
	planned := contender{name: treePlanned, kind: KindMillrace,
		how:     "millrace topology apply, then hold, policy balanced; the hold runs within the bench",
		prepare: func(ctx context.Context) error { return f.prepare(ctx, f.planned) },
		run:     func(ctx context.Context, m *meter) error { return f.measure(ctx, m, concern, true) }}
	return []contender{off, on, planned}
}

// spread returns numbers between 0 and 1 that lie evenly up to any n: 1/2, 1/4, 3/4, 1/8, 5/8 and so on.
func spread(n int) (share float64) {
	for step := 0.5; n > 0; n, step = n/2, step/2 {
		share += step * float64(n%2)
	}
	return share
}

func (f *forest) notes() []string {
	notes := []string{
		"followed rate: what the member furthest behind had at the end, a second. Where it is far below the rate, the rate " +
			"was won by not replicating",
		"us: processor time for one write, of the primary, of the secondary with the most and with none below it (medians " +
			"over such members); it depends less than the rate on what else the machine does, but grows where few writes " +
			"share a batch",
		"lag running: the median over time of the member that is furthest behind at that time, end: of that member when " +
			"the last write was acknowledged; direct: members under the primary; moved: members that changed their source " +
			"during the measurement",
		"model: of costs fitted to published figures of another machine, for the tree that was measured; its rate is for " +
			"as many cores as the primary has here, of ceiling compares with the better of its own predictions for chaining " +
			"off and on. Trust the ratio, not the rate",
		"on one machine all round trips are alike, and members left to themselves take the first member that is ahead, " +
			"which is nearly always the primary; that is why the trees of chaining on are drawn, and spread over what can be " +
			"drawn",
		"the servers share one disk and the memory's bandwidth",
	}
	if f.rtt > 0 {
		notes = append(notes, fmt.Sprintf("%s between any two members: all that they send each other goes through a proxy "+
			"in the bench, which costs processor time beside that of the servers; the model's hop is longer by it", f.rtt))
	} else {
		notes = append(notes, "nothing of the network between hosts is in the figures")
	}
	all := len(f.primaryOn) + len(f.othersOn)
	if len(f.primaryOn) == 0 {
		return append(notes, fmt.Sprintf("%d servers and the load share %d processors: what the secondaries use is taken "+
			"from the primary, so that each tree has the same work to do and the differences shrink", f.n, all))
	}
	if f.o.PrimaryShare < 1 {
		notes = append(notes, fmt.Sprintf("the primary may use %.0f %% of its processors, as if on a smaller machine, and "+
			"is paused for the rest of each few milliseconds; primary CPU is of what it may use", 100*f.o.PrimaryShare))
	}
	return append(notes, fmt.Sprintf("the primary has %d of %d processors to itself; %d secondaries, the load and the "+
		"bench share the other %d. Where those are full, writes of majority concern wait for secondaries that would have "+
		"machines of their own, lag grows, and members that lag spare the primary work that it would have",
		len(f.primaryOn), all, f.n-1, len(f.othersOn)))
}

func (f *forest) roles() string {
	text := fmt.Sprintf("%d: a primary, %s, a hidden voter", f.n, plot.Several(int64(f.voters-2), "other voter"))
	if f.n > f.voters {
		text += fmt.Sprintf(", %d without a vote", f.n-f.voters)
	}
	return text
}

func treeTime(s Scale) time.Duration {
	switch s.Name {
	case "small":
		return 3 * time.Second
	case "medium":
		return 8 * time.Second
	case "large":
		return 30 * time.Second
	}
	return time.Second
}

// MemberLag is how far a member was behind the primary, in seconds.
type MemberLag struct {
	Member string  `json:"member"` // m and its number in the configuration
	Median float64 `json:"median"` // while the load ran
	Most   float64 `json:"most"`
	End    float64 `json:"end"` // when the last write was acknowledged
}

// treePicture is the tree of a round as text, with the lag of each member.
func (r *Round) treePicture() []string {
	if r.Tree == nil {
		return nil
	}
	var lines []string
	for _, l := range topology.Lines(r.Tree, r.Tree.Tree()) {
		m := r.Tree.Member(l.Host)
		text := l.Prefix + m.Host
		switch {
		case m.State == topology.StatePrimary:
			text += " primary"
		case m.Hidden:
			text += " hidden voter"
		case m.Votes > 0:
			text += " voter"
		default:
			text += " no vote"
		}
		i := slices.IndexFunc(r.Members, func(x MemberLag) bool { return x.Member == m.Host })
		if i >= 0 {
			x := r.Members[i]
			text += fmt.Sprintf(", lag %s s, most %s s, end %s s", figure(x.Median), figure(x.Most), figure(x.End))
		}
		lines = append(lines, text)
	}
	return lines
}

func (x *Contender) picture(s *plot.Sheet) {
	if r := x.medianRound(); r.Tree != nil {
		s.Draw(x.Name+": the tree at the end of the median round",
			func(w io.Writer) error { return topology.WriteSVG(w, r.Tree, r.Tree.Tree()) })
	}
}

// Contenders: the ways that MongoDB itself offers, and the plan for all concerns.
const (
	chainingOff = "chaining off"
	chainingOn  = "chaining on"
	treePlanned = "planned"
)

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
