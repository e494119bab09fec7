package verify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

// Spec says which clusters are compared, and how. Source and Target hold
// secrets and are never logged.
type Spec struct {
	Source, Target string
	Rules          transform.Config
	// Method is how documents are compared; empty chooses.
	Method Method
	// IgnoreFieldOrder lets documents differ in the order of their fields.
	IgnoreFieldOrder bool
	// Online rechecks differences for RecheckFor, because writes go on.
	Online     bool
	RecheckFor time.Duration
	// Workers bounds the ranges compared at once, MaxDifferences those that
	// are listed; 0 chooses.
	Workers, MaxDifferences int
	// Observe, when set, gets the function that tells the progress, once the
	// comparison begins. It is safe for concurrent use, also afterwards.
	Observe func(stats func() Stats)
	Log     *slog.Logger
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
	src, err := mongo.Connect(ctx, spec.Source, mongo.Options{AppName: "millrace-verify"})
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	defer src.Close()
	dst, err := mongo.Connect(ctx, spec.Target, mongo.Options{AppName: "millrace-verify"})
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	defer dst.Close()
	return compareClusters(ctx, src, dst, rules, spec)
}

// compareClusters compares open clusters. Of spec it uses the options alone.
func compareClusters(ctx context.Context, src, dst *mongo.Cluster, rules *transform.Set, spec Spec) (*Report, error) {
	var pairs []Pair
	err := seenOnBoth(ctx, src, dst, func() (err error) {
		pairs, err = listPairs(ctx, src, dst, rules)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	engine := New(src, dst, Options{
		Method: spec.Method, Workers: spec.Workers, IgnoreFieldOrder: spec.IgnoreFieldOrder,
		MaxDifferences: spec.MaxDifferences, Online: spec.Online, Recheck: RecheckOptions{For: spec.RecheckFor}, Log: spec.Log,
	})
	if spec.Observe != nil {
		spec.Observe(engine.Stats)
	}
	report, err := engine.Run(ctx, pairs)
	if err != nil {
		return nil, err
	}
	var diffs []schema.Difference
	err = seenOnBoth(ctx, src, dst, func() (err error) {
		diffs, err = schema.Diff(ctx, src, dst, rules, schema.DiffOptions{})
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

// seenOnBoth lists, and returns when what is listed can no longer roll back.
func seenOnBoth(ctx context.Context, src, dst *mongo.Cluster, list func() error) error {
	return src.Seen(ctx, func() error { return dst.Seen(ctx, list) })
}

// listPairs lists the collections of both sides: those of the source with
// their names on the target, then those that the target alone has. Views hold
// no documents; the catalogs' comparison sees them.
func listPairs(ctx context.Context, src, dst *mongo.Cluster, rules *transform.Set) ([]Pair, error) {
	var listed [2][]schema.Collection
	err := both(ctx, func(ctx context.Context, i int) (err error) {
		scope := schema.Scope{NS: rules.Match, DB: rules.MatchDB}
		if i == target {
			scope = schema.Scope{DB: rules.MatchTargetDB, NS: func(ns string) bool {
				_, ok := rules.Source(ns)
				return ok
			}}
		}
		listed[i], err = schema.List(ctx, [2]*mongo.Cluster{src, dst}[i], scope)
		return err
	})
	if err != nil {
		return nil, err
	}
	return pairUp(listed[source], listed[target], rules), nil
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
