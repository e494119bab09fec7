package schema

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Difference is a difference between two catalogs.
type Difference struct {
	NS     string `json:"ns"`   // source namespace; the target's where only it has the collection
	What   string `json:"what"` // e.g. "collection", "option validator", "index a_1"
	Source string `json:"source,omitempty"`
	Target string `json:"target,omitempty"`
	// Skipped are operations that the rules skip, one of which may be the cause.
	Skipped string `json:"skipped,omitempty"`
	// Deferred: the target gets it when the job is consistent, or finalized.
	Deferred bool `json:"deferred,omitempty"`
	// Building: the source is still building the index.
	Building bool `json:"building,omitempty"`
}

func (d Difference) String() string {
	text := fmt.Sprintf("%s: %s: source has %s, target has %s", d.NS, d.What, cmp.Or(d.Source, "none"),
		cmp.Or(d.Target, "none"))
	switch {
	case d.Skipped != "":
		text += " (" + d.Skipped + " is skipped)"
	case d.Deferred:
		text += " (deferred by a job)"
	case d.Building:
		text += " (the source is still building it)"
	}
	return text
}

// DiffOptions limit a comparison.
type DiffOptions struct {
	// Keep selects namespaces of the source; nil is those of the rules.
	Keep func(ns string) bool
	// IgnoreTTL ignores expiry, which is deferred until finalize.
	IgnoreTTL bool
	// IgnoreExtra ignores what only the target has.
	IgnoreExtra bool
	// Made reports an index of the target that the job made for itself; nil knows none.
	Made func(targetNS string, ix stream.Index) bool
	// IgnoreSharding ignores shard keys and zones.
	IgnoreSharding bool
	// Deferred marks the differences that it explains.
	Deferred []Deferred
	// Building are index builds that the source's listing does not show.
	Building []Collection
	// Own are collections of the target whose databases are compared, too.
	Own []string
}

// Diff compares the kept collections and views of a source with a target: types, options, indexes and
// definitions, and between sharded clusters shard keys and zones.
func Diff(ctx context.Context, src, dst *mongo.Cluster, rules *transform.Set, o DiffOptions) ([]Difference, error) {
	keep := o.Keep
	if keep == nil {
		keep = rules.Match
	}
	source, err := list(ctx, src, Scope{NS: keep, DB: rules.MatchDB})
	if err != nil {
		return nil, err
	}
	addBuilding(source, o.Building)
	target, err := list(ctx, dst, Scope{Readable: true, DB: OwnDatabases(source, rules, o.Own...),
		NS: func(ns string) bool {
			from, ok := rules.Source(ns)
			return ok && keep(from)
		}})
	if err != nil {
		return nil, err
	}
	sharded, err := shardedBeside(ctx, catalog{src, source}, catalog{dst, target}, rules, o)
	if err != nil {
		return nil, err
	}
	out, err := diff(source, target, rules, o)
	for i, d := range out {
		ns := rules.Target(d.NS)
		explains := func(later Deferred) bool { return later.NS == ns && later.explains(d.What) }
		out[i].Deferred = slices.ContainsFunc(o.Deferred, explains)
	}
	out = append(out, sharded...)
	explain(out, rules)
	return out, err
}

// OwnDatabases selects the databases of the target whose content is compared: those of the source's
// collections, of the given namespaces, and of the rules.
func OwnDatabases(source []Collection, rules *transform.Set, targets ...string) func(db string) bool {
	for _, c := range source {
		targets = append(targets, rules.Target(c.NS))
	}
	own := map[string]bool{}
	for _, ns := range targets {
		db, _ := mongo.SplitNS(ns)
		own[db] = true
	}
	return func(db string) bool { return rules.MatchTargetDB(db) && own[db] || rules.NamesTargetDB(db) }
}

func diff(source, target []Collection, rules *transform.Set, o DiffOptions) ([]Difference, error) {
	byName := map[string]Collection{}
	for _, c := range target {
		byName[c.NS] = c
	}
	var out []Difference
	for _, c := range source {
		var err error
		if c, _, err = Mapped(c, rules); err != nil {
			return nil, err
		}
		if OfVersions(c, rules) {
			continue
		}
		if c.Type == TypeCollection && rules.Route(c.NS).History {
			c.Options = emptyDoc()
		}
		name := rules.Target(c.NS)
		t, ok := byName[name]
		delete(byName, name)
		if !ok {
			out = append(out, Difference{NS: c.NS, What: string(c.Type), Source: c.NS})
			continue
		}
		found, err := diffOne(c, t, rules, o)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	if o.IgnoreExtra {
		return out, nil
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, Difference{NS: name, What: string(byName[name].Type), Target: name})
	}
	return out, nil
}

func diffOne(source, target Collection, rules *transform.Set, o DiffOptions) ([]Difference, error) {
	if source.Type != target.Type {
		return []Difference{{NS: source.NS, What: "type", Source: string(source.Type), Target: string(target.Type)}}, nil
	}
	if source.Type == TypeView {
		var err error
		if source.Options, err = MapView(source.NS, source.Options, rules); err != nil {
			return nil, err
		}
	}
	out, err := diffOptions(source, target, o)
	if err != nil {
		return nil, err
	}
	indexes, err := diffIndexes(source, target, o)
	return append(out, indexes...), err
}

func diffOptions(source, target Collection, o DiffOptions) ([]Difference, error) {
	a, err := comparableOptions(source, o)
	if err != nil {
		return nil, err
	}
	b, err := comparableOptions(target, o)
	if err != nil {
		return nil, err
	}
	return diffMaps(source.NS, "option ", a, b), nil
}

func diffMaps(ns, what string, a, b map[string]string) []Difference {
	all := maps.Clone(a)
	maps.Copy(all, b)
	var out []Difference
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if a[key] != b[key] {
			out = append(out, Difference{NS: ns, What: what + key, Source: a[key], Target: b[key]})
		}
	}
	return out
}

func diffIndexes(source, target Collection, o DiffOptions) ([]Difference, error) {
	byName := map[string]stream.Index{}
	for _, ix := range target.Indexes {
		byName[ix.Name] = ix
	}
	var out []Difference
	for _, ix := range source.Indexes {
		other, ok := byName[ix.Name]
		delete(byName, ix.Name)
		if !ok {
			out = append(out, Difference{NS: source.NS, What: "index " + ix.Name, Source: text(ix.Spec)})
			continue
		}
		a, b, err := comparablePair(ix, other, o)
		if err != nil {
			return nil, fmt.Errorf("compare the indexes of %s and %s: %w", source.NS, target.NS, err)
		}
		out = append(out, diffMaps(source.NS, "index "+ix.Name+", ", a, b)...)
	}
	building, err := diffBuilding(source, byName, o)
	if out = append(out, building...); err != nil {
		return nil, err
	}
	if o.IgnoreExtra {
		return out, nil
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if o.Made != nil && o.Made(target.NS, byName[name]) {
			continue
		}
		out = append(out, Difference{NS: source.NS, What: "index " + name, Target: text(byName[name].Spec)})
	}
	return out, nil
}

// diffBuilding compares the source's builds with the target's indexes, and removes them from those.
// A target gets such an index when its build has ended.
func diffBuilding(source Collection, target map[string]stream.Index, o DiffOptions) (out []Difference, err error) {
	for _, ix := range source.Building {
		other, ok := target[ix.Name]
		delete(target, ix.Name)
		d := Difference{NS: source.NS, What: "index " + ix.Name, Source: text(ix.Spec), Building: true}
		if ok {
			a, b, err := comparablePair(ix, other, o)
			if err != nil {
				return nil, fmt.Errorf("compare the index %s that %s is building: %w", ix.Name, source.NS, err)
			}
			if maps.Equal(a, b) {
				continue
			}
			d.Target = text(other.Spec)
		}
		out = append(out, d)
	}
	return out, nil
}

func text(doc bson.Raw) string {
	b, err := bson.MarshalExtJSON(doc, false, false)
	if err != nil {
		return doc.String()
	}
	return strings.TrimSpace(string(b))
}
