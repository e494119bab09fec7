package precheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// seen has the answers of both sides with their errors. The checks decide which matter.
type seen struct {
	job                        func() (job state.Job, found bool, err error)
	life                       func() (state.Life, error) // of a job that is to begin anew
	others                     func() ([]state.Job, error)
	collections                func() ([]schema.Collection, error)
	names                      func() (*schema.Names, error) // of the stored job; nil without rules
	existing                   func() (map[string]int64, error)
	databases                  func() ([]string, error)          // of the target
	omissions                  func() ([]schema.Omission, error) // of the source
	sharding                   func() (sharding, error)
	sourceGrants, targetGrants func() (grants, error)
	shardGrants                []func() (grants, error) // of a sharded source, in the order of its shards
	configGrants               func() (grants, error)   // nil where nobody reads config servers
	disk                       func() (bson.Raw, error)
}

type sharding struct {
	desired map[string]placing.Desired // by names of the source
	have    map[string]schema.Entry    // by names of the target
	shards  []placing.Shard            // of the target
	zones   map[string][]schema.Zone   // by names of the target
	from    []placing.Shard            // of a sharded source
	silent  []string                   // routers that do not answer
}

type asker struct{ *planner }

func (p asker) look(ctx context.Context) error {
	var g errgroup.Group
	s := &p.seen
	g.Go(func() error {
		job, found, err := p.Store.Reload(ctx)
		s.job = func() (state.Job, bool, error) { return job, found, err }
		if p.Restart && found && err == nil {
			lives, err := state.Lives(ctx, p.Target, []state.Listed{{Job: job}})
			s.life = func() (state.Life, error) { return lives[job.ID], err }
		}
		return nil
	})
	if p.Rules.Commands() { // else nothing of a collection is checked by them
		s.names = ask(&g, func() (*schema.Names, error) {
			catalog, err := p.Store.LoadCatalog(ctx)
			return state.Names(catalog), err
		})
	}
	s.others = ask(&g, func() ([]state.Job, error) { return p.Store.LoadOthers(ctx, false) })
	s.sourceGrants = ask(&g, func() (grants, error) { return grantsOf(ctx, p.Source) })
	if p.Shards != nil {
		for _, one := range p.Shards.Cluster().Shards {
			s.shardGrants = append(s.shardGrants, ask(&g, func() (grants, error) { return grantsOf(ctx, one.Cluster) }))
		}
		if config := p.Shards.Cluster().Config(); config != nil {
			s.configGrants = ask(&g, func() (grants, error) { return grantsOf(ctx, config) })
		}
	}
	s.targetGrants = ask(&g, func() (grants, error) { return grantsOf(ctx, p.Target) })
	s.disk = ask(&g, func() (bson.Raw, error) {
		return p.Target.Command(ctx, "admin", bson.D{{Key: "dbStats", Value: 1}})
	})
	s.omissions = ask(&g, func() ([]schema.Omission, error) { return schema.Omissions(ctx, p.Source, p.Rules) })
	s.databases = ask(&g, func() ([]string, error) { return schema.Databases(ctx, p.Target, true) })
	s.collections = sync.OnceValues(func() ([]schema.Collection, error) {
		return schema.List(ctx, p.Source, schema.Scope{NS: p.Rules.Match, DB: p.Rules.MatchDB})
	})
	s.sharding = ask(&g, func() (sharding, error) {
		colls, _ := s.collections()
		return p.desired(ctx, colls)
	})
	s.existing = ask(&g, func() (map[string]int64, error) {
		var targets []string
		colls, _ := s.collections()
		for _, c := range colls {
			targets = append(targets, p.Rules.Target(c.NS))
		}
		if p.Mode == state.ModeIncremental {
			return nil, nil
		}
		if p.Restart && p.OnExisting == state.ExistingDrop {
			earlier, err := p.leftovers(ctx)
			if err != nil {
				return nil, err
			}
			targets = append(targets, earlier...)
		}
		return p.Schema.ListExisting(ctx, targets)
	})
	_ = g.Wait() // none fails: errors are part of the answers
	return mongo.Wrap(ctx.Err(), "precheck")
}

func (p asker) leftovers(ctx context.Context) ([]string, error) {
	job, found, err := p.Store.Reload(ctx)
	if err != nil || !found || job.Shares() {
		return nil, err
	}
	return Leftovers(ctx, p.Store, p.Rules)
}

// Leftovers returns target namespaces that an earlier run of the job created, and that the rules
// still map from the same source.
func Leftovers(ctx context.Context, store state.Catalog, rules *transform.Set) (out []string, err error) {
	colls, err := store.LoadCatalog(ctx)
	for _, m := range colls {
		if !m.Gone && rules.Match(m.NS) && rules.Target(m.NS) == m.Target {
			out = append(out, m.Target)
		}
	}
	return out, err
}

func (p asker) desired(ctx context.Context, colls []schema.Collection) (s sharding, err error) {
	if p.Target.Info.Kind != mongo.KindSharded || p.Desired == nil || p.unread {
		return s, nil
	}
	s.desired = map[string]placing.Desired{}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	var targets []string
	for _, c := range colls {
		targets = append(targets, p.Rules.Target(c.NS))
		g.Go(func() error {
			w, err := p.Desired.Desired(gctx, c)
			mu.Lock()
			defer mu.Unlock()
			s.desired[c.NS] = w
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return s, err
	}
	if s.have, err = schema.Entries(ctx, p.Target, targets); err != nil {
		return s, err
	}
	if s.shards, err = placing.Shards(ctx, p.Target); err != nil {
		return s, err
	}
	s.silent = p.silentRouters(ctx)
	if p.Source.Info.Kind == mongo.KindSharded {
		if s.zones, err = schema.Zones(ctx, p.Target, targets); err == nil {
			s.from, err = placing.Shards(ctx, p.Source)
		}
	}
	return s, err
}

func (p asker) silentRouters(ctx context.Context) (silent []string) {
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

// ask runs question in a goroutine of g. The returned function is valid after g.Wait.
func ask[T any](g *errgroup.Group, question func() (T, error)) func() (T, error) {
	var answer T
	var err error
	g.Go(func() error {
		answer, err = question()
		return nil
	})
	return func() (T, error) { return answer, err }
}

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
	case src.Kind == mongo.KindSharded && mode == state.ModeIncremental && !reverses && p.Streamed == nil:
		p.add(Fail, "source", "use --mode all, start where a job was finalized, with --start-at job:NAME, or use --via routers",
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
	// triedFirst is the remedy for servers that no test ran on.
	triedFirst = "see docs/reference/versions.md, try it with a copy of the data first, and compare with millrace verify"
)

func (p sides) versions() {
	src, dst := p.Source.Info, p.Target.Info
	oldest, _ := mongo.Tested()
	for i, side := range []mongo.Info{src, dst} {
		name, v := []string{"source", "target"}[i]+" version", side.Version
		switch {
		case v.OlderThan(oldest):
			p.add(Fail, name, fmt.Sprintf("upgrade it to %d.%d or newer", oldest.Major, oldest.Minor),
				"MongoDB %s is older than %d.%d", v, oldest.Major, oldest.Minor)
		case side.Evidence() == mongo.EvidenceDocs:
			p.add(Warn, name, triedFirst, "%s of MongoDB %s is known from documentation only: no test ran on one", side.Kind, v)
		case side.Evidence() == mongo.EvidenceNone:
			read := mongo.NewestRead()
			p.add(Warn, name, triedFirst, "MongoDB %s is unknown: the newest series whose documentation was read is %d.%d", v,
				read.Major, read.Minor)
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
