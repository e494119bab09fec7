package topology

import "slices"

// keep returns the plan that leaves everybody where they are, if the present
// tree keeps the same promises as the planned one and is about as good. Else a
// round trip that varies would move members back and forth. It returns nil when
// the present tree is worse.
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
	k.limit, k.overflow = p.limit, p.overflow
	k.notes = p.notes
	return k.result()
}

// asGood compares the present tree k with the planned one.
func (p *planner) asGood(k *planner) bool {
	sum := func(t *planner) (deep int) {
		for _, m := range t.placed {
			deep += t.depth[m.Host]
		}
		return deep
	}
	direct := func(t *planner) (voters int) {
		for _, m := range t.placed {
			if m.Votes > 0 && m.DelaySeconds == 0 && t.depth[m.Host] == 1 {
				voters++
			}
		}
		return voters
	}
	busiest := func(t *planner) (most int) {
		for host, n := range t.load {
			if host != p.primary.Host {
				most = max(most, n)
			}
		}
		return most
	}
	for _, m := range k.placed {
		if k.depth[m.Host] > max(p.o.Depth, 1) {
			return false
		}
	}
	zones, distance := k.ways()
	plannedZones, plannedDistance := p.ways()
	deeper := sum(k) > sum(p) && (p.o.Policy == PolicyLatency || zones == plannedZones)
	return !deeper && zones <= plannedZones && distance <= plannedDistance+len(k.placed) &&
		direct(k) >= direct(p) && busiest(k) <= busiest(p) && k.load[p.primary.Host] <= p.load[p.primary.Host]
}

// ways counts the members that fetch from another zone, and adds up how far all
// are from their sources; a step each is no more than round trips vary.
func (p *planner) ways() (zones, distance int) {
	for _, m := range p.placed {
		src := p.set.Member(p.source[m.Host])
		zones += p.zoneStep(m, src)
		distance += p.pingStep(m, src)
	}
	return zones, distance
}
