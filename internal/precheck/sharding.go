package precheck

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/suggest"
)

// sharder checks by which keys the target's collections are sharded.
type sharder struct{ *planner }

// sharding checks by which keys the target's collections are to be sharded.
func (p sharder) sharding(ctx context.Context) error {
	if p.Wishes == nil || p.unread {
		return nil
	}
	rules := p.Wishes.Rules.Names()
	if p.Target.Info.Kind != mongo.KindSharded {
		if zones := p.Wishes.Zones.Names(); len(zones) > 0 {
			p.add(Fail, "zones", "leave --zone out, or name routers of a sharded cluster",
				"the target is no sharded cluster, so that it has no zones")
		}
		if len(rules) > 0 {
			p.add(Fail, "sharding", "leave --shard out, or name routers of a sharded cluster",
				"the target is no sharded cluster, so that nothing can be sharded there")
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

// ruled looks at rules that name nothing, or what cannot be sharded.
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
		switch key, _ := p.Wishes.Rules.Of(ns); {
		case !there:
			unmatched = append(unmatched, ns)
		case kind != "" && key != nil:
			p.add(Fail, "sharding", "leave the rule out", "--shard %s=%s: %s is %s and cannot be sharded", ns,
				placing.KeyText(key), ns, kind)
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

// unmatchedShard checks a rule of a collection that is not copied.
func unmatchedShard(ns string, names []string, allowed bool) Check {
	if slices.Contains(names, ns) {
		return Check{Level: Warn, Name: "sharding",
			Message: "--shard " + ns + " names a collection that the other rules leave out"}
	}
	level, hint := unmatched(allowed)
	return Check{Level: level, Name: "sharding", Message: "--shard " + ns + " matches nothing on the source",
		Hint: didYouMean(suggest.Name(ns, names), hint)}
}

// keysMapped checks whether rules leave the fields of a shard key as they are.
func (p sharder) keysMapped(c schema.Collection, s sharding) {
	var keys []string
	for _, key := range []bson.Raw{s.wishes[c.NS].Key, s.have[p.Rules.Target(c.NS)].Key} {
		els, _ := key.Elements()
		for _, e := range els {
			keys = append(keys, e.Key())
		}
	}
	if err := schema.CheckFields(c, p.Rules, keys); err != nil {
		p.add(Fail, "rules", mongo.HintOf(err), "%v", err)
	}
}

// sameCluster looks whether all routers of the target answer, and whether the source is a
// part of its cluster.
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

// shard checks one collection, and says by which key it is to be sharded.
func (p sharder) shard(c schema.Collection, s sharding) string {
	w, target := s.wishes[c.NS], p.Rules.Target(c.NS)
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
		if sharded && (w.Key == nil && !ruledOut(p.Wishes.Rules, c.NS) || placing.SameKey(e.Key, w.Key)) ||
			!sharded && w.Key == nil {
			p.unfit(c, e.Key, "drop it on the source, or shard the target's collection by another key")
			return ""
		}
		if key = nil; sharded {
			key = e.Key
		}
		p.add(Warn, "sharding", hint, "%s exists on the target and stays as it is: its shard key is %s, not %s", target,
			placing.KeyText(key), placing.KeyText(w.Key))
		p.unfit(c, key, "drop it on the source, or shard the target's collection by another key")
		return ""
	}
	if key == nil {
		return ""
	}
	hint = "drop it on the source, or choose another key with --shard " + c.NS + "=key, or none"
	p.unfit(c, key, hint)
	if c.Collated() && placing.KeyText(key) == "_id:1" {
		p.add(Fail, "sharding", hint, "%s has a collation, with which servers do not shard by _id", c.NS)
	}
	return target + " by " + placing.KeyText(key)
}

// ruledOut reports a rule that keeps a collection unsharded.
func ruledOut(rules placing.Rules, ns string) bool {
	key, ok := rules.Of(ns)
	return ok && key == nil
}

// unfit names the unique indexes that a sharded collection cannot have: servers keep
// them on each shard, so that they have to begin with its key.
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
			c.NS, placing.KeyText(key), strings.Join(names, ", "))
	}
}
