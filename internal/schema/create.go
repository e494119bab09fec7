package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

type creator struct {
	*link
	deferred *deferrals
	expiries *expiries
}

// Create makes a collection, time-series collection or view on the target as on the source, without
// indexes and expiry, which is deferred. An existing one with the same options is used, with others
// it is an error. Create does not wait for a majority: see WaitMajority.
func (c *creator) Create(ctx context.Context, coll Collection, targetNS string, rules *transform.Set) error {
	return c.create(ctx, coll, targetNS, rules, false)
}

// CreateOurs is Create where only the job makes the collection. An existing one is from an earlier
// attempt, or from a late write of it, without options: if different and empty, it is replaced.
func (c *creator) CreateOurs(ctx context.Context, coll Collection, targetNS string, rules *transform.Set) error {
	return c.create(ctx, coll, targetNS, rules, true)
}

type creation struct {
	Collection        // as the source has it
	target     string // its name on the target
	rules      *transform.Set
	ours       bool           // nobody but the job makes it
	asked      bson.Raw       // the final options
	now        bson.Raw       // those not deferred
	early      []stream.Index // for sharding
}

func (n *creation) wrap(err error) error {
	return fmt.Errorf("create %s %s on the target: %w", n.Type, n.target, err)
}

func (c *creator) create(ctx context.Context, coll Collection, targetNS string, rules *transform.Set, ours bool) error {
	n := &creation{Collection: coll, target: targetNS, rules: rules, ours: ours}
	if err := c.prepare(ctx, n); err != nil {
		return n.wrap(err)
	}
	if truthyField(n.now, "capped") && has(n.now, "clusteredIndex") {
		return c.createCappedClustered(ctx, n)
	}
	var err error
	if n.early, err = c.o.Sharding.Prepare(ctx, coll, targetNS, ours); err != nil {
		return n.wrap(err)
	}
	err = c.runCreate(ctx, targetNS, n.now)
	switch class := mongo.Classify(err); {
	case err == nil:
	case class == mongo.ClassExists:
		return c.existing(ctx, n)
	case class == mongo.ClassRetry:
		return n.wrap(err)
	case mongo.IsCode(err, mongo.CodeDatabaseDifferCase):
		return mongo.WithHint(n.wrap(err),
			"the target has a database whose name differs in case only: drop it if it is empty (the job does that if its "+
				"user has dropDatabase), or give this one another name with --rename")
	default:
		return mongo.WithHint(n.wrap(err),
			"the target refuses an option of the source's collection: exclude the collection, or change the option "+
				"on the source")
	}
	c.o.Log.Debug("created on the target", "ns", targetNS, "type", coll.Type)
	if err := c.finish(ctx, n); err != nil || ours || !c.c.Info.Version.AtLeast(7, 0) {
		return err
	}
	// 7.0 reports no error for an existing collection with the same options.
	return c.expiries.Defer(ctx, []string{targetNS})
}

func (c *creator) prepare(ctx context.Context, n *creation) (err error) {
	if gaps := Unsupported(Collection{NS: n.NS, Type: n.Type, Options: n.Options}, c.c.Info.Version); len(gaps) > 0 {
		return mongo.WithHint(errors.New(strings.Join(gaps, "; ")), "exclude it or choose a newer target")
	}
	options := n.Options
	switch {
	case n.Type == TypeCollection && n.rules != nil && n.rules.Route(n.NS).History:
		options = emptyDoc()
	case n.Type == TypeView:
		if options, err = MapView(n.NS, options, n.rules); err != nil {
			return err
		}
	}
	options, expire, err := createOptions(options, c.dialect())
	if err != nil {
		return err
	}
	n.asked, n.now = options, options
	var later []Deferred
	if expire != nil {
		later = append(later, Deferred{DeferredID: c.deferred.id(n.target, ""), Expire: expire})
	}
	if limits := limitsOf(options); c.room && limits != nil {
		later = append(later, Deferred{DeferredID: c.deferred.id(n.target, limitsIndex), Expire: limits})
		if n.now, err = withRoom(options); err != nil {
			return err
		}
	}
	if len(later) == 0 {
		return nil
	}
	return c.deferred.save(ctx, later...)
}

func (c *creator) existing(ctx context.Context, n *creation) error {
	if err := c.checkSame(ctx, Collection{NS: n.target, Type: n.Type, Options: n.asked}); err != nil {
		if !n.ours {
			return err
		}
		if err := c.dropDifferent(ctx, n.target, err); err != nil {
			return err
		}
		return c.create(ctx, n.Collection, n.target, n.rules, false)
	}
	if !n.ours {
		if err := c.shard(ctx, n); err != nil {
			return err
		}
		return c.expiries.Defer(ctx, []string{n.target})
	}
	if empty, err := c.isEmpty(ctx, n.target); err != nil || !empty {
		return err
	}
	return c.finish(ctx, n)
}

func (c *creator) finish(ctx context.Context, n *creation) error {
	if err := c.finishTimeSeries(ctx, n.Collection, n.target); err != nil {
		return err
	}
	return c.shard(ctx, n)
}

func (c *creator) shard(ctx context.Context, n *creation) error {
	if err := c.expiries.indexes.Build(ctx, n.target, n.early, BeforeConsistent); err != nil {
		return err
	}
	return c.o.Sharding.Shard(ctx, n.target)
}

func (c *creator) runCreate(ctx context.Context, ns string, options bson.Raw) error {
	db, name := mongo.SplitNS(ns)
	return c.change(ctx, db, append(command("create", name, options),
		bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: c.c.DataConcern()}}}))
}

func (c *creator) dropDifferent(ctx context.Context, ns string, why error) error {
	var different *differentError
	if !errors.As(why, &different) {
		return why
	}
	empty, err := c.isEmpty(ctx, ns)
	switch {
	case err != nil:
		return err
	case !empty:
		return mongo.WithHint(fmt.Errorf("%w; and it has documents", different),
			"something else writes there, or a write of an earlier attempt came late: drop it on the target, then start again")
	}
	c.o.Log.Warn("making an empty collection of the target anew", "ns", ns, "why", why)
	return c.Drop(ctx, ns)
}

type differentError struct{ text string }

func (e *differentError) Error() string { return e.text }

// createCappedClustered makes what create refuses, by convertToCapped of a clustered collection
// (6.0).
func (c *creator) createCappedClustered(ctx context.Context, n *creation) error {
	plain, err := without(n.now, "capped", "size", "max")
	if err != nil {
		return n.wrap(err)
	}
	have, ok, err := c.find(ctx, n.target)
	if err == nil && (!ok || !have.Capped()) {
		err = c.create(ctx, Collection{NS: n.NS, Type: n.Type, Options: plain}, n.target, nil, n.ours)
		if err == nil {
			db, name := mongo.SplitNS(n.target)
			err = c.change(ctx, db, bson.D{{Key: "convertToCapped", Value: name}, {Key: "size", Value: n.now.Lookup("size")}})
		}
	}
	if err != nil {
		return fmt.Errorf("create capped clustered collection %s on the target: %w", n.target, err)
	}
	if err := c.checkSame(ctx, Collection{NS: n.target, Type: n.Type, Options: n.asked}); err != nil || n.ours {
		return err
	}
	return c.expiries.Defer(ctx, []string{n.target})
}

func (c *creator) finishTimeSeries(ctx context.Context, coll Collection, targetNS string) error {
	if coll.Type != TypeTimeSeries {
		return nil
	}
	db, name := mongo.SplitNS(targetNS)
	if coll.MixedSchema && c.c.Info.Version.AtLeast(5, 2) {
		// Without the flag, such servers trust the minimum and maximum of old buckets too much.
		if err := c.change(ctx, db, bson.D{{Key: "collMod", Value: name}, {Key: mixedSchemaFlag, Value: true}}); err != nil {
			c.o.Log.Warn("the target cannot mark a time-series collection as one whose buckets may hold mixed types; update "+
				"the server to its latest patch release if queries with $lt or $gt on measurements of mixed types matter",
				"ns", targetNS, "error", err)
		}
	}
	if !c.c.Info.Version.AtLeast(6, 3) {
		return nil
	}
	// Such servers add an index on meta and time, which the source may not have.
	err := c.change(ctx, db, bson.D{{Key: "dropIndexes", Value: name}, {Key: "index", Value: "*"}})
	return mongo.Wrap(err, "drop the automatic index of %s on the target", targetNS)
}

func (c *creator) checkSame(ctx context.Context, want Collection) error {
	have, ok, err := c.find(ctx, want.NS)
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
		if have, err = c.withLimits(ctx, have); err != nil {
			return err
		}
		if diffs, err = diffOptions(want, have, DiffOptions{IgnoreTTL: true}); err != nil {
			return err
		}
	}
	if len(diffs) == 0 {
		return nil
	}
	return mongo.WithHint(&differentError{fmt.Sprintf("create %s %s on the target: it exists and is different: %v",
		want.Type, want.NS, diffs[0])},
		"drop it, rename it, or start with --on-existing drop")
}

// Drop removes a collection or view of the target, if it exists, and what was deferred of it.
func (c *creator) Drop(ctx context.Context, ns string) error {
	db, name := mongo.SplitNS(ns)
	err := c.change(ctx, db, bson.D{{Key: "drop", Value: name}})
	if err != nil && mongo.Classify(err) != mongo.ClassGone {
		return fmt.Errorf("drop %s on the target: %w", ns, err)
	}
	if err := c.deferred.forget(ctx, inNS(ns)); err != nil {
		return err
	}
	return c.o.Sharding.Forget(ctx, ns)
}
