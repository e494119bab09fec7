package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Phase is the state of the target's data.
type Phase int

const (
	// BeforeConsistent: documents may be of different times, so indexes that refuse some are deferred.
	BeforeConsistent Phase = iota
	// Consistent: all documents are of one time.
	Consistent
)

type builder struct {
	*link
	deferred *deferrals
}

// Build builds the indexes of a collection of the target, in one command or, if it is large, in a
// few at once. In phase BeforeConsistent it defers unique indexes, and all indexes of a command when
// a document refuses one: the source's next change may drop that index. Expiry is always deferred.
// Existing indexes are no error. targetNS names a time-series collection or its buckets; the
// specifications are those of the buckets. A missing collection is an error (see IsGone).
func (b *builder) Build(ctx context.Context, targetNS string, idx []stream.Index, p Phase) error {
	return b.build(ctx, Build{NS: targetNS, Indexes: idx}, p, mostParts)
}

type planned struct {
	Deferred
	spec bson.Raw // to build
}

func (b *builder) build(ctx context.Context, what Build, p Phase, commands int) error {
	if len(what.Indexes) == 0 {
		return nil
	}
	all, err := b.planAll(ctx, &what, p)
	if err != nil {
		return fmt.Errorf("build indexes of %s: %w", what.NS, err)
	}
	var later []Deferred
	var now []planned
	for _, x := range all {
		later = append(later, x.Deferred)
		if !x.Unbuilt {
			now = append(now, x)
		}
	}
	if err := b.deferred.save(ctx, later...); err != nil {
		return err
	}
	return b.inParts(ctx, what, now, commands, func(part []Deferred, specs []bson.Raw) error {
		err := b.create(ctx, what.dataNS, specs)
		if p == Consistent || !mongo.Unindexable(err) {
			return err
		}
		b.o.Log.Info("documents do not fit the indexes yet: they are built when the target is consistent",
			"ns", what.dataNS, "indexes", names(specs), "reason", err)
		for i := range part {
			part[i].Unbuilt = true
		}
		return b.deferred.save(ctx, part...)
	})
}

func (b *builder) planAll(ctx context.Context, what *Build, p Phase) (all []planned, err error) {
	ns := what.NS
	if what.dataNS = ns; !what.Plain {
		if what.dataNS, ns, err = b.locate(ctx, what.NS); err != nil {
			return nil, err
		}
	}
	for _, ix := range what.Indexes {
		one, err := b.plan(ns, ix, p)
		if err != nil {
			return nil, err
		}
		one.Yields = what.yields
		all = append(all, one)
	}
	return all, nil
}

var errGone = errors.New("does not exist on the target")

func IsGone(err error) bool { return errors.Is(err, errGone) }

func (b *builder) locate(ctx context.Context, targetNS string) (dataNS, ns string, err error) {
	ns = mongo.SeriesNS(targetNS)
	coll, ok, err := b.find(ctx, ns)
	switch {
	case err != nil:
		return "", "", err
	case !ok:
		return "", "", fmt.Errorf("%s %w", ns, errGone)
	case coll.Type == TypeView:
		return "", "", fmt.Errorf("%s is a view on the target", ns)
	}
	return coll.DataNS(), ns, nil
}

func (b *builder) plan(ns string, ix stream.Index, p Phase) (planned, error) {
	spec, expire, err := cleanIndex(ix)
	if err != nil {
		return planned{}, err
	}
	gaps := Unsupported(Collection{NS: ns, Indexes: []stream.Index{ix}}, b.c.Info.Version)
	if len(gaps) > 0 {
		return planned{}, mongo.WithHint(errors.New(strings.Join(gaps, "; ")),
			"drop the index on the source, or exclude the collection")
	}
	d := Deferred{DeferredID: b.deferred.id(ns, ix.Name), Expire: expire, Spec: ix.Spec}
	d.Unbuilt = p == BeforeConsistent && uniqueLike(ix.Spec)
	if expire != nil && !convertsTTL(b.c.Info.Version) && !b.o.keepsExpired(ns) {
		n, _ := expiry.Seconds(*expire)
		spec, err = with(spec, expiry.Option, expiry.StandIn(n))
	}
	return planned{d, spec}, err
}

// IndexConflict reports documents of the target that an index does not take: two with one key of a
// unique index, or one that cannot be indexed.
type IndexConflict struct {
	NS    string     // of the documents
	Specs []bson.Raw // of all indexes that were to be built
	Err   error      // the server's
}

// IsRefused reports an index that was not built, or not made unique, because of documents.
func IsRefused(err error) bool {
	var ic *IndexConflict
	return errors.As(err, &ic) || mongo.IsCode(err, mongo.CodeCannotMakeUnique)
}

// IndexName names an index of a target namespace, of a time series by its own name.
type IndexName struct{ NS, Name string }

func (c *IndexConflict) Error() string { return c.Err.Error() }

func (c *IndexConflict) Unwrap() error { return c.Err }

func (b *builder) create(ctx context.Context, dataNS string, specs []bson.Raw) error {
	if len(specs) == 0 {
		return nil
	}
	start := time.Now()
	db, _ := mongo.SplitNS(dataNS)
	stop := b.o.Builds.Watch(ctx, dataNS, nameList(specs))
	err := b.change(ctx, db, b.o.Builds.Command(dataNS, specs))
	if stop(); clashes(err) {
		// perhaps only in the expiry, which one has already
		missing, ferr := b.missing(ctx, dataNS, specs)
		if ferr != nil {
			return ferr
		}
		if len(missing) < len(specs) {
			return b.create(ctx, dataNS, missing)
		}
		if yields, yerr := b.o.Sharding.Yield(ctx, dataNS, specs); yerr != nil {
			return yerr
		} else if yields {
			return b.create(ctx, dataNS, specs)
		}
	}
	if err == nil {
		b.o.Log.Debug("built indexes on the target", "ns", dataNS, "indexes", names(specs), "took", time.Since(start))
		return nil
	}
	err = fmt.Errorf("build indexes %s of %s on the target: %w", names(specs), dataNS, err)
	const foreign = "documents were in the collection before, or something else writes to it; run millrace verify, " +
		"remove what the source does not have, then resume"
	switch {
	case mongo.Classify(err) == mongo.ClassDuplicate:
		err = &IndexConflict{NS: dataNS, Specs: specs, Err: err}
		return mongo.WithHint(err,
			"two documents of the target have the key that the error names, which the source's unique index does not "+
				"allow: "+foreign)
	case mongo.Unindexable(err):
		err = &IndexConflict{NS: dataNS, Specs: specs, Err: err}
		return mongo.WithHint(err,
			"the target has a document that the index cannot take, and the source's index took all of the source: "+foreign)
	case mongo.IsCode(err, mongo.CodeCannotCreateIndex) && b.c.Info.Kind == mongo.KindSharded:
		return mongo.WithHint(err,
			"a unique index of a sharded collection has to begin with its shard key: drop the index on the source, or the "+
				"collection on the target and start the job again with --restart and --shard "+dataNS+"=none")
	case clashes(err):
		return mongo.WithHint(err, "the target has a different index with that name or key: drop it there, then resume")
	}
	return err
}

func (b *builder) missing(ctx context.Context, dataNS string, specs []bson.Raw) ([]bson.Raw, error) {
	have, _, err := indexes(ctx, b.c, dataNS)
	if err != nil {
		return nil, err
	}
	var out []bson.Raw
	for _, spec := range specs {
		want := Collection{Indexes: []stream.Index{{Name: str(spec, "name"), Spec: spec}}}
		diffs, err := diffIndexes(want, Collection{Indexes: have}, DiffOptions{IgnoreTTL: true, IgnoreExtra: true})
		if err != nil {
			return nil, err
		}
		if len(diffs) > 0 {
			out = append(out, spec)
		}
	}
	return out, nil
}

func names(specs []bson.Raw) string { return strings.Join(nameList(specs), ", ") }

func nameList(specs []bson.Raw) (out []string) {
	for _, s := range specs {
		out = append(out, str(s, "name"))
	}
	return out
}

// BuildDeferred builds the deferred indexes except some, when the data is consistent. It can be
// repeated after a failure.
func (b *builder) BuildDeferred(ctx context.Context, but ...IndexName) error {
	all, err := b.deferred.List(ctx, bson.E{Key: "unbuilt", Value: true})
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(d Deferred) bool { return slices.Contains(but, IndexName{NS: d.NS, Name: d.Index}) })
	var builds []Build
	for ns, list := range byNS(all) {
		one := Build{NS: ns}
		for _, d := range list {
			one.Indexes = append(one.Indexes, stream.Index{Name: d.Index, Spec: d.Spec})
			one.yields = one.yields || d.Yields
		}
		if one.dataNS, _, err = b.locate(ctx, ns); err == nil {
			_, one.Bytes, err = size(ctx, b.c, one.dataNS)
		}
		if err != nil {
			return fmt.Errorf("build the deferred indexes of %s: %w", ns, err)
		}
		builds = append(builds, one)
	}
	return eachBuild(ctx, builds, DefaultBuilds, func(ctx context.Context, what Build, commands int) error {
		all, err := b.planAll(ctx, &what, Consistent)
		if err != nil {
			return fmt.Errorf("build the deferred indexes of %s: %w", what.NS, err)
		}
		var build func(done []Deferred, specs []bson.Raw) error
		build = func(done []Deferred, specs []bson.Raw) error {
			err := b.create(ctx, what.dataNS, specs)
			if err == nil { // built, then forgotten
				return b.deferred.save(ctx, done...)
			}
			if !mongo.Unindexable(err) || len(specs) == 1 {
				return err
			}
			for i := range specs { // the server does not say which
				if err := build(done[i:i+1], specs[i:i+1]); err != nil {
					return err
				}
			}
			return nil
		}
		return b.inParts(ctx, what, all, commands, build)
	})
}

func byNS(list []Deferred) map[string][]Deferred {
	groups := map[string][]Deferred{}
	for _, d := range list {
		groups[d.NS] = append(groups[d.NS], d)
	}
	return groups
}

// Duplicates finds two documents with one key of an index, for servers that do not return the key in
// a searchable form. It finds none if the index's keys cannot be queried.
func (b *builder) Duplicates(ctx context.Context, ns string, index bson.Raw) ([]bson.Raw, error) {
	keys := keyFields(index)
	special := func(e bson.RawElement) bool { return strings.HasPrefix(e.Key(), "$") }
	if len(keys) == 0 || slices.ContainsFunc(keys, special) {
		return nil, nil
	}
	id := bson.D{}
	for i, e := range keys {
		id = append(id, bson.E{Key: fmt.Sprint("k", i), Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + e.Key(), nil}}}})
	}
	match := bson.D{}
	if p, ok := index.Lookup("partialFilterExpression").DocumentOK(); ok {
		match = bson.D{{Key: "$and", Value: bson.A{p}}}
	}
	name, coll := mongo.SplitNS(ns)
	cmd := bson.D{{Key: "aggregate", Value: coll}, {Key: "allowDiskUse", Value: true}, {Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$match", Value: match}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: id}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
				{Key: "first", Value: bson.D{{Key: "$first", Value: "$_id"}}},
				{Key: "last", Value: bson.D{{Key: "$last", Value: "$_id"}}}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}}}},
			bson.D{{Key: "$limit", Value: 1}},
		}}}
	if c, ok := index.Lookup("collation").DocumentOK(); ok {
		cmd = append(cmd, bson.E{Key: "collation", Value: c})
	}
	db := b.c.Client.Database(name)
	found, err := mongo.ReadAll[bson.Raw](ctx, "find duplicate keys of %s", ns)(db.RunCommandCursor(ctx, cmd))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	var out []bson.Raw
	for _, which := range []string{"first", "last"} {
		doc, err := db.Collection(coll).FindOne(ctx, bson.D{{Key: "_id", Value: found[0].Lookup(which)}},
			options.FindOne().SetCollation(&options.Collation{Locale: "simple"})).Raw()
		if err != nil {
			return nil, fmt.Errorf("read a document of %s: %w", ns, err)
		}
		out = append(out, doc)
	}
	return out, nil
}

// Remove drops indexes of a collection that are there, except that of a shard key.
func (b *builder) Remove(ctx context.Context, targetNS string, idx []stream.Index) error {
	db, coll := mongo.SplitNS(targetNS)
	for _, ix := range idx {
		err := b.change(ctx, db, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: ix.Name}})
		if err != nil && mongo.Classify(err) != mongo.ClassGone && !mongo.IsCode(err, mongo.CodeShardKeyIndex) {
			return fmt.Errorf("drop index %s of %s on the target: %w", ix.Name, targetNS, err)
		}
	}
	return nil
}

func (b *builder) drop(ctx context.Context, ns, name string) error {
	db, coll := mongo.SplitNS(ns)
	drop := bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: name}}
	err := b.change(ctx, db, drop)
	if mongo.IsCode(err, mongo.CodeShardKeyIndex) {
		yields, yerr := b.o.Sharding.Yield(ctx, ns, nil)
		if yerr != nil {
			return yerr
		}
		if yields {
			err = b.change(ctx, db, drop)
		}
	}
	if err != nil && mongo.Classify(err) != mongo.ClassGone {
		return fmt.Errorf("drop index %s of %s on the target: %w", name, ns, err)
	}
	if err == nil && name == "*" {
		return b.o.Sharding.DropRest(ctx, ns)
	}
	return nil
}
