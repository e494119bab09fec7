package job

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
)

func (s *session) Compare(ctx context.Context) ([]schema.Difference, error) {
	// Shard keys are as rules say, or as they were when a collection was made.
	o := schema.DiffOptions{Keep: s.rules.Match, Own: s.source.Names.Targets(), IgnoreSharding: true}
	var err error
	if s.source.shards != nil {
		if o.Building, err = s.source.shards.Building(ctx, s.rules); err != nil {
			return nil, err
		}
	}
	if s.placer != nil {
		if err := s.placer.Settle(ctx); err != nil {
			return nil, err
		}
		if o.Made, err = s.placer.Made(ctx); err != nil {
			return nil, err
		}
		if err := s.tellKeys(ctx); err != nil {
			return nil, err
		}
	}
	return schema.Diff(ctx, s.source.cluster, s.dst, s.rules, o)
}

func (s *session) compareKeys(ctx context.Context, colls []state.Mapped) (diffs []schema.Difference, err error) {
	if s.placer == nil || len(colls) == 0 {
		return nil, nil
	}
	var targets []string
	for _, m := range colls {
		targets = append(targets, m.Target)
	}
	have, err := schema.Entries(ctx, s.dst, targets)
	if err != nil {
		return nil, err
	}
	for _, m := range colls {
		desired, err := s.desired.Desired(ctx, m.Collection)
		if err != nil {
			return nil, err
		}
		want, got := "", ""
		if desired.Key != nil {
			want = shardkey.Text(desired.Key)
		}
		if e, sharded := have[m.Target]; sharded {
			got = shardkey.Text(e.Key)
			s.progress.Sharded(m.Target, got)
		}
		if want != got {
			diffs = append(diffs, schema.Difference{NS: m.NS, What: "shard key", Source: want, Target: got})
		}
	}
	return diffs, nil
}

// rezone sets the source's zones: no shard's oplog has changes of zones.
func (s *session) rezone(ctx context.Context) (diffs []schema.Difference, err error) {
	if s.placer == nil {
		return nil, nil
	}
	var pairs []placing.Pair
	for _, n := range s.source.Names.All() {
		pairs = append(pairs, placing.Pair{NS: n.NS, Target: n.Target})
	}
	left, err := s.placer.Rezone(ctx, pairs)
	for _, l := range left {
		diffs = append(diffs, schema.Difference{NS: l.NS, What: "zones", Source: l.Source, Target: l.Target})
	}
	return diffs, err
}

// tellKeys warns of collections whose shard key has changed on the source since their creation.
func (s *session) tellKeys(ctx context.Context) error {
	if s.source.cluster.Info.Kind != mongo.KindSharded {
		return nil
	}
	var names, targets []string
	for _, n := range s.source.Names.All() {
		names, targets = append(names, n.NS), append(targets, n.Target)
	}
	want, err := schema.Entries(ctx, s.source.cluster, names)
	if err != nil {
		return err
	}
	have, err := schema.Entries(ctx, s.dst, targets)
	if err != nil {
		return err
	}
	for i, ns := range names {
		if _, ruled := s.desired.Rules.Of(ns); !ruled && !placing.SameKey(want[ns].Key, have[targets[i]].Key) {
			s.log.Warn("a collection has another shard key on the target than on the source", "ns", ns,
				"source", shardkey.Text(want[ns].Key), "target", shardkey.Text(have[targets[i]].Key))
		}
	}
	return nil
}

// finishNow ends a job that applies no changes.
func (s *session) finishNow(ctx context.Context, made []state.Mapped) error {
	if err := s.cat.Expiries.Restore(ctx); err != nil {
		return err
	}
	diffs, err := s.Compare(ctx)
	if err != nil {
		return err
	}
	keys, err := s.compareKeys(ctx, made)
	if err != nil {
		return err
	}
	at, err := s.store.Prove(ctx, true)
	if err != nil {
		return err
	}
	if s.spec.Mode == ModeStructure {
		at = mongo.OpTime{} // there is nothing to go on from
	}
	if err := s.Finish(ctx, follow.Final{Differences: append(diffs, keys...), At: at}); err != nil {
		return err
	}
	return follow.ErrFinished
}

func (s *session) Finish(ctx context.Context, end follow.Final) error {
	zones, err := s.rezone(ctx)
	if err != nil {
		return err
	}
	accounts, err := s.accounts.copy(ctx)
	if err != nil {
		return err
	}
	var lines []string
	for _, d := range slices.Concat(end.Differences, zones, accounts) {
		if d.Skipped != "" {
			s.log.Info("target differs from the source as it has to", "difference", d.String())
			continue
		}
		lines = append(lines, strings.TrimSpace(d.String()))
		s.log.Warn("target differs from the source", "difference", d.String())
	}
	if s.placer != nil {
		if err := s.placer.Release(ctx); err != nil {
			return err
		}
	}
	err = deadletter.Bind(ctx, s.dst, s.id, func(ctx context.Context, ns string) (bson.Binary, error) {
		c, _, err := collection(ctx, s.dst, ns)
		return c.UUID, err
	})
	if err != nil {
		return err
	}
	at, noWayBack, err := s.keepWayBack(ctx, end.At)
	if err != nil {
		return err
	}
	now := s.spec.Now().UTC()
	s.progress.SetFinal(now, lines, s.leftOut(ctx), at)
	err = s.SavePhase(ctx, PhaseFinalized, append(end.Set, bson.E{Key: "differences", Value: lines[:min(len(lines),
		mostDifferences)]},
		bson.E{Key: "finalizedAt", Value: now}, bson.E{Key: "targetPosition", Value: at},
		bson.E{Key: "noWayBack", Value: noWayBack}, bson.E{Key: "ended", Value: s.spec.Mode})...)
	if err == nil && s.placer != nil {
		if ferr := s.placer.ForgetAll(ctx); ferr != nil {
			s.log.Debug("what was noted of sharded collections stays", "error", ferr)
		}
	}
	return err
}

func (s *session) leftOut(ctx context.Context) (out []string) {
	list, err := schema.Omissions(ctx, s.source.cluster, s.rules)
	if err != nil {
		s.log.Warn("cannot list what is left out", "error", err)
	}
	for _, o := range list[:min(len(list), mostDifferences)] {
		out = append(out, o.String())
	}
	if s.source.streamed != nil && s.spec.Mode != ModeStructure {
		support, _ := s.source.streamed.Support(ctx) // the job has used it
		out = append(out, "what change streams do not report ("+strings.Join(precheck.Unreported(support), ", ")+
			"): compare with millrace verify")
	}
	for _, what := range out {
		s.log.Warn("left out", "what", what)
	}
	return out
}
