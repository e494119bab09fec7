package schema

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// convertsTTL reports servers whose collMod adds expiry to a plain index.
func convertsTTL(v mongo.Version) bool { return v.AtLeast(5, 1) }

type expiries struct {
	*link
	deferred *deferrals
	indexes  *builder
}

// Defer defers expiries that the target has until Restore: it would delete documents that the source
// still changes. It ignores what is deferred already or no collection.
func (e *expiries) Defer(ctx context.Context, targetNSs []string) error {
	colls, err := e.listed(ctx, targetNSs)
	if err != nil {
		return err
	}
	return sideBySide(ctx, DefaultBuilds, slices.All(colls), func(ctx context.Context, _ int, c Collection) error {
		if c.Type == TypeView {
			return nil
		}
		return e.deferAll(ctx, c)
	})
}

func (e *expiries) deferAll(ctx context.Context, c Collection) error {
	if err := e.makeRoom(ctx, c); err != nil {
		return err
	}
	all, _, err := indexes(ctx, e.c, c.DataNS())
	if err != nil {
		return err
	}
	for _, d := range expiry.Deferrals(c.Options, c.Capped(), convertsTTL(e.c.Info.Version), specsOf(all)...) {
		if err := e.deferOne(ctx, c, d); err != nil {
			return fmt.Errorf("defer the expiry of %s (index %q) on the target: %w", c.NS, d.Index, err)
		}
	}
	return nil
}

func (e *expiries) deferOne(ctx context.Context, c Collection, d expiry.Deferral) error {
	noted := Deferred{DeferredID: e.deferred.id(c.NS, d.Index), Was: &d.Was, Spec: d.Spec}
	if err := e.note(ctx, noted); err != nil {
		return err
	}
	if d.Index == "" {
		return e.collMod(ctx, c.NS, rawDoc(bson.D{{Key: expiry.Option, Value: d.StandIn}}))
	}
	err := e.collModIndex(ctx, c.NS, d.Index, expiry.Option, d.StandIn)
	if err != nil && c.Type == TypeTimeSeries {
		return e.rebuild(ctx, noted, nil)
	}
	return err
}

// note records what the target had. An expiry already deferred for the source is the one to restore.
func (e *expiries) note(ctx context.Context, d Deferred) error {
	old, there, err := e.deferred.one(ctx, d.NS, d.Index)
	if err != nil {
		return err
	}
	was := d.Was
	if there {
		d = old
	}
	if d.Was = was; d.Expire == nil {
		d.Expire, d.Foreign = was, true
	}
	e.o.Log.Info("the target has an expiry, or limits, that are deferred until finalize",
		"ns", d.NS, "index", d.Index, "was", was)
	return e.deferred.save(ctx, d)
}

// Restore sets the deferred expiries, as the last step of a job: from then on the target deletes
// documents by itself. It sets none where expired documents stay. It can be repeated after a failure.
func (e *expiries) Restore(ctx context.Context) error {
	all, err := e.deferred.List(ctx, bson.E{Key: "expire", Value: bson.D{{Key: "$exists", Value: true}}})
	if err != nil {
		return err
	}
	groups := maps.All(byNS(all))
	return sideBySide(ctx, DefaultBuilds, groups, func(ctx context.Context, ns string, list []Deferred) error {
		if e.o.keepsExpired(ns) {
			e.o.Log.Info("the target does not expire documents that are to stay there", "ns", ns)
			return nil // what has expired is asked for as long as changes come
		}
		for _, d := range list {
			if err := e.restore(ctx, d); err != nil {
				return fmt.Errorf("restore the expiry of %s (index %q) on the target: %w", ns, d.Index, err)
			}
			if err := e.deferred.forget(ctx, inNS(ns), ofIndex(d.Index), isAbsent(false)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *expiries) restore(ctx context.Context, d Deferred) error {
	if d.Limits() {
		return e.collMod(ctx, d.NS, d.Expire.Document())
	}
	if d.Index == "" {
		return e.collMod(ctx, d.NS, rawDoc(bson.D{{Key: expiry.Option, Value: *d.Expire}}))
	}
	if d.Unbuilt {
		return errors.New("the index is not built yet") // a bug: BuildDeferred comes first
	}
	if same, err := e.indexes.isOf(ctx, d); err != nil || !same {
		return err
	}
	n, _ := expiry.Seconds(*d.Expire)
	err := e.collModIndex(ctx, d.NS, d.Index, expiry.Option, n)
	if err == nil {
		return nil
	}
	coll, ok, findErr := e.find(ctx, d.NS)
	if findErr == nil && ok && coll.Capped() {
		// The source made it while the job ran. It expired nothing there, as the comparison of the
		// catalogs reports.
		e.o.Log.Warn("the target refuses an index that expires documents of a capped collection; it has the index without "+
			"the expiry",
			"ns", d.NS, "index", d.Index, "error", err)
		return nil
	}
	if convertsTTL(e.c.Info.Version) && coll.Type != TypeTimeSeries {
		return err
	}
	return e.rebuild(ctx, d, &n)
}

// rebuild makes an index anew, as collMod cannot set its expiry (nil is none): that of a time series,
// or on older servers one without. After a crash in between, Restore builds it.
func (e *expiries) rebuild(ctx context.Context, d Deferred, expire *int64) error {
	spec, _, err := cleanIndex(stream.Index{Name: d.Index, Spec: d.Spec})
	if err == nil && expire != nil {
		spec, err = with(spec, expiry.Option, *expire)
	}
	if err != nil {
		return err
	}
	dataNS, _, err := e.indexes.locate(ctx, d.NS)
	if err != nil {
		return err
	}
	if err := e.indexes.drop(ctx, d.NS, d.Index); err != nil {
		return err
	}
	return e.indexes.create(ctx, dataNS, []bson.Raw{spec})
}

// ExpiryOf returns how documents expire by options and indexes of a collection whose rules keep
// expired documents; else nil.
func ExpiryOf(c Collection, rules *transform.Set) (out expiry.Settings, err error) {
	if !rules.Route(c.NS).KeepsExpired || c.Type == TypeView {
		return nil, nil
	}
	out = expiry.Of(c.Options, specsOf(c.Indexes)...)
	return out, cannotKeep(c.NS, out.Check(c.Collated()))
}

// Expires reports that a collection expires documents by itself, as far as that can be read.
func Expires(ctx context.Context, c *mongo.Cluster, ns string) bool {
	db, coll := mongo.SplitNS(ns)
	found, err := listDB(ctx, c, db, bson.D{{Key: "name", Value: bson.D{{Key: "$in",
		Value: bson.A{coll, strings.TrimPrefix(coll, mongo.BucketsPrefix)}}}}}, func(string) bool { return true })
	if err != nil || len(found) == 0 {
		return false
	}
	ixs, _, err := indexes(ctx, c, found[0].DataNS())
	return err == nil && len(expiry.Of(found[0].Options, specsOf(ixs)...)) > 0
}

// Expiry returns how documents of a target namespace expire on the source, as of the applied schema
// changes. foreign includes what the target had by itself.
func (d *deferrals) Expiry(ctx context.Context, ns string, collated, foreign bool) (out expiry.Settings, err error) {
	all, err := readDeferred(ctx, d.c, d.of(inNS(ns), bson.E{Key: "expire", Value: bson.D{{Key: "$exists", Value: true}}}))
	if err != nil {
		return nil, err
	}
	for _, one := range all { // those of indexes that the target goes without, too
		if !one.Foreign || foreign {
			out = out.With(*one.Expire, one.Spec)
		}
	}
	return out, cannotKeep(ns, out.Check(collated))
}

func cannotKeep(ns string, why error) error {
	if why == nil {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("cannot determine which documents of %s have expired: %w", ns, why),
		"skip delete in place of ttl, which leaves all deletions out, have the pattern of --skip leave the collection "+
			"out, or change the index on the source and start again with --restart")
}

func checkKept(c Collection, rules *transform.Set) error {
	if _, err := ExpiryOf(c, rules); err != nil {
		return err
	}
	r := rules.Route(c.NS)
	m := r.Fields
	if m == nil || !r.KeepsExpired {
		return nil
	}
	for _, ix := range c.Indexes {
		if !has(ix.Spec, expiry.Option) {
			continue
		}
		if _, why := m.Index(ix.Spec); why != "" {
			return cannotKeep(c.NS,
				fmt.Errorf("index %s expires documents, and the target cannot have it: %s; leave the field as it is in "+
					"--fields, or rename it", ix.Name, why))
		}
	}
	if has(c.Options, expiry.Option) && m.TouchesPath("_id") {
		return cannotKeep(c.NS, errors.New("a rule for fields is about _id"))
	}
	return nil
}

// A source's oplog records what leaves a capped collection, as deletions. From 6.0 on users delete,
// too, and servers count such deletions before they have a place in the oplog. So a target that
// removes documents by itself may remove one that the source still has. Until finalize, its capped
// collections have room for everything, and lose what the oplog says.

// roomy is the size of such a collection in bytes. It allocates nothing. Servers take up to 1 PB.
const roomy = 1 << 48

// noMost is the default of cappedMax.
const noMost = math.MaxInt32

// The limits of a capped collection as collMod takes them.
const (
	cappedSize = "cappedSize"
	cappedMax  = "cappedMax"
)

// Roomy reports the options of a capped collection with room for everything.
func Roomy(options bson.Raw) bool {
	n, _ := options.Lookup("size").AsInt64OK()
	return n == roomy
}

// TellsRollOff reports that the source's changes include what leaves capped collections, and that
// the target can get their limits at the end. A standalone has no changes.
func TellsRollOff(source, target *mongo.Cluster) bool {
	fcv, err := mongo.ParseVersion(target.Info.FCV) // a router has none
	return source.Info.Kind != mongo.KindStandalone && source.Info.Version.AtLeast(6, 0) &&
		target.Info.Version.AtLeast(6, 0) && (err != nil || fcv.AtLeast(6, 0))
}

// KeepRoom gives capped collections room for everything until finalize, and defers their limits. It
// must be called before anything is changed.
func (l *link) KeepRoom(on bool) { l.room = on }

func limitsOf(options bson.Raw) *bson.RawValue {
	size, _ := options.Lookup("size").AsInt64OK()
	if !truthyField(options, "capped") || Roomy(options) {
		return nil
	}
	limits := bson.D{{Key: cappedSize, Value: size}}
	if most, _ := options.Lookup("max").AsInt64OK(); most > 0 && most < noMost {
		limits = append(limits, bson.E{Key: cappedMax, Value: most})
	}
	v := rawValue(limits)
	return &v
}

func withRoom(options bson.Raw) (bson.Raw, error) {
	options, err := without(options, "max")
	if err != nil {
		return nil, err
	}
	return with(options, "size", int64(roomy))
}

func (e *expiries) makeRoom(ctx context.Context, c Collection) error {
	limits := limitsOf(c.Options)
	if !e.room || limits == nil {
		return nil
	}
	err := e.note(ctx, Deferred{DeferredID: e.deferred.id(c.NS, limitsIndex), Was: limits})
	if err == nil {
		room := bson.D{{Key: cappedSize, Value: int64(roomy)}}
		if has(limits.Document(), cappedMax) {
			room = append(room, bson.E{Key: cappedMax, Value: int64(0)}) // none
		}
		err = e.collMod(ctx, c.NS, rawDoc(room))
	}
	return mongo.Wrap(err, "defer the limits of capped collection %s on the target", c.NS)
}

func (c *creator) withLimits(ctx context.Context, have Collection) (Collection, error) {
	if !Roomy(have.Options) {
		return have, nil
	}
	d, _, err := c.deferred.one(ctx, have.NS, limitsIndex)
	if err != nil || d.Expire == nil {
		return have, err
	}
	limits := d.Expire.Document()
	for option, key := range map[string]string{"size": cappedSize, "max": cappedMax} {
		if v, err := limits.LookupErr(key); err == nil {
			if have.Options, err = with(have.Options, option, v); err != nil {
				return have, err
			}
		}
	}
	return have, nil
}

func (c *changer) changeLimits(ctx context.Context, ns string, options bson.Raw) (rest bson.Raw, err error) {
	if !c.room || !has(options, cappedSize) && !has(options, cappedMax) {
		return options, nil
	}
	d, _, err := c.deferred.one(ctx, ns, limitsIndex)
	if err != nil {
		return nil, err
	}
	limits := emptyDoc()
	if d.Expire != nil {
		limits = d.Expire.Document()
	}
	for _, key := range []string{cappedSize, cappedMax} {
		v, err := options.LookupErr(key)
		if err != nil {
			continue
		}
		if n, _ := v.AsInt64OK(); key == cappedMax && (n <= 0 || n >= noMost) {
			limits, err = without(limits, key)
		} else {
			limits, err = with(limits, key, v)
		}
		if err != nil {
			return nil, err
		}
	}
	v := rawValue(limits)
	d.Expire = &v
	if err := c.deferred.save(ctx, d); err != nil {
		return nil, err
	}
	return without(options, cappedSize, cappedMax)
}
