package topology

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

type planner struct {
	set     *Set
	o       PlanOptions
	primary *Member
	zoneTag string

	depth    map[string]int
	load     map[string]int // members that fetch from it
	source   map[string]string
	why      map[string]string
	placed   []*Member // in order of placement; sources come first
	limit    int       // of the primary
	overflow int       // members under the primary beyond limit
	left     []Left
	notes    []string
}

func newPlanner(set *Set, o PlanOptions) *planner {
	return &planner{set: set, o: o, primary: set.Primary(), zoneTag: cmp.Or(o.ZoneTag, findZoneTag(set)),
		depth: map[string]int{}, load: map[string]int{}, source: map[string]string{}, why: map[string]string{}}
}

func findZoneTag(set *Set) string {
	for _, tag := range []string{"zone", "az", "dc", "datacenter", "data_center", "region"} {
		values := map[string]bool{}
		for _, m := range set.Members {
			if v := m.Tags[tag]; v != "" {
				values[v] = true
			}
		}
		if len(values) > 1 {
			return tag
		}
	}
	return ""
}

// plan seats first the voters that writes wait for, then members that can be sources, then leaves.
func (p *planner) plan() *Plan {
	members := p.seatable()
	core := p.core(members)
	p.limit = p.primaryLimit(members, len(core))
	for _, m := range core {
		p.place(m, p.primary, p.coreReason())
	}
	rest := slices.DeleteFunc(members, func(m *Member) bool { return slices.Contains(core, m) })
	slices.SortStableFunc(rest, func(a, b *Member) int { // voters first: they do not fetch from members without a vote
		return cmp.Or(boolRank(a.Votes == 0)-boolRank(b.Votes == 0), boolRank(!p.inner(a))-boolRank(!p.inner(b)),
			p.compareDistance(a, b, p.primary), a.ID-b.ID)
	})
	for _, m := range rest {
		src := p.choose(m)
		p.place(m, src, p.reason(m, src))
	}
	return p.result()
}

// seatable returns the members whose source can be set.
func (p *planner) seatable() []*Member {
	var out []*Member
	for i := range p.set.Members {
		m := &p.set.Members[i]
		why := ""
		switch {
		case m.Host == p.primary.Host, m.Arbiter:
			continue
		case m.InitialSync:
			why = "is in its initial sync, which a change of source would start again"
		case !m.Healthy:
			why = "is down"
		case m.State != StateSecondary:
			why = "is " + strings.ToLower(m.State)
		}
		if why != "" {
			p.left = append(p.left, Left{m.Host, why})
			continue
		}
		out = append(out, m)
	}
	return out
}

// core returns the voters that writes wait for besides the primary, at least one: first those that can serve
// others, then the nearest. Their present place does not count, or each plan would move some again.
func (p *planner) core(members []*Member) []*Member {
	need := max(p.o.acknowledge(p.set)-min(p.primary.Votes, 1), 1) + p.o.Spare
	voters := slices.DeleteFunc(slices.Clone(members), func(m *Member) bool { return m.Votes == 0 || m.DelaySeconds > 0 })
	slices.SortStableFunc(voters, func(a, b *Member) int {
		return cmp.Or(boolRank(!p.inner(a))-boolRank(!p.inner(b)), p.compareDistance(a, b, p.primary),
			boolRank(p.set.MayChain(a))-boolRank(p.set.MayChain(b)), a.ID-b.ID)
	})
	if short := majority(p.set) - min(p.primary.Votes, 1) - len(voters); short > 0 {
		p.notes = append(p.notes, fmt.Sprintf("%d voters too few are up to make the majority", short))
	}
	return voters[:min(need, len(voters))]
}

func (p *planner) coreReason() string {
	switch p.o.acknowledge(p.set) {
	case majority(p.set):
		return "makes the majority"
	case 1:
		return "feeds the others"
	}
	return "acknowledges writes"
}

func (p *planner) primaryLimit(members []*Member, core int) int {
	limit := p.o.PrimaryFanOut
	if limit == 0 && p.o.Policy == PolicyLatency {
		voters := slices.DeleteFunc(slices.Clone(members), func(m *Member) bool { return m.Votes == 0 })
		limit = max(len(voters), latencyRoom)
	}
	return max(limit, core, 1)
}

// inner reports a secondary that others may fetch from by the plan.
func (p *planner) inner(m *Member) bool { return m.Inner() && !slices.Contains(p.o.Avoid, m.Host) }

// canFeed reports whether the server lets m fetch from src: a voter does not fetch from a member without a vote.
func (p *planner) canFeed(src, m *Member) bool {
	return src.Host != m.Host && (src.Host == p.primary.Host ||
		p.inner(src) && p.set.MayChain(m) && (m.Votes == 0 || src.Votes > 0))
}

func (p *planner) choose(m *Member) *Member {
	var best *Member
	if p.opensZone(m) {
		best = p.secondary(m, p.o.Depth-1) // leaves room below it
	}
	if best == nil {
		best = p.secondary(m, p.o.Depth)
	}
	room := p.load[p.primary.Host] < p.limit
	switch {
	case best == nil:
		if !room && p.set.MayChain(m) {
			p.overflow++
		}
		return p.primary
	case room && (p.o.Policy == PolicyLatency || p.better(m, p.primary, best)):
		return p.primary
	}
	return best
}

// secondary returns the best source at most depth deep, nil for none.
func (p *planner) secondary(m *Member, depth int) (best *Member) {
	for _, s := range p.placed {
		if p.canFeed(s, m) && p.load[s.Host] < p.o.FanOut && p.depth[s.Host] < depth &&
			(best == nil || p.better(m, s, best)) {
			best = s
		}
	}
	return best
}

// opensZone reports the first member of a zone, from which the others of the zone should fetch.
func (p *planner) opensZone(m *Member) bool {
	if p.zoneTag == "" || !p.inner(m) {
		return false
	}
	return p.zoneStep(p.primary, m) != 0 &&
		!slices.ContainsFunc(p.placed, func(s *Member) bool { return p.inner(s) && p.zoneStep(s, m) == 0 })
}

// better reports whether m should rather fetch from a than from b.
func (p *planner) better(m, a, b *Member) bool {
	distance := p.compareDistance(a, b, m)
	depth := p.depth[a.Host] - p.depth[b.Host]
	load := p.load[a.Host] - p.load[b.Host]
	stay := boolRank(m.Source == b.Host) - boolRank(m.Source == a.Host)
	if p.o.Policy == PolicyFanOut {
		return cmp.Or(p.zoneStep(a, m)-p.zoneStep(b, m), load, depth, distance, stay, a.ID-b.ID) < 0
	}
	return cmp.Or(distance, depth, stay, load, a.ID-b.ID) < 0
}

// compareDistance compares by zone, then by round trips in steps of doubling: smaller differences are noise.
func (p *planner) compareDistance(a, b, from *Member) int {
	return cmp.Or(p.zoneStep(a, from)-p.zoneStep(b, from), p.pingStep(a, from)-p.pingStep(b, from))
}

func (p *planner) zoneStep(a, b *Member) int {
	if p.zoneTag == "" {
		return 0
	}
	return boolRank(a.Tags[p.zoneTag] != b.Tags[p.zoneTag])
}

func (p *planner) pingStep(a, b *Member) int {
	ms, ok := p.set.pingBetween(a, b)
	if !ok || a == b {
		return 0
	}
	const noise = 8 // milliseconds in a busy data centre
	return bits.Len(uint(max(ms, 0)) / noise)
}

func (p *planner) reason(m, src *Member) string {
	switch {
	case src.Host == p.primary.Host && !p.set.MayChain(m):
		return "chaining is off"
	case src.Host == p.primary.Host && p.load[src.Host] >= p.limit:
		return "no secondary has room for it"
	case src.Host == p.primary.Host:
		return "the primary has room"
	case p.zoneTag != "" && p.zoneStep(m, src) == 0:
		return "nearest in its zone"
	}
	return "nearest with room"
}

func (p *planner) place(m, src *Member, why string) {
	p.source[m.Host], p.why[m.Host] = src.Host, why
	p.depth[m.Host] = p.depth[src.Host] + 1
	p.load[src.Host]++
	p.placed = append(p.placed, m)
}

func (p *planner) result() *Plan {
	plan := &Plan{Set: p.set.Name, Primary: p.primary.Host, Policy: p.o.Policy, FanOut: p.o.FanOut, Depth: p.o.Depth,
		ZoneTag: p.zoneTag, Majority: majority(p.set), WriteConcern: p.o.WriteConcern, Left: p.left, Notes: p.notes}
	if !p.set.Chaining {
		plan.Notes = append(plan.Notes, "chaining is off in the set's configuration: only members started with "+
			"enableOverrideClusterChainingSetting can be chained; see millrace topology chaining on")
	}
	if p.overflow > 0 {
		plan.Notes = append(plan.Notes, fmt.Sprintf("%d members more than wanted are under the primary: no secondary has "+
			"room for them within the limits", p.overflow))
	}
	seconds := p.seconds()
	slices.SortStableFunc(p.placed, func(a, b *Member) int { return p.depth[a.Host] - p.depth[b.Host] })
	for _, m := range p.placed {
		plan.Seats = append(plan.Seats, Seat{Host: m.Host, Source: p.source[m.Host], Depth: p.depth[m.Host],
			Second: seconds[m.Host], Current: m.Source, Why: p.why[m.Host]})
	}
	return plan
}

// seconds returns for each member the source to take when its own is lost. It is not below the lost one or the
// member, and no secondary exceeds the fan-out by the loss of one.
func (p *planner) seconds() map[string]string {
	out := map[string]string{}
	extra := map[[2]string]int{} // by the lost source and its substitute
	for _, m := range p.placed {
		src := p.source[m.Host]
		var best *Member
		for _, s := range p.placed {
			lost := src != p.primary.Host && p.below(s.Host, src)
			full := p.load[s.Host]+extra[[2]string{src, s.Host}] >= p.o.FanOut
			deep := p.depth[s.Host]+1 > max(p.depth[m.Host], p.o.Depth) // its own followers go down with it
			if s.Host == src || lost || full || deep || p.below(s.Host, m.Host) || !p.canFeed(s, m) {
				continue
			}
			if best == nil || p.better(m, s, best) {
				best = s
			}
		}
		switch {
		case best != nil:
			out[m.Host] = best.Host
			extra[[2]string{src, best.Host}]++
		case src != p.primary.Host:
			out[m.Host] = p.primary.Host
		}
	}
	return out
}

// below reports whether a host is top or below it.
func (p *planner) below(host, top string) bool {
	for ; host != ""; host = p.source[host] {
		if host == top {
			return true
		}
	}
	return false
}

// keep returns the plan that leaves all members in place, nil when that tree is worse. Otherwise varying round
// trips would move members back and forth.
func (p *planner) keep() *Plan {
	k := newPlanner(p.set, p.o)
	members := k.seatable()
	tree := p.set.Tree()
	depth := map[string]int{}
	for _, m := range members {
		src := p.set.Member(m.Source)
		hops, _, ok := pathOf(p.set, tree, p.primary, m.Host)
		if src == nil || !ok || !p.canFeed(src, m) {
			return nil
		}
		depth[m.Host] = int(hops)
	}
	slices.SortStableFunc(members, func(a, b *Member) int { return depth[a.Host] - depth[b.Host] })
	for _, m := range members {
		src := p.set.Member(m.Source)
		if src != p.primary && !slices.Contains(k.placed, src) {
			return nil // it fetches from a member that the plan would not seat
		}
		k.place(m, src, "is well placed")
	}
	if !p.asGood(k) {
		return nil
	}
	k.limit, k.overflow, k.notes = p.limit, p.overflow, p.notes
	return k.result()
}

func (p *planner) asGood(k *planner) bool {
	now, planned := k.measure(), p.measure()
	deeper := now.depths > planned.depths && (p.o.Policy == PolicyLatency || now.zones == planned.zones)
	return now.deepest <= max(p.o.Depth, 1) && !deeper && now.zones <= planned.zones &&
		now.distance <= planned.distance+len(k.placed) && // a step each is no more than round trips vary
		now.direct >= planned.direct && now.busiest <= planned.busiest && k.load[p.primary.Host] <= p.load[p.primary.Host]
}

type measures struct {
	zones, distance int // members that fetch from another zone; how far all are from their sources
	depths, deepest int // the sum, and the most
	direct          int // voters without delay under the primary
	busiest         int // most members under a secondary
}

func (p *planner) measure() (t measures) {
	for _, m := range p.placed {
		src, depth := p.set.Member(p.source[m.Host]), p.depth[m.Host]
		t.zones, t.distance = t.zones+p.zoneStep(m, src), t.distance+p.pingStep(m, src)
		t.depths, t.deepest = t.depths+depth, max(t.deepest, depth)
		t.direct += boolRank(m.Votes > 0 && m.DelaySeconds == 0 && depth == 1)
	}
	for host, n := range p.load {
		if host != p.primary.Host {
			t.busiest = max(t.busiest, n)
		}
	}
	return t
}
