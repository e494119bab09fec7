package topology

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/millrace/millrace/test/testseed"
)

// randomSet makes a set of n members as they occur: up to 7 votes, zones with
// their round trips, hidden, delayed and down members, arbiters, any present tree.
func randomSet(r *rand.Rand, n int) *Set {
	set := &Set{Name: "random", Chaining: r.IntN(8) != 0}
	zones := 1 + r.IntN(3)
	votes := min(n, 1+2*r.IntN(4))
	at := make([]int, n)
	for i := range n {
		at[i] = r.IntN(zones)
		m := Member{ID: i, Host: fmt.Sprintf("h%d:1", i), State: StateSecondary, Healthy: true, Asked: true, Priority: 1,
			Tags: map[string]string{}, Ping: map[string]float64{}}
		if r.IntN(4) > 0 {
			m.Tags["dc"] = fmt.Sprint(at[i])
		}
		if i < votes {
			m.Votes = 1
		}
		if i > 0 {
			switch r.IntN(14) {
			case 0:
				m.Hidden = true
			case 1:
				m.Hidden, m.DelaySeconds = true, 3600
			case 2:
				m.State, m.Arbiter = StateArbiter, true
			case 3:
				m.State, m.InitialSync = StateStartup2, true
			case 4:
				m.Healthy, m.State = false, "(not reachable/healthy)"
			case 5:
				m.NoIndexes = true
			case 6:
				yes := true
				m.Override = &yes
			}
		}
		set.Members = append(set.Members, m)
	}
	set.Members[0].State = StatePrimary
	for i := range n {
		m := &set.Members[i]
		for j := range n {
			if i == j || r.IntN(10) == 0 {
				continue
			}
			m.Ping[set.Members[j].Host] = float64(r.IntN(2) + 40*abs(at[i]-at[j]))
		}
		if m.State == StateSecondary {
			m.Source = set.Members[r.IntN(n)].Host
		}
	}
	r.Shuffle(n, func(i, j int) { set.Members[i], set.Members[j] = set.Members[j], set.Members[i] })
	return set
}

func abs(n int) int { return max(n, -n) }

func randomOptions(r *rand.Rand) PlanOptions {
	o := PlanOptions{Policy: []Policy{PolicyBalanced, PolicyLatency, PolicyFanOut}[r.IntN(3)]}
	if r.IntN(3) == 0 {
		o.FanOut = 1 + r.IntN(5)
	}
	if r.IntN(3) == 0 {
		o.Depth = 1 + r.IntN(5)
	}
	if r.IntN(4) == 0 {
		o.Spare = r.IntN(3)
	}
	o.WriteConcern = []string{"", Majority, "1", "2", "5"}[r.IntN(5)]
	return o
}

// checkTree checks what must hold of every tree, in other words than the
// planner's: rules of the server and of operators.
func checkTree(set *Set, tree map[string]string) error {
	primary := set.Primary().Host
	for host, src := range tree {
		m, s := set.Member(host), set.Member(src)
		switch {
		case s == nil:
			return fmt.Errorf("%s fetches from %q, which is not in the set", host, src)
		case !m.Healthy || m.State != StateSecondary || m.InitialSync:
			return fmt.Errorf("%s is moved but %s", host, m.State)
		case src != primary &&
			(s.Hidden || s.DelaySeconds > 0 || s.Arbiter || s.NoIndexes || !s.Healthy || s.State != StateSecondary):
			return fmt.Errorf("%s fetches from the unsuitable %+v", host, s)
		case m.Votes > 0 && s.Votes == 0 && src != primary:
			return fmt.Errorf("voter %s fetches from %s, which has no vote", host, src)
		case src != primary && !set.Chaining && (m.Override == nil || !*m.Override):
			return fmt.Errorf("%s is chained although it may not", host)
		}
		steps := 0
		for h := host; h != primary; h = tree[h] {
			if steps++; steps > len(set.Members) || h == "" {
				return fmt.Errorf("%s does not reach the primary", host)
			}
		}
	}
	return nil
}

func children(tree map[string]string) map[string]int {
	n := map[string]int{}
	for _, s := range tree {
		n[s]++
	}
	return n
}

func checkPlan(set *Set, o PlanOptions, p *Plan) error {
	tree, primary := p.Tree(), set.Primary().Host
	if err := checkTree(set, tree); err != nil {
		return err
	}
	fit := 0
	for _, m := range set.Members {
		if m.State == StateSecondary && m.Healthy && !m.Arbiter && !m.InitialSync {
			fit++
		}
	}
	if fit != len(p.Seats) || len(tree) != fit {
		return fmt.Errorf("%d members can be seated, %d are", fit, len(p.Seats))
	}
	load := children(tree)
	for host, n := range load {
		if host != primary && (n > p.FanOut || o.FanOut > 0 && n > o.FanOut) {
			return fmt.Errorf("%s serves %d", host, n)
		}
	}
	direct, votersUp := 0, 0
	depth := map[string]int{primary: 0}
	for _, s := range p.Seats {
		d, ok := depth[s.Source]
		if !ok {
			return fmt.Errorf("%s is seated before its source", s.Host)
		}
		depth[s.Host] = d + 1
		if s.Depth != d+1 || d+1 > max(p.Depth, 1) {
			return fmt.Errorf("%s is %d deep, it says %d, the limit is %d", s.Host, d+1, s.Depth, p.Depth)
		}
		if m := set.Member(s.Host); m.Votes > 0 && m.DelaySeconds == 0 {
			votersUp++
			if d == 0 {
				direct++
			}
		}
	}
	need := p.Majority - set.Primary().Votes
	if n, err := strconv.Atoi(o.WriteConcern); err == nil {
		need = n - set.Primary().Votes
	}
	if direct < min(need, votersUp) {
		return fmt.Errorf("%d voters are directly under the primary, writes wait for %d", direct, need)
	}
	return checkLosses(set, p, load)
}

// checkLosses loses one inner node after the other.
func checkLosses(set *Set, p *Plan, load map[string]int) error {
	primary := set.Primary().Host
	for lost := range load {
		if lost == primary {
			continue
		}
		tree := p.Tree()
		delete(tree, lost)
		for _, s := range p.Seats {
			if s.Source == lost {
				if s.Second == "" || s.Second == lost {
					return fmt.Errorf("%s has no second choice", s.Host)
				}
				tree[s.Host] = s.Second
			}
		}
		if err := checkTree(set, tree); err != nil {
			return fmt.Errorf("after the loss of %s: %w", lost, err)
		}
		for host, n := range children(tree) {
			if host == lost || host != primary && n > p.FanOut {
				return fmt.Errorf("after the loss of %s, %s serves %d", lost, host, n)
			}
		}
	}
	return nil
}

// Every plan for every set keeps the promises, and a set that has the planned
// tree needs no change.
func TestPlanProperties(t *testing.T) { testseed.Each(t, planProperties) }

func planProperties(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range 400 {
		set, o := randomSet(r, 3+r.IntN(48)), randomOptions(r)
		plan, err := MakePlan(set, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPlan(set, o, plan); err != nil {
			t.Fatalf("set %d, %+v: %v\n%s", i, o, err, picture(set, plan))
		}
		tree := plan.Tree()
		for j := range set.Members {
			if src := tree[set.Members[j].Host]; src != "" {
				set.Members[j].Source = src
			}
		}
		again, err := MakePlan(set, o)
		if err != nil || len(again.Changes()) != 0 {
			t.Fatalf("set %d, %+v: planned again: %v, %+v\n%s", i, o, err, again.Changes(), picture(set, plan))
		}
	}
}

func picture(set *Set, p *Plan) (out string) {
	for _, l := range Lines(set, p.Tree()) {
		m := set.Member(l.Host)
		out += fmt.Sprintf("%s%s votes %d hidden %v delay %d %s tags %v\n", l.Prefix, l.Host, m.Votes, m.Hidden,
			m.DelaySeconds, m.State, m.Tags)
	}
	return out
}

// zoned makes a healthy set: zones[i] is the zone of member i, the first is the
// primary, the first voters have votes; 30 ms lie between zones.
func zoned(voters int, zones ...int) *Set {
	set := &Set{Name: "zoned", Chaining: true}
	for i, z := range zones {
		m := Member{ID: i, Host: fmt.Sprintf("m%d:1", i), State: StateSecondary, Healthy: true,
			Tags: map[string]string{"dc": fmt.Sprint(z)}, Ping: map[string]float64{}}
		if i < voters {
			m.Votes = 1
		}
		for j, other := range zones {
			if j != i {
				m.Ping[fmt.Sprintf("m%d:1", j)] = float64(30 * abs(z-other))
			}
		}
		set.Members = append(set.Members, m)
	}
	set.Members[0].State = StatePrimary
	return set
}

// The published seven-member set: three voters make the majority with the
// primary, the other three hang below them.
func TestPlanOfSeven(t *testing.T) {
	plan, err := MakePlan(zoned(7, 0, 0, 0, 0, 0, 0, 0), PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := children(plan.Tree()); n["m0:1"] != 3 || n["m1:1"] != 1 || n["m2:1"] != 1 || n["m3:1"] != 1 {
		t.Errorf("%v", n)
	}
}

// One member of a remote zone fetches across, the others from it.
func TestPlanCrossesZonesOnce(t *testing.T) {
	set := zoned(5, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2)
	plan, err := MakePlan(set, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	crossings := 0
	for _, s := range plan.Seats {
		if set.Member(s.Host).Tags["dc"] != set.Member(s.Source).Tags["dc"] {
			crossings++
		}
	}
	if crossings != 2 {
		t.Errorf("%d links cross zones\n%s", crossings, picture(set, plan))
	}
}

// Where writes wait for nobody one voter relieves the primary of all others.
func TestPlanForOne(t *testing.T) {
	set := zoned(7, 0, 0, 0, 0, 0, 0, 0)
	plan, err := MakePlan(set, PlanOptions{WriteConcern: "1"})
	if err != nil {
		t.Fatal(err)
	}
	if n := children(plan.Tree()); n["m0:1"] != 1 || plan.Seats[0].Why != "feeds the others" || plan.FanOut != 3 {
		t.Errorf("%v\n%s", n, picture(set, plan))
	}
}

func TestPlanWithoutChaining(t *testing.T) {
	set := zoned(5, 0, 0, 0, 0, 0)
	set.Chaining = false
	plan, err := MakePlan(set, PlanOptions{})
	if err != nil || children(plan.Tree())["m0:1"] != 4 || len(plan.Notes) == 0 {
		t.Errorf("%v %+v", err, plan)
	}
}

// Voters in the middle of an election, unknown policies and negative limits are refused.
func TestPlanRefuses(t *testing.T) {
	set := zoned(3, 0, 0, 0)
	for _, o := range []PlanOptions{{Policy: "best"}, {FanOut: -1}, {Depth: -1}, {WriteConcern: "0"},
		{WriteConcern: "all"}} {
		if _, err := MakePlan(set, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	set.Members[0].State = StateSecondary
	if _, err := MakePlan(set, PlanOptions{}); err == nil {
		t.Error("a set without a primary is planned")
	}
}

// Round trips that vary move nobody who is well placed.
func TestPlanIsCalm(t *testing.T) {
	set := zoned(7, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2)
	plan, err := MakePlan(set, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range set.Members {
		set.Members[i].Source = plan.Tree()[set.Members[i].Host]
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		for _, m := range set.Members {
			for host, ms := range m.Ping {
				m.Ping[host] = max(0, float64(int(ms)/30*30+r.IntN(12)))
			}
		}
		again, err := MakePlan(set, PlanOptions{})
		if err != nil || len(again.Changes()) != 0 {
			t.Fatalf("%v: %+v", err, again.Changes())
		}
	}
}
