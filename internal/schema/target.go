// Package schema lists and compares the collections, views, indexes and options of a deployment. It
// makes them on a target (Target), applies schema changes there, and keeps the names that a job has
// there (Names). It knows neither documents nor which of them a job keeps.
package schema

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Type is the type of a namespace.
type Type string

// The types of listCollections.
const (
	TypeCollection Type = "collection"
	TypeView       Type = "view"
	TypeTimeSeries Type = "timeseries"
)

// Collection describes one collection, view or time-series collection.
type Collection struct {
	NS   string // "db.name"; of a time series not that of the buckets
	Type Type
	// UUID identifies the collection of the documents, for a time series its buckets. Empty for a
	// view.
	UUID bson.Binary
	// Options as in listCollections (capped, validator, collation, …), never nil.
	Options bson.Raw
	// MixedSchema: buckets may hold measurements of several types in one field, as before 5.2.
	MixedSchema bool
	// Indexes as in listIndexes, without the _id index; unfinished builds are in Building.
	Indexes, Building []stream.Index
	// IDIndex: there is an _id index (false if clustered or with the old autoIndexId:false).
	IDIndex      bool
	Count, Bytes int64 // estimates of the server
}

// DataNS is the namespace of the documents: the buckets of a time series, else NS.
func (c Collection) DataNS() string {
	if c.Type != TypeTimeSeries {
		return c.NS
	}
	db, coll := mongo.SplitNS(c.NS)
	return db + "." + mongo.BucketsPrefix + coll
}

func (c Collection) Capped() bool {
	v, _ := c.Options.Lookup("capped").BooleanOK()
	return v
}

// Clustered reports a collection clustered by _id.
func (c Collection) Clustered() bool {
	return has(c.Options, "clusteredIndex") || c.Type == TypeTimeSeries
}

// Collated reports a default collation, under which _ids that differ in bytes can be equal.
func (c Collection) Collated() bool {
	return has(c.Options, "collation", "locale") && str(c.Options, "collation", "locale") != "simple"
}

// Snapshot is the catalog at one oplog position.
type Snapshot struct {
	At          mongo.OpTime
	Collections []Collection
	// Others is what further servers have, without indexes and sizes.
	Others [][]Collection
}

// Sharding shards collections of a sharded target.
type Sharding interface {
	// Prepare is called before a collection is made. With ours, an existing one is the job's own. The
	// indexes in early have to be built before Shard.
	Prepare(ctx context.Context, coll Collection, targetNS string, ours bool) (early []stream.Index, err error)
	// Shard shards a prepared collection. Others stay unchanged.
	Shard(ctx context.Context, targetNS string) error
	// Yield is called when the index of a shard key may be in the way. One of the clashing indexes
	// replaces it. Without any, it is in the way of its own change, and another one stands in. False:
	// it was not in the way.
	Yield(ctx context.Context, targetNS string, clashing []bson.Raw) (bool, error)
	// DropRest drops the indexes left after a drop of all, which support the shard key.
	DropRest(ctx context.Context, targetNS string) error
	// Forget and Move record what became of a collection.
	Forget(ctx context.Context, targetNS string) error
	Move(ctx context.Context, from, to string) error
}

type unsharded struct{}

func (unsharded) Prepare(context.Context, Collection, string, bool) ([]stream.Index, error) {
	return nil, nil
}
func (unsharded) Shard(context.Context, string) error                     { return nil }
func (unsharded) Yield(context.Context, string, []bson.Raw) (bool, error) { return false, nil }
func (unsharded) DropRest(context.Context, string) error                  { return nil }
func (unsharded) Forget(context.Context, string) error                    { return nil }
func (unsharded) Move(context.Context, string, string) error              { return nil }

// TargetOptions configure a Target.
type TargetOptions struct {
	// Sharding shards new collections; nil shards none.
	Sharding Sharding
	// Job identifies the job's records.
	Job string
	// Log may be nil.
	Log *slog.Logger
	// SameTerm gets the election term of each change, and fails if it is not that of the attempt; nil
	// takes any.
	SameTerm func(term int64) error
	// KeepsExpired reports a target namespace that keeps expired documents, so it gets no expiry; nil
	// knows none.
	KeepsExpired func(targetNS string) bool
	// Builds runs index builds; nil waits for a majority.
	Builds *Builds
}

func (o TargetOptions) keepsExpired(ns string) bool {
	return o.KeepsExpired != nil && o.KeepsExpired(ns)
}

// Target writes schema to a target deployment. It is safe for concurrent use for different
// namespaces; Apply must run alone.
type Target struct {
	*link                  // shared connection
	Deferred    *deferrals // what the target gets later
	Indexes     *builder
	Expiries    *expiries // and limits of capped collections
	Collections *creator  // and views
	Changes     *changer  // of the source's schema
}

// NewTarget sends nothing yet.
func NewTarget(c *mongo.Cluster, o TargetOptions) *Target {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Sharding == nil {
		o.Sharding = unsharded{}
	}
	if o.Builds == nil {
		o.Builds = NewBuilds(c, nil, o.Log)
	}
	l := &link{c: c, o: o}
	d := &deferrals{link: l}
	b := &builder{link: l, deferred: d}
	e := &expiries{link: l, deferred: d, indexes: b}
	cr := &creator{link: l, deferred: d, expiries: e}
	return &Target{l, d, b, e, cr, &changer{link: l, deferred: d, indexes: b, colls: cr}}
}

type link struct {
	c    *mongo.Cluster
	o    TargetOptions
	room bool // see KeepRoom
}

func (l *link) change(ctx context.Context, db string, cmd bson.D) error {
	term, err := l.c.Change(ctx, db, cmd)
	if err == nil && l.o.SameTerm != nil {
		err = l.o.SameTerm(term)
	}
	return err
}

// WaitMajority waits until all schema changes are on a majority.
func (l *link) WaitMajority(ctx context.Context) error {
	nothing := bson.D{{Key: "_id", Value: DeferredID{Job: l.o.Job}}}
	// waits for what came before it
	_, err := l.c.DeleteState(ctx, deferredCollection, "majority", nothing)
	return mongo.Wrap(err, "wait for a majority of the target")
}

// dialect is the version by which the target names options. Shards of 6.0 know pre-images only by the
// name of 7.0.
func (l *link) dialect() mongo.Version {
	v := l.c.Info.Version
	if l.c.Info.Kind == mongo.KindSharded && v.AtLeast(6, 0) && !v.AtLeast(7, 0) {
		return mongo.Version{Major: 7}
	}
	return v
}

func (l *link) find(ctx context.Context, ns string) (Collection, bool, error) {
	db, name := mongo.SplitNS(ns)
	return findNamed(ctx, l.c, db, name, mongo.BucketsPrefix+name)
}

func (l *link) Has(ctx context.Context, ns string) (bool, error) {
	_, there, err := l.find(ctx, ns)
	return there, err
}

func (l *link) HasCapped(ctx context.Context, ns string) (bool, error) {
	one, there, err := l.find(ctx, ns)
	return there && one.Capped(), err
}

func (l *link) findIndex(ctx context.Context, dataNS, name string, key bson.Raw) (stream.Index, bool, error) {
	all, _, err := indexes(ctx, l.c, dataNS)
	at := slices.IndexFunc(all, func(ix stream.Index) bool {
		return ix.Name == name || name == "" && comparableKey(sub(ix.Spec, "key")) == comparableKey(key)
	})
	if err != nil || at < 0 {
		return stream.Index{}, false, err
	}
	return all[at], true, nil
}

func (l *link) isEmpty(ctx context.Context, ns string) (bool, error) {
	coll, there, err := l.find(ctx, ns)
	if err != nil || !there || coll.Type == TypeView {
		return err == nil, err
	}
	id, err := l.anyID(ctx, coll.DataNS())
	return id == nil, err
}

func (l *link) anyID(ctx context.Context, dataNS string) (bson.Raw, error) {
	db, name := mongo.SplitNS(dataNS)
	raw, err := l.c.Command(ctx, db, bson.D{{Key: "find", Value: name}, {Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
	return sub(raw, "cursor", "firstBatch", "0"), mongo.Wrap(err, "look for documents of %s on the target", dataNS)
}

func (l *link) listed(ctx context.Context, targetNSs []string) (found []Collection, err error) {
	wanted, dbs := map[string]bool{}, map[string]bool{}
	for _, ns := range targetNSs {
		db, _ := mongo.SplitNS(ns)
		wanted[ns], dbs[db] = true, true
	}
	for db := range dbs {
		colls, err := listDB(ctx, l.c, db, bson.D{}, func(ns string) bool { return wanted[ns] })
		if err != nil {
			return nil, err
		}
		found = append(found, colls...)
	}
	return found, nil
}

// ListExisting returns those of the target namespaces that exist, with the server's estimate of their
// documents (0 for views).
func (l *link) ListExisting(ctx context.Context, targetNSs []string) (map[string]int64, error) {
	found, err := l.listed(ctx, targetNSs)
	if err == nil {
		err = estimate(ctx, l.c, found)
	}
	out := map[string]int64{}
	for _, c := range found {
		out[c.NS] = c.Count
	}
	return out, err
}

func (l *link) collMod(ctx context.Context, ns string, options bson.Raw) error {
	options, err := l.keepPreImages(ctx, ns, options)
	if err != nil {
		return err
	}
	db, coll := mongo.SplitNS(ns)
	if err := l.change(ctx, db, command("collMod", coll, options)); err != nil {
		err = fmt.Errorf("collMod %s on the target: %w", ns, err)
		if mongo.Classify(err) == mongo.ClassRetry {
			return err
		}
		return mongo.WithHint(err,
			"the target refuses an option of the source's collection: change it on the source and start the job again with "+
				"--restart, or exclude the collection")
	}
	return nil
}

func (l *link) collModIndex(ctx context.Context, ns, index, key string, value any) error {
	mod := bson.D{{Key: "index", Value: bson.D{{Key: "name", Value: index}, {Key: key, Value: value}}}}
	err := l.collMod(ctx, ns, rawDoc(mod))
	if key == "hidden" && mongo.IsCode(err, mongo.CodeInvalidOptions) {
		if yields, yerr := l.o.Sharding.Yield(ctx, ns, nil); yields || yerr != nil {
			if yerr == nil {
				yerr = l.collMod(ctx, ns, rawDoc(mod))
			}
			return yerr
		}
	}
	return err
}

// keepPreImages repeats recordPreImages: some servers (seen on 5.0.4 and 6.0.5) switch it off in any
// collMod without it.
func (l *link) keepPreImages(ctx context.Context, ns string, options bson.Raw) (bson.Raw, error) {
	if has(options, "recordPreImages") || l.dialect().AtLeast(7, 0) {
		return options, nil
	}
	coll, _, err := l.find(ctx, ns)
	if err != nil || !truthyField(coll.Options, "recordPreImages") {
		return options, err
	}
	return with(options, "recordPreImages", true)
}

func command(name string, arg any, options bson.Raw) bson.D {
	cmd := bson.D{{Key: name, Value: arg}}
	for key, v := range fields(options) {
		cmd = append(cmd, bson.E{Key: key, Value: v})
	}
	return cmd
}
