package precheck

import (
	"context"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/near"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

// sharding is how collections are to be sharded, and are on the target.
type sharding struct {
	wishes map[string]placing.Wish   // by names of the source
	have   map[string]placing.Entry  // by names of the target
	shards []placing.Shard           // of the target
	zones  map[string][]placing.Zone // by names of the target
	from   []placing.Shard           // of a sharded source
	silent []string                  // routers that do not answer
}

// wished reads both for the collections of a plan.
func (p *planner) wished(ctx context.Context, colls []schema.Collection) (s sharding, err error) {
	if p.Target.Info.Kind != mongo.KindSharded || p.Wishes == nil || p.unread {
		return s, nil
	}
	s.wishes = map[string]placing.Wish{}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	var targets []string
	for _, c := range colls {
		targets = append(targets, p.Rules.Target(c.NS))
		g.Go(func() error {
			w, err := p.Wishes.Wish(gctx, c)
			mu.Lock()
			defer mu.Unlock()
			s.wishes[c.NS] = w
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return s, err
	}
	if s.have, err = placing.Entries(ctx, p.Target, targets); err != nil {
		return s, err
	}
	if s.shards, err = placing.Shards(ctx, p.Target); err != nil {
		return s, err
	}
	s.silent = p.silentRouters(ctx)
	return s, p.zonesOf(ctx, &s, targets)
}

// silentRouters are the routers of the target that do not answer.
func (p *planner) silentRouters(ctx context.Context) (silent []string) {
	_, list, _ := strings.Cut(p.Target.Address(), "mongodb://")
	hosts := strings.Split(list, ",")
	if len(hosts) < 2 || p.Router == nil {
		return nil
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, host := range hosts {
		wg.Go(func() {
			c, err := p.Router(ctx, host)
			if err == nil {
				c.Close()
				return
			}
			mu.Lock()
			defer mu.Unlock()
			silent = append(silent, host)
		})
	}
	wg.Wait()
	slices.Sort(silent)
	return silent
}

// keysMapped judges whether rules leave the fields of a shard key as they are.
func (p *planner) keysMapped(c schema.Collection, s sharding) {
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

// sharding judges by which keys the target's collections are to be sharded.
func (p *planner) sharding(ctx context.Context) error {
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
	p.zones(colls, s)
	if p.Mode == state.ModeIncremental {
		return nil
	}
	const most = 5
	shown := strings.Join(texts[:min(most, len(texts))], "; ")
	switch {
	case len(texts) == 0:
		p.ok("sharding", "no collection is to be sharded on the target (%d shards)", len(s.shards))
	default:
		p.ok("sharding", "%d collections are to be sharded over %d shards, the others are not: %s. The balancer leaves "+
			"them alone until the job is finalized", len(texts), len(s.shards), shown)
	}
	return nil
}

// ruled looks at rules that name nothing, or what cannot be sharded.
func (p *planner) ruled(ctx context.Context, rules []string) error {
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

// unmatchedShard judges a rule of a collection that is not copied.
func unmatchedShard(ns string, names []string, allowed bool) Check {
	if slices.Contains(names, ns) {
		return Check{Level: Warn, Name: "sharding", Message: "--shard " + ns +
			" names a collection that the other rules leave out"}
	}
	c := Check{Level: Fail, Name: "sharding", Message: "--shard " + ns + " matches nothing on the source"}
	if allowed {
		c.Level = Warn
	} else {
		c.Hint = "--allow-missing accepts what is yet to come"
	}
	if best := near.Name(ns, names); best != "" {
		c.Hint = strings.TrimSpace("did you mean " + best + "? " + c.Hint)
	}
	return c
}

// sameCluster looks whether all routers of the target answer, and whether the source is a
// part of its cluster.
func (p *planner) sameCluster(s sharding) {
	if len(s.silent) > 0 {
		p.add(Warn, "target", "", "these routers do not answer: %s", strings.Join(s.silent, ", "))
	}
	for _, shard := range s.shards {
		if slices.ContainsFunc(p.Source.Info.Hosts, func(h string) bool { return slices.Contains(shard.Hosts, h) }) {
			p.add(Fail, "identity", "check --source and --target", "the source is a shard of the target, %s", shard.Name)
		}
	}
}

// shard judges one collection, and says by which key it is to be sharded.
func (p *planner) shard(c schema.Collection, s sharding) string {
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
	case p.OnExisting.Or(p.job.OnExisting) == state.ExistingDrop:
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

// exists reports a collection of the target that was there before the job, or that the
// job has made.
func (p *planner) exists(target string) bool {
	have, err := p.seen.existing()
	_, there := have[target]
	return err == nil && there
}

// unfit names the unique indexes that a sharded collection cannot have: servers keep
// them on each shard, so that they have to begin with its key.
func (p *planner) unfit(c schema.Collection, key bson.Raw, hint string) {
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
