package precheck

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/suggest"
)

type sharder struct{ *planner }

func (p sharder) sharding(ctx context.Context) error {
	if p.Desired == nil || p.unread {
		return nil
	}
	rules := p.Desired.Rules.Names()
	if p.Target.Info.Kind != mongo.KindSharded {
		if zones := p.Desired.Zones.Names(); len(zones) > 0 {
			p.add(Fail, "zones", "leave --zone out, or name routers of a sharded cluster",
				"the target is not a sharded cluster and has no zones")
		}
		if len(rules) > 0 {
			p.add(Fail, "sharding", "leave --shard out, or name routers of a sharded cluster",
				"the target is not a sharded cluster")
		}
		return nil
	}
	if err := p.ruled(ctx, rules); err != nil {
		return err
	}
	colls, err := p.seen.collections()
	if err != nil {
		return err
	}
	s, err := p.seen.sharding()
	if err != nil {
		return err
	}
	p.sameCluster(s)
	var texts []string
	for _, c := range colls {
		p.keysMapped(c, s)
		if text := p.shard(c, s); text != "" {
			texts = append(texts, text)
		}
	}
	zoner(p).zones(colls, s)
	if p.Mode == state.ModeIncremental {
		return nil
	}
	if len(texts) == 0 {
		p.ok("sharding", "no collection is to be sharded on the target (%d shards)", len(s.shards))
		return nil
	}
	p.ok("sharding", "%d collections are to be sharded over %d shards, the others are not: %s. The balancer leaves "+
		"them alone until the job is finalized", len(texts), len(s.shards), some(texts, "; "))
	return nil
}

func (p sharder) ruled(ctx context.Context, rules []string) error {
	kinds := map[string]string{}
	colls, err := p.seen.collections()
	if err != nil {
		return err
	}
	for _, c := range colls {
		switch {
		case c.Type == schema.TypeView:
			kinds[c.NS] = "a view"
		case c.Type == schema.TypeTimeSeries:
			kinds[c.NS] = "a time-series collection, which millrace does not shard"
		case c.Capped():
			kinds[c.NS] = "capped"
		default:
			kinds[c.NS] = ""
		}
	}
	var unmatched []string
	for _, ns := range rules {
		kind, there := kinds[ns]
		switch key, _ := p.Desired.Rules.Of(ns); {
		case !there:
			unmatched = append(unmatched, ns)
		case kind != "" && key != nil:
			p.add(Fail, "sharding", "leave the rule out", "--shard %s=%s: %s is %s and cannot be sharded", ns,
				shardkey.Text(key), ns, kind)
		}
	}
	if len(unmatched) == 0 || p.copied() {
		return nil
	}
	all, err := schema.AllNames(ctx, p.Source)
	if err != nil {
		return err
	}
	for _, ns := range unmatched {
		p.plan.Checks = append(p.plan.Checks, unmatchedShard(ns, all, p.AllowMissing))
	}
	return nil
}

func unmatchedShard(ns string, names []string, allowed bool) Check {
	if slices.Contains(names, ns) {
		return Check{Level: Warn, Name: "sharding",
			Message: "--shard " + ns + " names a collection that the other rules leave out"}
	}
	level, hint := unmatched(allowed)
	return Check{Level: level, Name: "sharding", Message: "--shard " + ns + " matches nothing on the source",
		Hint: didYouMean(suggest.Name(ns, names), hint)}
}

func (p sharder) keysMapped(c schema.Collection, s sharding) {
	var keys []string
	for _, key := range []bson.Raw{s.desired[c.NS].Key, s.have[p.Rules.Target(c.NS)].Key} {
		els, _ := key.Elements()
		for _, e := range els {
			keys = append(keys, e.Key())
		}
	}
	if err := schema.CheckFields(c, p.Rules, keys); err != nil {
		p.add(Fail, "rules", mongo.HintOf(err), "%v", err)
	}
}

// sameCluster checks that all routers answer, and that the source is no shard of the target.
func (p sharder) sameCluster(s sharding) {
	if len(s.silent) > 0 {
		p.add(Warn, "target", "", "these routers do not answer: %s", strings.Join(s.silent, ", "))
	}
	for _, shard := range s.shards {
		if slices.ContainsFunc(p.Source.Info.Hosts, func(h string) bool { return slices.Contains(shard.Hosts, h) }) {
			p.add(Fail, "identity", "check --source and --target", "the source is a shard of the target, %s", shard.Name)
		}
	}
}

func (p sharder) shard(c schema.Collection, s sharding) string {
	w, target := s.desired[c.NS], p.Rules.Target(c.NS)
	if w.Why != "" {
		p.add(Warn, "sharding", "", "%s is sharded on the source, and will not be on the target: %s", c.NS, w.Why)
	}
	e, sharded := s.have[target]
	exists := p.exists(target)
	hint := "drop it on the target to have it made anew"
	switch {
	case p.copied():
		exists = exists && p.plan.ResumePhase != state.PhaseCreating // else it is about to be sharded
		hint = ""
	case p.onExisting() == state.ExistingDrop:
		exists, sharded = false, false
	}
	key := w.Key
	if exists || sharded {
		rule, ruled := p.Desired.Rules.Of(c.NS)
		kept := w.Key == nil && (!ruled || rule != nil) // no rule keeps it unsharded
		if sharded && (kept || placing.SameKey(e.Key, w.Key)) || !sharded && w.Key == nil {
			p.unfit(c, e.Key, "drop it on the source, or shard the target's collection by another key")
			return ""
		}
		if key = nil; sharded {
			key = e.Key
		}
		p.add(Warn, "sharding", hint, "%s exists on the target and stays as it is: its shard key is %s, not %s", target,
			shardkey.Text(key), shardkey.Text(w.Key))
		p.unfit(c, key, "drop it on the source, or shard the target's collection by another key")
		return ""
	}
	if key == nil {
		return ""
	}
	hint = "drop it on the source, or choose another key with --shard " + c.NS + "=key, or none"
	p.unfit(c, key, hint)
	if c.Collated() && shardkey.Text(key) == "_id:1" {
		p.add(Fail, "sharding", hint, "%s has a collation, with which servers do not shard by _id", c.NS)
	}
	return target + " by " + shardkey.Text(key)
}

// unfit reports unique indexes that a sharded collection cannot have: they must begin with its shard key.
func (p sharder) unfit(c schema.Collection, key bson.Raw, hint string) {
	if key == nil {
		return
	}
	var names []string
	for _, ix := range c.Indexes {
		if !placing.Fits(ix, key) {
			names = append(names, ix.Name)
		}
	}
	if len(names) > 0 {
		p.add(Fail, "sharding", hint,
			"%s cannot have its unique indexes when it is sharded by %s, with which a unique index has to begin: %s",
			c.NS, shardkey.Text(key), strings.Join(names, ", "))
	}
}

type zoner struct{ *planner }

func (p zoner) zones(colls []schema.Collection, s sharding) {
	if p.Source.Info.Kind != mongo.KindSharded {
		if len(p.Desired.Zones.Names()) > 0 {
			p.add(Fail, "zones", "leave --zone out", "the source is not a sharded cluster and has no zones")
		}
		return
	}
	p.zoneShards(s)
	used := map[string][]string{} // collections, by zone
	for _, c := range colls {
		for _, tag := range p.zonesFor(c, s) {
			used[tag] = append(used[tag], c.NS)
		}
	}
	var texts []string
	for _, tag := range slices.Sorted(maps.Keys(used)) {
		if text := p.zone(tag, used[tag], s); text != "" {
			texts = append(texts, text)
		}
	}
	p.zoneRules(colls, s)
	if len(texts) > 0 {
		p.ok("zones", "the target's shards are in these zones: %s", strings.Join(texts, "; "))
	}
}

func (p zoner) zoneShards(s sharding) {
	var names []string
	for _, one := range s.shards {
		if !one.Draining {
			names = append(names, one.Name)
		}
	}
	for _, zone := range p.Desired.Zones.Names() {
		listed, _ := p.Desired.Zones.Of(zone)
		for _, shard := range listed {
			if slices.Contains(names, shard) {
				continue
			}
			hint := didYouMean(suggest.Name(shard, names), "the target has "+strings.Join(names, ", "))
			p.add(Fail, "zones", hint, "--zone %s=%s: the target has no such shard %s, or it is being removed", zone,
				strings.Join(listed, ","), shard)
		}
	}
}

func (p zoner) zonesFor(c schema.Collection, s sharding) (tags []string) {
	w, target := s.desired[c.NS], p.Rules.Target(c.NS)
	if w.Unzoned {
		p.add(Warn, "zones", "create zones on the target, with the target's key",
			"%s has zones on the source that are not copied: its shard key on the target is %s", c.NS,
			shardkey.Text(w.Key))
	}
	drops := p.onExisting() == state.ExistingDrop
	have := s.zones[target]
	if _, sharded := s.have[target]; sharded && drops {
		have = nil // they are dropped with it
	}
	if p.copied() || len(have) == 0 && (drops || !p.exists(target)) {
		for _, z := range w.Zones {
			if !slices.Contains(tags, z.Tag) {
				tags = append(tags, z.Tag)
			}
		}
		return tags
	}
	if w.Key != nil && !placing.SameZones(w.Zones, have) {
		p.add(Warn, "zones", "set them there with updateZoneKeyRange",
			"the zones that the target has for %s stay as they are: %s, not %s", target, placing.ZonesText(have),
			placing.ZonesText(w.Zones))
	}
	return nil
}

func (p zoner) zone(tag string, colls []string, s sharding) string {
	j := placing.JoinOf(tag, p.Desired.Zones, s.from, s.shards)
	if len(j.Has)+len(j.Add) == 0 {
		level := Fail
		if p.copied() { // finalize reports it
			level = Warn
		}
		var names []string
		for _, one := range s.from {
			if slices.Contains(one.Zones, tag) {
				names = append(names, one.Name)
			}
		}
		p.add(level, "zones", placing.ZoneHint(tag), "zone %s of %s has no shard on the target; on the source it has %s", tag,
			some(colls, ", "), strings.Join(names, ", "))
		return ""
	}
	text := tag + " has " + strings.Join(append(slices.Clone(j.Has), j.Add...), ", ")
	if len(j.Add) > 0 {
		why := " is added"
		if len(j.Add) > 1 {
			why = " are added"
		}
		if j.ByName {
			why += " for the name that the source's shard has"
		}
		text += " (" + strings.Join(j.Add, ", ") + why + ")"
	}
	return text
}

func (p zoner) zoneRules(colls []schema.Collection, s sharding) {
	known := map[string]bool{}
	for _, one := range s.from {
		for _, tag := range one.Zones {
			known[tag] = true
		}
	}
	for _, c := range colls {
		for _, z := range s.desired[c.NS].Zones {
			known[z.Tag] = true
		}
	}
	for _, tag := range p.Desired.Zones.Names() {
		if known[tag] {
			continue
		}
		level, hint := unmatched(p.AllowMissing || p.copied())
		hint = didYouMean(suggest.Name(tag, slices.Sorted(maps.Keys(known))), hint)
		p.add(level, "zones", hint, "--zone %s matches no zone of the source", tag)
	}
}
