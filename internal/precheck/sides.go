package precheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

type sides struct{ *planner }

// complete checks that each side is a complete deployment: otherwise much would be missing silently.
func (p sides) complete(ctx context.Context) error {
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

func (p sides) deployments() {
	src, dst, mode := p.Source.Info, p.Target.Info, p.Mode
	_, reverses := state.StartAtJob(p.StartAt)
	switch {
	case src.Kind == mongo.KindSharded && !src.Version.AtLeast(4, 4):
		p.add(Fail, "source", "upgrade it to 4.4 or later",
			"a sharded cluster of MongoDB %s is not supported as a source", src.Version)
	case src.Kind == mongo.KindSharded && mode == state.ModeIncremental && !reverses:
		p.add(Fail, "source", "use --mode all, or start where a job was finalized, with --start-at job:NAME",
			"incremental mode cannot start at a time of a sharded cluster: each shard has a position of its own")
	case src.Kind == mongo.KindStandalone && !mode.EndsByItself():
		p.add(Fail, "source", "use --mode full, or restart the source with --replSet and initiate it",
			"a standalone server has no oplog: it can only be copied in full")
	case src.Kind == mongo.KindStandalone && mode == state.ModeFull:
		p.add(Warn, "source", "stop writes during the copy",
			"a standalone server: writes made during the copy may be missing or incomplete")
	default:
		p.ok("source", "%s", describe(src))
	}
	switch {
	case dst.Kind == mongo.KindSharded && !dst.Version.AtLeast(6, 0):
		p.add(Fail, "target", "upgrade it to 6.0",
			"a sharded cluster of MongoDB %s is not supported as a target", dst.Version)
	case dst.Kind == mongo.KindStandalone:
		p.add(Fail, "target", "restart it with --replSet and initiate it",
			"a standalone server cannot keep a durable checkpoint")
	default:
		p.ok("target", "%s", describe(dst))
	}
	if src.Kind == mongo.KindReplicaSet && (src.SetID.IsZero() || dst.SetID.IsZero()) {
		side := "the source"
		if !src.SetID.IsZero() {
			side = "the target"
		} else if dst.SetID.IsZero() {
			side = "both sides"
		}
		p.add(Warn, "identity", "grant clusterMonitor, or the action replSetGetConfig, on both sides",
			"cannot read the configuration of %s: only the sets' addresses are compared", side)
	}
	p.shards()
	if p.Rules.SkipsAny(stream.OpInsert) && dst.Kind == mongo.KindSharded {
		p.add(Fail, "rules", "leave insert out of --skip",
			"--skip …=insert is not possible with a sharded target: a replacement may insert the document")
	}
	if p.Rules.SkipsAny(stream.OpTTL) && (src.Kind == mongo.KindSharded || dst.Kind == mongo.KindSharded) {
		p.add(Fail, "rules", "skip delete instead of ttl, which leaves out all deletions",
			"--skip …=ttl is not possible with a sharded source or target")
	}
	if p.Source.Same(p.Target) {
		p.add(Fail, "identity", "check --source and --target", "source and target are the same %s",
			strings.TrimSpace(string(src.Kind)+" "+src.SetName))
	}
}

func (p sides) shards() {
	if p.Shards == nil {
		return
	}
	var names []string
	for _, s := range p.Shards.Cluster().Shards {
		names = append(names, s.Name)
		if s.Info.Version.OlderThan(p.Source.Info.Version.Series()) {
			p.add(Fail, "shards", "upgrade it", "shard %s runs MongoDB %s, older than the router", s.Name, s.Info.Version)
		}
		if s.Same(p.Target) {
			p.add(Fail, "identity", "check --source and --target", "the target is a shard of the source, %s", s.Name)
		}
	}
	p.ok("shards", "%d, each can be reached: %s; the balancer may go on", len(names), strings.Join(names, ", "))
}

const (
	checkVersions = "versions"
	checkFCV      = "feature compatibility"
)

func (p sides) versions() {
	src, dst := p.Source.Info, p.Target.Info
	oldest, newest := mongo.Tested()
	for i, v := range []mongo.Version{src.Version, dst.Version} {
		name := []string{"source", "target"}[i] + " version"
		switch {
		case v.OlderThan(oldest):
			p.add(Fail, name, fmt.Sprintf("upgrade it to %d.%d or newer", oldest.Major, oldest.Minor),
				"MongoDB %s is older than %d.%d", v, oldest.Major, oldest.Minor)
		case newest.OlderThan(v.Series()):
			p.add(Warn, name, "try it with a copy of the data first, and compare with millrace verify",
				"MongoDB %s is untested: the newest tested series is %d.%d", v, newest.Major,
				newest.Minor)
		}
	}
	older := dst.Version.OlderThan(src.Version)
	switch {
	case older && !p.AllowDowngrade:
		p.add(Fail, checkVersions, "use a target at least as new, or accept the risk with --allow-downgrade",
			"the target (%s) is older than the source (%s)", dst.Version, src.Version)
	case older:
		p.add(Warn, checkVersions, "", "the target (%s) is older than the source (%s); features it lacks will fail",
			dst.Version, src.Version)
	case mongo.OlderFCV(dst.FCV, src.FCV) && !p.AllowDowngrade:
		p.add(Fail, checkFCV,
			"run setFeatureCompatibilityVersion "+src.FCV+" on the target, or use --allow-downgrade",
			"the target's feature compatibility version (%s) is older than the source's (%s)", dst.FCV, src.FCV)
	default:
		p.ok(checkVersions, "%s to %s", src.Version, dst.Version)
	}
}

const selectTime = 10 * time.Second

// members checks that the source has a member for the read preference. A job that has begun waits
// for one, unless the set's configuration has none.
func (p sides) members(ctx context.Context) error {
	for _, c := range origin.Parts(p.Source, p.Shards) {
		if !c.Chooses() {
			continue
		}
		selecting, cancel := context.WithTimeout(ctx, selectTime)
		conn, err := c.Checkout(selecting, c.Reader())
		cancel()
		if err == nil {
			conn.Release()
			continue
		}
		if _, none := wire.UnsuitableServers(err); !none || ctx.Err() != nil {
			return mongo.Wrap(err, "read %s", c.Name)
		}
		level, failed := p.unsuited(ctx, c.Cluster)
		if failed != nil {
			return failed
		}
		p.add(level, "read preference", mongo.HintOf(err), "%s cannot be read: %s", c.Name, mongo.Brief(err))
		p.unread = true
	}
	return nil
}

func (p sides) unsuited(ctx context.Context, c *mongo.Cluster) (Level, error) {
	may, err := c.MayChoose(ctx)
	if err != nil || !may || p.Restart {
		return Fail, err
	}
	_, begun, err := p.Store.Reload(ctx)
	if begun {
		return Warn, err
	}
	return Fail, err
}
