package precheck

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// complete checks that each side is one complete deployment: of a part of one, much
// would be missing, and nothing would report it.
func (p *planner) complete(ctx context.Context) error {
	sides := []struct {
		name    string
		cluster *mongo.Cluster
		err     error
	}{{name: "source", cluster: p.Source}, {name: "target", cluster: p.Target}}
	g, gctx := errgroup.WithContext(ctx)
	for i := range sides {
		s := &sides[i]
		g.Go(func() error {
			s.err = s.cluster.CheckComplete(gctx, p.AllowShard)
			if _, rejected := errors.AsType[*mongo.Incomplete](s.err); rejected {
				return nil
			}
			return mongo.Wrap(s.err, "%s", s.name)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, s := range sides {
		switch {
		case s.err != nil:
			p.add(Fail, "deployment", mongo.HintOf(s.err), "%s: %v", s.name, s.err)
		case s.cluster.Info.Role == mongo.RoleShard:
			p.add(Warn, "deployment", "", "%s: %s is one shard of a sharded cluster: the other shards take no part", s.name,
				s.cluster.Address())
		}
	}
	return nil
}
