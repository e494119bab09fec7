package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	changes "github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/users"
)

// Clusters connects to both clusters and compares what the rules keep: documents, collections,
// options, indexes and views. An error means that the comparison did not end. Differences are in
// the report.
func Clusters(ctx context.Context, spec Spec) (*Report, error) {
	var keys transform.Keys
	spec.Rules.Secret = keys.Remember(spec.Rules.Secret)
	rules, err := transform.New(spec.Rules)
	if err != nil {
		return nil, err
	}
	sides, err := spec.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll(sides)
	if err := different(sides[source], sides[target]); err != nil {
		return nil, err
	}
	if err := spec.usersWithin(sides); err != nil {
		return nil, err
	}
	e := New(sides[source], sides[target], spec.Options)
	e.homes = users.Sides{Source: users.Side{Cluster: sides[source], URI: spec.Source, Shards: spec.SourceShards},
		Target: users.Side{Cluster: sides[target], URI: spec.Target, Shards: spec.TargetShards}}.Homes
	var of [2]*origin.Sharded
	defer func() {
		for _, o := range of {
			if o != nil {
				o.Close()
			}
		}
	}()
	err = both(ctx, func(ctx context.Context, i int) (err error) {
		if spec.StructureOnly { // routers know the catalog
			return nil
		}
		of[i], err = e.openShards(ctx, i, &spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	if sameShards(of[source], of[target]) {
		return nil, errSame(sides[source])
	}
	src, dst := sides[source], sides[target]
	// Without identities assistants could not tell the clusters from others.
	if spec.Offer == nil || src.Info.SetID.IsZero() || dst.Info.SetID.IsZero() {
		return e.compareClusters(ctx, rules, spec.Observe)
	}
	e.assigner = &assigner{changed: make(chan struct{})}
	common := assign.Common{Source: src, Target: dst, Rules: rules, Keys: &keys}
	e.assigner.Owner = assign.NewOwner(*spec.Offer, common, e.assigner, e.o.Log, map[string]*assign.Figures{})
	var report *Report
	err = e.assigner.Run(ctx, func(ctx context.Context) (err error) {
		report, err = e.compareClusters(ctx, rules, spec.Observe)
		return err
	})
	return report, err
}

func (s *Spec) connect(ctx context.Context) (sides [2]*mongo.Cluster, err error) {
	for i, uri := range []string{s.Source, s.Target} {
		if sides[i], err = mongo.Connect(ctx, uri, mongo.Options{AppName: appName}); err == nil {
			err = sides[i].CheckComplete(ctx, s.AllowShard)
		}
		if err != nil {
			closeAll(sides)
			return sides, fmt.Errorf("%s: %w", sideName(i), err)
		}
	}
	return sides, nil
}

func closeAll(sides [2]*mongo.Cluster) {
	for _, c := range sides {
		if c != nil {
			c.Close()
		}
	}
}

func different(source, target *mongo.Cluster) error {
	if !source.Same(target) {
		return nil
	}
	return errSame(source)
}

func errSame(source *mongo.Cluster) error {
	return mongo.WithHint(fmt.Errorf("verify: source and target are the same deployment (%s)", source.Address()),
		"check --source and --target")
}

func (e *Engine) compareClusters(ctx context.Context, rules *transform.Set,
	observe func(func() Stats)) (*Report, error) {
	var pairs []Pair
	var others []string
	err := e.seen(ctx, func() (err error) {
		pairs, others, err = e.list(ctx, rules)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if docs := e.o.Documents; docs != nil {
		pairs = slices.DeleteFunc(pairs, func(p Pair) bool { return len(docs[p.Source].IDs) == 0 })
		others = nil
	}
	if only := e.o.Only; only != nil {
		pairs = slices.DeleteFunc(pairs, func(p Pair) bool { return !only.Match(p.Source) })
		others = nil // they were not asked for
	}
	if e.o.StructureOnly {
		pairs = nil
	}
	if observe != nil {
		observe(e.Stats)
	}
	report, err := e.Run(ctx, pairs)
	if err != nil {
		return nil, err
	}
	if docs := e.o.Documents; docs != nil { // nobody asked for more
		if err := e.stillThose(ctx, rules); err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
		if gone := len(docs) - len(pairs); gone > 0 {
			report.Notes = append(report.Notes,
				fmt.Sprintf("%d collections of documents that were to be compared are on neither side", gone))
		}
		return report, nil
	}
	diffs, err := e.catalogs(ctx, rules)
	if err != nil {
		return nil, fmt.Errorf("verify: compare catalogs: %w", err)
	}
	for _, d := range diffs {
		one := SchemaDifference{NS: d.NS, What: d.What, Detail: strings.TrimPrefix(d.String(), d.NS+": "+d.What+": "),
			Deferred: d.Deferred}
		if expected(d) {
			report.Expected = append(report.Expected, one)
		} else {
			report.AddSchema(one)
		}
	}
	if err := e.omissions(ctx, rules, report); err != nil {
		return nil, fmt.Errorf("verify: list what no job brings to the target: %w", err)
	}
	for _, db := range others {
		report.Notes = append(report.Notes, fmt.Sprintf("database %[1]s of the target was not compared,"+
			" because the source has no such collections; --include %[1]s compares it", db))
	}
	return report, nil
}

func (e *Engine) omissions(ctx context.Context, rules *transform.Set, report *Report) error {
	return again(ctx, e.o.Log, "list what is left out", func() error {
		list, err := schema.Omissions(ctx, e.clusters[source], rules)
		if err != nil {
			return err
		}
		partial, err := schema.PartialIndexes(ctx, e.clusters[target],
			func(ns string) bool { _, ours := rules.Source(ns); return ours })
		if err != nil {
			return err
		}
		for _, o := range list {
			if only := e.o.Only; only != nil && !only.Chooses(o.NS) {
				continue
			}
			report.Notes = append(report.Notes, "left out: "+o.String())
		}
		for _, o := range partial {
			report.Notes = append(report.Notes, "on the target "+o.String())
		}
		return nil
	})
}

// seen runs look, and returns when what it saw can no longer roll back.
func (e *Engine) seen(ctx context.Context, look func() error) error {
	return e.clusters[source].Seen(ctx, func() error { return e.clusters[target].Seen(ctx, look) })
}

// list pairs the collections of the source with their targets, then those that only the target has
// in the same databases, or in databases that the rules name. others are databases that are left
// out. The comparison of the catalogs handles views.
func (e *Engine) list(ctx context.Context, rules *transform.Set) (pairs []Pair, others []string, err error) {
	// The indexes say what expires.
	ofSource, err := schema.List(ctx, e.clusters[source],
		schema.Scope{NS: rules.Match, DB: rules.MatchDB, NamesOnly: !rules.SkipsAny(changes.OpTTL)})
	if err != nil {
		return nil, nil, err
	}
	own := schema.OwnDatabases(ofSource, rules)
	ofTarget, err := schema.List(ctx, e.clusters[target], schema.Scope{
		NamesOnly: true,
		DB: func(db string) bool {
			if !own(db) && rules.MatchTargetDB(db) {
				others = append(others, db)
			}
			return own(db)
		},
		NS: func(ns string) bool {
			_, ok := rules.Source(ns)
			return ok
		}})
	if err != nil {
		return nil, nil, err
	}
	var ahead time.Duration
	if rules.SkipsAny(changes.OpTTL) {
		if ahead, err = e.clusters[source].Ahead(ctx); err != nil {
			return nil, nil, err
		}
	}
	if pairs, err = pairUp(ofSource, ofTarget, rules, ahead); err != nil {
		return nil, nil, err
	}
	if e.o.Documents != nil { // their names say more than that the rules keep nothing any more
		now := map[string]bson.Binary{}
		for _, p := range pairs {
			now[p.Source] = p.UUID
		}
		return pairs, others, e.identities(now)
	}
	return pairs, others, anythingOf(ofSource, ofTarget, rules, e.o.Only)
}

// anythingOf fails where the rules, an include, or a pattern of only choose nothing: comparing
// nothing proves nothing.
func anythingOf(ofSource, ofTarget []schema.Collection, rules, only *transform.Set) error {
	var names []string
	for _, c := range ofSource {
		names = append(names, c.NS)
	}
	for _, c := range ofTarget {
		names = append(names, rules.Sources(c.NS)...)
	}
	const hint = "look for a mistyped name; patterns are db.coll or db.*, and --exclude wins"
	unused, chosen := unusedIncludes(rules, names), unusedIncludes(only, names)
	switch {
	case unused != "":
		return mongo.WithHint(
			fmt.Errorf("--include %s matches nothing, neither on the source nor on the target", unused), hint)
	case chosen != "":
		return mongo.WithHint(fmt.Errorf("%s matches nothing that the job keeps, "+
			"neither on the source nor on the target", chosen),
			"look for a mistyped name; patterns are db.coll or db.*")
	case len(names) == 0 && rules.String() != (*transform.Set)(nil).String():
		return mongo.WithHint(errors.New("the rules leave nothing to compare, neither on the source nor on the target"), hint)
	}
	return nil
}

func unusedIncludes(rules *transform.Set, names []string) string {
	var unused []string
	for _, r := range rules.Unused(names) {
		if r.Kind == "include" {
			unused = append(unused, r.Text)
		}
	}
	return strings.Join(unused, ", ")
}

// pairUp matches by the namespaces of the documents. If a name is a view or a time-series
// collection on the other side, the comparison of the catalogs reports that. ahead is how far the
// source's clock, by which documents expire, is ahead.
func pairUp(ofSource, ofTarget []schema.Collection, rules *transform.Set,
	ahead time.Duration) (pairs []Pair, err error) {
	source, target := virtual(ofSource), virtual(ofTarget)
	paired := map[string]bool{}
	for _, c := range ofSource {
		p := Pair{Route: rules.Route(c.DataNS()), UUID: c.UUID}
		if p.Expired, err = expired(c, rules, ahead); err != nil {
			return nil, err
		}
		if c.Type == schema.TypeView || target[p.Target] {
			continue
		}
		paired[p.Target] = true
		pairs = append(pairs, p)
	}
	for _, c := range ofTarget {
		if c.Type == schema.TypeView || paired[c.DataNS()] {
			continue
		}
		if ns, ok := rules.Source(c.DataNS()); ok && !source[ns] {
			r := *rules.Route(ns).To(c.DataNS())
			r.Filter, r.Fields = nil, nil // there are no documents to keep, or to map
			pairs = append(pairs, Pair{Route: &r})
		}
	}
	return pairs, nil
}

// expired recognizes expired documents by the source's settings; nil where the target keeps none.
func expired(c schema.Collection, rules *transform.Set, ahead time.Duration) (func(doc []byte) bool, error) {
	c, _, err := schema.Mapped(c, rules)
	if err != nil {
		return nil, err
	}
	settings, err := schema.ExpiryOf(c, rules)
	if err != nil || len(settings) == 0 {
		return nil, err
	}
	return func(doc []byte) bool { return settings.Expired(doc, time.Now().Add(ahead).UnixMilli()) }, nil
}

func virtual(list []schema.Collection) map[string]bool {
	out := map[string]bool{}
	for _, c := range list {
		if c.Type != schema.TypeCollection {
			out[c.NS] = true
		}
	}
	return out
}

// catalogs repeats until a difference is final, while writes go on.
func (e *Engine) catalogs(ctx context.Context, rules *transform.Set) ([]schema.Difference, error) {
	var all candidate
	for {
		began := time.Now()
		var diffs []schema.Difference
		err := again(ctx, e.o.Log, "compare the catalogs", func() (err error) {
			diffs, err = e.diff(ctx, rules)
			return err
		})
		if err != nil || !e.o.Online {
			return diffs, err
		}
		var text strings.Builder
		for _, d := range diffs {
			if !expected(d) {
				text.WriteString(d.String() + "\n")
			}
		}
		if text.Len() == 0 {
			return diffs, nil
		}
		if _, final := e.recheck.observe(&all, xxh3.HashString128(text.String()), digest{}, time.Now()); final {
			return diffs, nil
		}
		if err := pace.Pause(ctx, max(e.o.Recheck.Every, time.Since(began))); err != nil {
			return nil, err
		}
	}
}

func expected(d schema.Difference) bool { return d.Skipped != "" || d.Deferred }

func (e *Engine) diff(ctx context.Context, rules *transform.Set) (diffs []schema.Difference, err error) {
	err = e.seen(ctx, func() error {
		var o schema.DiffOptions
		if o.Deferred, err = schema.AllDeferred(ctx, e.clusters[target]); err != nil {
			return err
		}
		if of := e.shards[source].Load(); of != nil {
			if o.Building, err = of.Building(ctx, rules); err != nil {
				return e.unread(source, err)
			}
		}
		diffs, err = schema.Diff(ctx, e.clusters[source], e.clusters[target], rules, o)
		if err != nil || !e.o.Users {
			return err
		}
		from, to, done, err := e.homes(ctx)
		if err != nil {
			return err
		}
		defer done()
		others, err := users.Diff(ctx, from, to, rules)
		diffs = append(diffs, others...)
		return err
	})
	if only := e.o.Only; only != nil {
		diffs = slices.DeleteFunc(diffs, func(d schema.Difference) bool {
			return !only.Match(d.NS) && !slices.ContainsFunc(rules.Sources(d.NS), only.Match)
		})
	}
	return diffs, err
}
