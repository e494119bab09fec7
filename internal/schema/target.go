package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TargetOptions shape a Target.
type TargetOptions struct {
	// Job keeps the held-back settings of jobs apart.
	Job string
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
	// SameTerm is told in which election term each change was answered, and fails
	// when it is not that of the attempt. Nil takes any.
	SameTerm func(term int64) error
	// Parallel bounds commands under way at once where many collections are
	// changed, default DefaultBuilds.
	Parallel int
}

// Target writes schema to a target deployment. Its methods may be called
// concurrently for different namespaces; Apply wants to be alone.
type Target struct {
	c   *mongo.Cluster
	o   TargetOptions
	log *slog.Logger
}

// NewTarget prepares writing schema to c; it sends nothing yet.
func NewTarget(c *mongo.Cluster, o TargetOptions) *Target {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultBuilds
	}
	return &Target{c: c, o: o, log: o.Log}
}

// change runs a command that changes the schema.
func (t *Target) change(ctx context.Context, db string, cmd bson.D) error {
	term, err := t.c.Change(ctx, db, cmd)
	if err == nil && t.o.SameTerm != nil {
		err = t.o.SameTerm(term)
	}
	return err
}

// Create makes a collection, time-series collection or view on the target as it
// is on the source, without its indexes and without its expiry, which is held
// back until RestoreTTL. What exists already with the same options is left
// as it is, but for its expiry; with others, that is an error. It does not wait for a
// majority: see Settled.
func (t *Target) Create(ctx context.Context, coll Collection, targetNS string, rules *transform.Set) error {
	return t.create(ctx, coll, targetNS, rules, false)
}

// CreateOurs is Create where nobody but the job makes the collection. One that
// exists is what an earlier attempt made, or a late write of it by the way,
// without options: if it is different and empty it is made anew.
func (t *Target) CreateOurs(ctx context.Context, coll Collection, targetNS string, rules *transform.Set) error {
	return t.create(ctx, coll, targetNS, rules, true)
}

// Settled waits until all that was done to the target's schema has reached a
// majority.
func (t *Target) Settled(ctx context.Context) error {
	nothing := bson.D{{Key: "_id", Value: heldID{Job: t.o.Job}}}
	if _, err := t.c.DeleteState(ctx, heldCollection, "majority", nothing); err != nil { // waits for what came before it
		return fmt.Errorf("wait for a majority of the target: %w", err)
	}
	return nil
}

func (t *Target) create(ctx context.Context, coll Collection, targetNS string, rules *transform.Set, ours bool) error {
	wrap := func(err error) error {
		return fmt.Errorf("create %s %s on the target: %w", coll.Type, targetNS, err)
	}
	if gaps := Unsupported(Collection{NS: coll.NS, Type: coll.Type, Options: coll.Options}, t.c.Info.Version); len(gaps) > 0 {
		return mongo.WithHint(wrap(fmt.Errorf("%s", strings.Join(gaps, "; "))), "exclude it or choose a newer target")
	}
	options := coll.Options
	var err error
	if coll.Type == TypeView {
		if options, err = MapView(coll.NS, options, rules); err != nil {
			return wrap(err)
		}
	}
	options, expire, err := createOptions(options, t.c.Info.Version)
	if err != nil {
		return wrap(err)
	}
	if expire != nil {
		if err := t.holdExpiry(ctx, targetNS, *expire); err != nil {
			return wrap(err)
		}
	}
	if truthyField(options, "capped") && has(options, "clusteredIndex") {
		return t.createCappedClustered(ctx, coll, targetNS, options, ours)
	}
	if err = t.runCreate(ctx, targetNS, options); err == nil {
		t.log.Debug("created on the target", "ns", targetNS, "type", coll.Type)
		return t.finishTimeSeries(ctx, coll, targetNS)
	}
	switch mongo.Classify(err) {
	case mongo.ClassExists:
	case mongo.ClassRetry:
		return wrap(err)
	default:
		return mongo.WithHint(wrap(err), "the target refuses an option of the source's collection: exclude the collection, or change the option on the source")
	}
	if err := t.checkSame(ctx, Collection{NS: targetNS, Type: coll.Type, Options: options}); err != nil {
		return t.makeAnew(ctx, coll, targetNS, rules, ours, err)
	}
	if !ours {
		return t.HoldTTL(ctx, []string{targetNS})
	}
	if empty, err := t.isEmpty(ctx, targetNS); err != nil || !empty {
		return err
	}
	return t.finishTimeSeries(ctx, coll, targetNS)
}

func (t *Target) runCreate(ctx context.Context, ns string, options bson.Raw) error {
	db, name := mongo.SplitNS(ns)
	cmd, err := command("create", name, options)
	if err != nil {
		return err
	}
	err = t.change(ctx, db, append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}))
	return err
}

// makeAnew replaces an empty collection of ours that is different from what it
// has to be.
func (t *Target) makeAnew(ctx context.Context, coll Collection, targetNS string, rules *transform.Set, ours bool, why error) error {
	var different *differentError
	if !ours || !errors.As(why, &different) {
		return why
	}
	empty, err := t.isEmpty(ctx, targetNS)
	switch {
	case err != nil:
		return err
	case !empty:
		return mongo.WithHint(fmt.Errorf("%w; and it has documents", different), "something else writes there, or a write of an earlier attempt came late: drop it on the target, then start again")
	}
	t.log.Warn("making an empty collection of the target anew", "ns", targetNS, "why", why)
	if err := t.Drop(ctx, targetNS); err != nil {
		return err
	}
	return t.create(ctx, coll, targetNS, rules, false)
}

// isEmpty reports that there are no documents.
func (t *Target) isEmpty(ctx context.Context, ns string) (bool, error) {
	coll, there, err := t.find(ctx, ns)
	if err != nil || !there || coll.Type == TypeView {
		return err == nil, err
	}
	db, name := mongo.SplitNS(coll.DataNS())
	raw, err := t.c.Command(ctx, db, bson.D{{Key: "find", Value: name}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
	if err != nil {
		return false, fmt.Errorf("look for documents of %s on the target: %w", ns, err)
	}
	return sub(raw, "cursor", "firstBatch", "0") == nil, nil
}

// differentError says that what exists is not what was to be created.
type differentError struct{ text string }

// Error names the first difference.
func (e *differentError) Error() string { return e.text }

// createCappedClustered makes what a server refuses to create, and yet makes of
// a clustered collection by convertToCapped (6.0).
func (t *Target) createCappedClustered(ctx context.Context, coll Collection, targetNS string, options bson.Raw, ours bool) error {
	plain, err := without(options, "capped", "size", "max")
	if err != nil {
		return err
	}
	have, ok, err := t.find(ctx, targetNS)
	if err == nil && (!ok || !have.Capped()) {
		err = t.create(ctx, Collection{NS: coll.NS, Type: coll.Type, Options: plain}, targetNS, nil, ours)
		if err == nil {
			db, name := mongo.SplitNS(targetNS)
			err = t.change(ctx, db, bson.D{{Key: "convertToCapped", Value: name}, {Key: "size", Value: options.Lookup("size")}})
		}
	}
	if err != nil {
		return fmt.Errorf("create capped clustered collection %s on the target: %w", targetNS, err)
	}
	return t.checkSame(ctx, Collection{NS: targetNS, Type: coll.Type, Options: options})
}

// finishTimeSeries makes a new time-series collection ready for the buckets of
// the source.
func (t *Target) finishTimeSeries(ctx context.Context, coll Collection, targetNS string) error {
	if coll.Type != TypeTimeSeries {
		return nil
	}
	db, name := mongo.SplitNS(targetNS)
	if coll.MixedSchema && t.c.Info.Version.AtLeast(5, 2) {
		// Without the mark such servers trust the minimum and maximum of a
		// bucket more than old buckets deserve.
		if err := t.change(ctx, db, bson.D{{Key: "collMod", Value: name}, {Key: mixedSchemaFlag, Value: true}}); err != nil {
			t.log.Warn("the target cannot mark a time-series collection as one whose buckets may hold mixed types; update the server to its latest patch release if queries with $lt or $gt on measurements of mixed types matter",
				"ns", targetNS, "error", err)
		}
	}
	if !t.c.Info.Version.AtLeast(6, 3) {
		return nil
	}
	// Such servers add an index on meta and time by themselves; the source's
	// own list decides.
	err := t.change(ctx, db, bson.D{{Key: "dropIndexes", Value: name}, {Key: "index", Value: "*"}})
	if err != nil {
		return fmt.Errorf("drop the automatic index of %s on the target: %w", targetNS, err)
	}
	return nil
}

// checkSame compares what exists with what was to be created.
func (t *Target) checkSame(ctx context.Context, want Collection) error {
	have, ok, err := t.find(ctx, want.NS)
	if err != nil {
		return err
	}
	var diffs []Difference
	switch {
	case !ok:
		return fmt.Errorf("create %s on the target: the server says that it exists, but does not list it", want.NS)
	case have.Type != want.Type:
		diffs = []Difference{{NS: want.NS, What: "type", Source: string(want.Type), Target: string(have.Type)}}
	default:
		if diffs, err = diffOptions(want, have, DiffOptions{IgnoreTTL: true}); err != nil {
			return err
		}
	}
	if len(diffs) == 0 {
		return nil
	}
	return mongo.WithHint(&differentError{fmt.Sprintf("create %s %s on the target: it exists and is different: %v", want.Type, want.NS, diffs[0])},
		"drop it, rename it, or start with --on-existing drop")
}

// find looks one namespace of the target up, without indexes.
func (t *Target) find(ctx context.Context, ns string) (Collection, bool, error) {
	db, name := mongo.SplitNS(ns)
	names := bson.A{name, mongo.BucketsPrefix + name}
	colls, err := listDB(ctx, t.c, db, bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: names}}}}, func(string) bool { return true })
	if err != nil || len(colls) == 0 {
		return Collection{}, false, err
	}
	return colls[0], true, nil
}

// Has tells whether the target has a namespace.
func (t *Target) Has(ctx context.Context, ns string) (bool, error) {
	_, there, err := t.find(ctx, ns)
	return there, err
}

// findIndex looks an index of the target up by name or, when name is empty, by
// key pattern.
func (t *Target) findIndex(ctx context.Context, dataNS, name string, key bson.Raw) (stream.Index, bool, error) {
	all, err := indexes(ctx, t.c, dataNS)
	if err != nil {
		return stream.Index{}, false, err
	}
	for _, ix := range all {
		if ix.Name == name || name == "" && comparableKey(sub(ix.Spec, "key")) == comparableKey(key) {
			return ix, true, nil
		}
	}
	return stream.Index{}, false, nil
}

// ListExisting tells which of the target namespaces exist, with the server's
// estimate of their documents (0 for views).
func (t *Target) ListExisting(ctx context.Context, targetNSs []string) (map[string]int64, error) {
	wanted := map[string]bool{}
	dbs := map[string]bool{}
	for _, ns := range targetNSs {
		db, _ := mongo.SplitNS(ns)
		wanted[ns], dbs[db] = true, true
	}
	var found []Collection
	for db := range dbs {
		colls, err := listDB(ctx, t.c, db, nil, func(ns string) bool { return wanted[ns] })
		if err != nil {
			return nil, err
		}
		found = append(found, colls...)
	}
	if err := estimate(ctx, t.c, found); err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, c := range found {
		out[c.NS] = c.Count
	}
	return out, nil
}

// Drop removes a collection, time-series collection or view of the target and
// what was held back for it. It is no error when nothing is there.
func (t *Target) Drop(ctx context.Context, ns string) error {
	db, name := mongo.SplitNS(ns)
	err := t.change(ctx, db, bson.D{{Key: "drop", Value: name}})
	if err != nil && mongo.Classify(err) != mongo.ClassGone {
		return fmt.Errorf("drop %s on the target: %w", ns, err)
	}
	return t.unhold(ctx, ns, "")
}

// command puts a command's name before its options.
func command(name string, arg any, options bson.Raw) (bson.D, error) {
	cmd := bson.D{{Key: name, Value: arg}}
	els, err := elements(options)
	if err != nil {
		return nil, err
	}
	for _, el := range els {
		cmd = append(cmd, bson.E{Key: el.Key(), Value: el.Value()})
	}
	return cmd, nil
}

// sideBySide runs f for each namespace, a bounded number at once.
func (t *Target) sideBySide(ctx context.Context, groups map[string][]HeldSetting, f func(context.Context, string, []HeldSetting) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(t.o.Parallel)
	for ns, held := range groups {
		group.Go(func() error { return f(ctx, ns, held) })
	}
	return group.Wait()
}
