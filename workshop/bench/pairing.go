package bench

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	threeShards = "sharded:3x1"
	twoShards   = "sharded:2x1"
	oneMember   = "rs:1"
)

// pairing is the topologies of source and target.
type pairing struct{ source, target string }

// name is the variant's in reports.
func (p pairing) name() string { return strings.ReplaceAll(p.source+"-to-"+p.target, ":", "") }

// describe says how the collections are sharded.
func (p pairing) describe() string {
	return p.source + " to " + p.target + ", sharded by {_id: \"hashed\"} where there are shards"
}

// pairings are those that the options name, or all three.
func (b *bench) pairings() ([]pairing, error) {
	s := b.o.Servers
	if s.given() {
		return nil, mongo.WithHint(errors.New("this measurement moves chunks and counts at the lab's routers"), "run it without --source-uri and --target-uri")
	}
	if s.SourceTopology == "" && s.TargetTopology == "" {
		return []pairing{{threeShards, oneMember}, {oneMember, twoShards}, {threeShards, twoShards}}, nil
	}
	return []pairing{{cmp.Or(s.SourceTopology, threeShards), cmp.Or(s.TargetTopology, twoShards)}}, nil
}

// rules are the arguments of a sync that keep the collection of the bench sharded: a
// replica set says nothing of how.
func (st *site) rules() []string {
	if st.source.cluster != nil || st.target.cluster == nil {
		return nil
	}
	return []string{"--shard", dataDB + "." + collection(0) + "=_id:hashed"}
}

// shardedColumns are those of the table: what each router of the target took, and
// what became slower by the balancer.
func shardedColumns() []string {
	return []string{"time", "min-max", "of ceiling", "rate", RouterRate(1), RouterRate(2), routersTotal, ofBalancerOff, movesEach,
		"CPU tool", "source", "target", routersCPU, "us each", "peak"}
}

// ofBalancerOff is the rate with the balancer on as a part of that without, round
// by round.
const ofBalancerOff = "of balancer off"

// What the names of contenders end in that run beside moving chunks, or without them.
const (
	BalancerOff = ", balancer off"
	BalancerOn  = ", balancer on"
)

// competePaired runs all contenders, and compares those with the balancer on with
// the same ones without.
func (b *bench) competePaired(ctx context.Context, st *site, c Case, all []contender) error {
	err := b.compete(ctx, st, c, all)
	done := &b.report.Cases[len(b.report.Cases)-1]
	for i := range done.Contenders {
		on := &done.Contenders[i]
		name, ok := strings.CutSuffix(on.Name, BalancerOn)
		at := slices.IndexFunc(done.Contenders, func(x Contender) bool { return x.Name == name+BalancerOff || x.Name == name })
		if !ok || at < 0 {
			continue
		}
		off := done.Contenders[at]
		for r := range min(len(on.Rounds), len(off.Rounds)) {
			put(&on.Rounds[r].Values, ofBalancerOff, per(on.Rounds[r].rate(done.Count), off.Rounds[r].rate(done.Count)))
		}
	}
	done.summarize()
	return err
}
