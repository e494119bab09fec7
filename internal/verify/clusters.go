package verify

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

// Spec says which clusters are compared, and how. Source and Target hold
// secrets and are never logged.
type Spec struct {
	Source, Target string
	Rules          transform.Config
	Options
	// Observe, when set, gets the function that tells the progress, once the
	// comparison begins. It is safe for concurrent use, also afterwards.
	Observe func(stats func() Stats)
}

// Clusters connects to both clusters and compares what the rules keep: the
// documents of every collection that either side has, and collections,
// options, indexes and views. An error means that the comparison did not come
// to its end; differences are in the report.
func Clusters(ctx context.Context, spec Spec) (*Report, error) {
	rules, err := transform.New(spec.Rules)
	if err != nil {
		return nil, err
	}
	var sides [2]*mongo.Cluster
	for i, uri := range []string{spec.Source, spec.Target} {
		if sides[i], err = mongo.Connect(ctx, uri, mongo.Options{AppName: "millrace-verify"}); err != nil {
			return nil, fmt.Errorf("%s: %w", [...]string{"source", "target"}[i], err)
		}
		defer sides[i].Close()
	}
	return New(sides[source], sides[target], spec.Options).compareClusters(ctx, rules, spec.Observe)
}

// compareClusters compares all that the rules keep.
func (e *Engine) compareClusters(ctx context.Context, rules *transform.Set,
	observe func(func() Stats)) (*Report, error) {
	var pairs []Pair
	err := e.seen(ctx, func() (err error) {
		pairs, err = e.list(ctx, rules)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if observe != nil {
		observe(e.Stats)
	}
	report, err := e.Run(ctx, pairs)
	if err != nil {
		return nil, err
	}
	var diffs []schema.Difference
	err = e.seen(ctx, func() (err error) {
		diffs, err = schema.Diff(ctx, e.clusters[source], e.clusters[target], rules, schema.DiffOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify: compare catalogs: %w", err)
	}
	for _, d := range diffs {
		detail := strings.TrimPrefix(d.String(), d.NS+": "+d.What+": ")
		report.AddSchema(SchemaDifference{NS: d.NS, What: d.What, Detail: detail})
	}
	return report, nil
}

// seen looks, and returns when what was seen can no longer roll back.
func (e *Engine) seen(ctx context.Context, look func() error) error {
	return e.clusters[source].Seen(ctx, func() error { return e.clusters[target].Seen(ctx, look) })
}

// list lists the collections of both sides: those of the source with
// their names on the target, then those that the target alone has. Views hold
// no documents; the catalogs' comparison sees them.
func (e *Engine) list(ctx context.Context, rules *transform.Set) ([]Pair, error) {
	scopes := [2]schema.Scope{{NS: rules.Match, DB: rules.MatchDB}, {DB: rules.MatchTargetDB, NS: func(ns string) bool {
		_, ok := rules.Source(ns)
		return ok
	}}}
	var listed [2][]schema.Collection
	err := both(ctx, func(ctx context.Context, i int) (err error) {
		listed[i], err = schema.List(ctx, e.clusters[i], scopes[i])
		return err
	})
	return pairUp(listed[source], listed[target], rules), err
}

// pairUp matches by the namespaces that hold the documents. A collection whose
// name on the other side means a view or a time-series collection has nothing to
// be paired with: that they are of different types is for the catalogs'
// comparison to say.
func pairUp(ofSource, ofTarget []schema.Collection, rules *transform.Set) []Pair {
	var pairs []Pair
	source, target := virtual(ofSource), virtual(ofTarget)
	paired := map[string]bool{}
	for _, c := range ofSource {
		p := Pair{SourceNS: c.DataNS(), TargetNS: rules.Target(c.DataNS())}
		if c.Type == schema.TypeView || target[p.TargetNS] {
			continue
		}
		paired[p.TargetNS] = true
		pairs = append(pairs, p)
	}
	for _, c := range ofTarget {
		if c.Type == schema.TypeView || paired[c.DataNS()] {
			continue
		}
		if ns, ok := rules.Source(c.DataNS()); ok && !source[ns] {
			pairs = append(pairs, Pair{SourceNS: ns, TargetNS: c.DataNS()})
		}
	}
	return pairs
}

// virtual are the names under which no documents are kept: of views, and of
// time-series collections, whose documents are in their buckets.
func virtual(list []schema.Collection) map[string]bool {
	out := map[string]bool{}
	for _, c := range list {
		if c.Type != schema.TypeCollection {
			out[c.NS] = true
		}
	}
	return out
}
