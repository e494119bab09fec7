package precheck

import (
	"context"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
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
