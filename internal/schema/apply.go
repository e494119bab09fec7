package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// ApplyOptions are the conditions under which a change is applied.
type ApplyOptions struct {
	Rules *transform.Set
	// Overlap: documents may be ahead of the change. Indexes that refuse documents are deferred, and
	// expected ones may be gone.
	Overlap bool
	// Cut: the copy of the collection may have ended early, as the source dropped it.
	Cut bool
	// Recorded: histories have begun. What the source drops or renames stays.
	Recorded bool
	// Ahead: others filled the target, which may be ahead of the change.
	Ahead bool
	// Maybe: the change may have been applied before a restart. Before is the target then.
	Maybe  bool
	Before Before
	// Existing decides about a collection that only the target has, where the source makes one.
	Existing Existing
	// Names are the job's names; the caller keeps them up to date.
	Names *Names
	// MixedSchema is that of new time-series collections of the source.
	MixedSchema bool
}

// Existing decides about a collection that only the target has.
type Existing int

const (
	// KeepExisting uses it as the source's.
	KeepExisting Existing = iota
	// RefuseExisting is an error.
	RefuseExisting
	// DropExisting drops it.
	DropExisting
)

type changer struct {
	*link
	deferred *deferrals
	indexes  *builder
	colls    *creator
}

// Before is what the target had under the names of a rename when the change was recorded. By it, a
// restart decides whether the rename was applied. A missing collection proves nothing, as anybody
// may have dropped it.
type Before struct {
	// NS is the renamed source namespace, empty for other changes.
	NS       string
	From, To bson.Binary // UUIDs, empty for what was not there
}

func (b Before) of(ch stream.Change) bool { return ch.Kind == stream.ChangeRename && b.NS == ch.NS }

// Prepare checks what a schema change needs on the target, and deals with a collection that exists
// where the change makes one. It must run before the change is recorded: afterwards the collection
// may be the change's own. The caller records the result, and passes it back as
// ApplyOptions.Before.
func (c *changer) Prepare(ctx context.Context, ch stream.Change, o ApplyOptions) (Before, error) {
	if o.Maybe {
		return c.stillBefore(ctx, ch, o)
	}
	before, err := c.renames(ctx, ch, o)
	if err == nil {
		err = c.makeWayFor(ctx, ch, o)
	}
	return before, mongo.Wrap(err, "apply %s of %s", ch.Kind, ch.NS)
}

func (c *changer) makeWayFor(ctx context.Context, ch stream.Change, o ApplyOptions) error {
	if o.ofCommand(ch) {
		return nil
	}
	ns, to := ch.NS, false
	switch ch.Kind {
	case stream.ChangeCreate:
	case stream.ChangeView:
		if one, ok := o.Names.Source(ns); ok && one.Type == TypeView {
			return nil // ours, redefined
		}
	case stream.ChangeRename:
		ns, to = ch.To, true
	default:
		return nil
	}
	if !o.Rules.Match(ns) || to && o.Recorded && o.Rules.Route(ns).History ||
		to && o.Rules.Match(ch.NS) && o.Rules.Target(ch.NS) == o.Rules.Target(ns) || o.leftOut(ch) {
		return nil
	}
	if o.Recorded && o.Rules.Route(ns).History {
		if err := c.mayRecord(ctx, o.Rules.Target(ns)); err != nil {
			return err
		}
	}
	return c.makeWay(ctx, ch, ns, o)
}

func (c *changer) makeWay(ctx context.Context, ch stream.Change, sourceNS string, o ApplyOptions) error {
	ns := o.Rules.Target(sourceNS)
	if other, ok := o.Names.Target(ns); !ok || other.NS != ch.NS {
		if err := o.Names.free(sourceNS, ns); err != nil {
			return err
		}
	}
	if !ch.DropTarget && o.Rules.Route(sourceNS).Skips.Has(leaving) {
		// What was left there goes on as another collection: discard what was deferred of the old one.
		if err := c.deferred.forget(ctx, inNS(ns)); err != nil {
			return err
		}
	}
	// nothing can be renamed onto what stays
	renamed := ch.Kind == stream.ChangeRename && o.Rules.Match(ch.NS)
	if renamed && o.joins(ch) {
		return c.mayJoin(ctx, o.Rules.Target(ch.NS), ns)
	}
	_, known := o.Names.Source(sourceNS) // else it is not the job's to drop
	if ch.DropTarget && (known || !ch.DropAssumed) || o.existing(sourceNS) == KeepExisting && !renamed {
		return nil
	}
	if _, there, err := c.find(ctx, ns); err != nil || !there {
		return err
	}
	if renamed && o.Ahead {
		if _, there, err := c.find(ctx, o.Rules.Target(ch.NS)); err != nil || !there {
			return err // the target is ahead: nothing is to be renamed
		}
	}
	if o.Existing == DropExisting && !o.Rules.Ambiguous(ns) {
		c.o.Log.Warn("dropping what the target has where the source makes a collection", "ns", ns)
		return c.colls.Drop(ctx, ns)
	}
	return existsAlready(fmt.Errorf("%s exists on the target", ns), ns)
}

func existsAlready(err error, ns string) error {
	return mongo.WithHint(err, ns+" exists on the target although it did not on the source: drop it there, then resume")
}

func (o ApplyOptions) lenient() bool { return o.Overlap || o.Maybe }

// existing is the policy for a collection where the source makes one. One that a skipped operation
// left there becomes the new one.
func (o ApplyOptions) existing(sourceNS string) Existing {
	if r := o.Rules.Route(sourceNS); r.Skips.Has(leaving) || o.Recorded && r.History {
		return KeepExisting
	}
	return o.Existing
}

type Effect struct {
	Applied bool
	Skipped string // why not, if it was not
	// Resync is the UUID of a source collection to copy into ResyncNS: a rename brought it into the
	// filter, or its copy was cut off. ResyncNS does not exist, or may exist with Keep.
	Resync   *bson.Binary
	ResyncNS string
	Keep     bool
	// Join is a collection of the target whose documents belong in JoinNS, which has its name now.
	// TakeOver ends the join.
	Join   *Collection
	JoinNS string
	// Dropped are the target namespaces that are gone, were replaced, or get no more changes.
	Dropped []string
}

func skipped(format string, args ...any) Effect {
	return Effect{Skipped: fmt.Sprintf(format, args...)}
}

// Apply does to the target what a schema change did to the source, under the rules. Exactly the
// changes before it must be on the target. With Maybe it can be repeated.
func (c *changer) Apply(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	effect, err := c.apply(ctx, ch, o)
	return effect, mongo.Wrap(err, "apply %s of %s", ch.Kind, ch.NS)
}

func (c *changer) apply(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	if o.ofCommand(ch) {
		return c.applyCommand(ctx, ch, o)
	}
	if o.leftOut(ch) {
		return c.leave(ctx, ch, o)
	}
	if effect, done, err := c.applyRecorded(ctx, ch, o); done || err != nil {
		return effect, err
	}
	if ch.Kind == stream.ChangeCreateIndexes && o.Rules.Match(ch.NS) {
		if err := checkKept(Collection{NS: ch.NS, Type: TypeCollection, Indexes: ch.Indexes}, o.Rules); err != nil {
			return Effect{}, err
		}
	}
	all := ch.Indexes
	ch, err := o.mapped(ch)
	if err != nil {
		return Effect{}, err
	}
	switch ch.Kind {
	case stream.ChangeDropDatabase:
		return c.dropDatabase(ctx, ch, o)
	case stream.ChangeDropAllViews:
		return c.dropNames(ctx, ch, o, views(o.Names.OfDB(ch.NS)))
	case stream.ChangeRename:
		return c.applyRename(ctx, ch, o)
	}
	if !o.Rules.Match(ch.NS) {
		return skipped("excluded"), nil
	}
	ns := o.Rules.Target(ch.NS)
	if one, ok := o.Names.Source(ch.NS); ok && one.Gone && ch.Kind != stream.ChangeCreate && ch.Kind != stream.ChangeView {
		return skipped("%s never came to the target", ns), nil
	}
	switch ch.Kind {
	case stream.ChangeCreate:
		return c.applyCreate(ctx, ch, ns, o)
	case stream.ChangeDrop:
		return Effect{Applied: true, Dropped: []string{ns}}, c.colls.Drop(ctx, ns)
	case stream.ChangeCreateIndexes:
		return c.applyCreateIndexes(ctx, ch, ns, unmapped(all, ch.Indexes), o)
	case stream.ChangeDropIndexes:
		return c.applyDropIndexes(ctx, ch, ns)
	case stream.ChangeCollMod:
		return c.applyCollMod(ctx, ch, ns, o)
	case stream.ChangeView:
		return c.applyView(ctx, ch, ns, o)
	case stream.ChangeDropView:
		return c.applyDropView(ctx, ns)
	case stream.ChangeIdentity:
		return skipped("%s is another collection to the source only", ns), nil
	}
	return Effect{}, fmt.Errorf("kind of change not known")
}

func (c *changer) applyCreate(ctx context.Context, ch stream.Change, ns string, o ApplyOptions) (Effect, error) {
	coll := Collection{NS: ch.NS, Type: TypeCollection, UUID: ch.UUID, Options: ch.Options}
	if ch.Buckets {
		coll.Type, coll.MixedSchema = TypeTimeSeries, o.MixedSchema
	}
	if err := CheckCollection(coll, o.Rules); err != nil {
		return Effect{}, err
	}
	if o.Maybe && o.Rules.Route(ch.NS).Skips.Has(leaving) { // of several changes at a position only the first was prepared
		if err := c.deferred.discard(ctx, ns); err != nil {
			return Effect{}, err
		}
	}
	return Effect{Applied: true}, c.colls.create(ctx, coll, ns, o.Rules, o.existing(ch.NS) != KeepExisting)
}

func (c *changer) applyCreateIndexes(ctx context.Context, ch stream.Change, ns string, unmapped []stream.Index,
	o ApplyOptions) (Effect, error) {
	phase := Consistent
	if o.Overlap {
		phase = BeforeConsistent
	}
	err := c.deferred.present(ctx, ns, ch.Indexes...)
	if err == nil {
		err = c.deferred.goWithout(ctx, ns, unmapped...)
	}
	if err != nil {
		return Effect{}, err
	}
	left, err := c.indexes.BuildSkipping(ctx, ns, ch.Indexes, phase, o.Rules.Route(ch.NS).Skips)
	if IsGone(err) && o.Ahead {
		return skipped("%s is gone on the target", ns), nil
	}
	if err == nil && len(left) > 0 {
		effect := skipped("the target has other indexes of the names or keys of %q, whose drop was skipped", left)
		effect.Applied = len(left) < len(ch.Indexes)
		return effect, nil
	}
	return Effect{Applied: err == nil}, err
}

func (c *changer) applyDropIndexes(ctx context.Context, ch stream.Change, ns string) (Effect, error) {
	absent, err := c.deferred.absent(ctx, ns)
	if err != nil {
		return Effect{}, err
	}
	for _, ix := range ch.Indexes {
		if err := c.dropPresent(ctx, ns, ix, absent); err != nil {
			return Effect{}, err
		}
		if err := c.deferred.forget(ctx, inNS(ns), droppedIndex(ix), isAbsent(false)); err != nil {
			return Effect{}, err
		}
	}
	return Effect{Applied: true}, nil
}

// applyView creates a view or redefines it. A view with another collation is dropped first.
func (c *changer) applyView(ctx context.Context, ch stream.Change, ns string, o ApplyOptions) (Effect, error) {
	coll := Collection{NS: ch.NS, Type: TypeView, Options: ch.Options}
	have, ok, err := c.find(ctx, ns)
	if err != nil {
		return Effect{}, err
	}
	if OfVersions(coll, o.Rules) {
		effect := skipped("it is a view of documents of which the target holds versions")
		if ok && have.Type == TypeView { // of others before
			effect.Dropped, err = []string{ns}, c.colls.Drop(ctx, ns)
		}
		return effect, err
	}
	create := func() (Effect, error) { return Effect{Applied: true}, c.colls.Create(ctx, coll, ns, o.Rules) }
	if !ok || have.Type != TypeView {
		return create()
	}
	want, err := MapView(ch.NS, ch.Options, o.Rules)
	if err != nil {
		return Effect{}, err
	}
	diffs, err := diffOptions(Collection{NS: ns, Type: TypeView, Options: want}, have, DiffOptions{})
	if err != nil || len(diffs) == 0 {
		return Effect{Applied: err == nil}, err
	}
	if slices.ContainsFunc(diffs, func(d Difference) bool { return d.What == "option collation" }) {
		if err := c.colls.Drop(ctx, ns); err != nil {
			return Effect{}, err
		}
		return create()
	}
	db, name := mongo.SplitNS(ns)
	err = c.change(ctx, db, bson.D{
		{Key: "collMod", Value: name}, {Key: "viewOn", Value: want.Lookup("viewOn")},
		{Key: "pipeline", Value: want.Lookup("pipeline")},
	})
	return Effect{Applied: err == nil}, err
}

// applyDropView drops a view. The entry of a time-series collection looks the same: a later drop of
// its buckets deletes it.
func (c *changer) applyDropView(ctx context.Context, ns string) (Effect, error) {
	have, ok, err := c.find(ctx, ns)
	switch {
	case err != nil:
		return Effect{}, err
	case !ok:
		return skipped("%s is gone on the target", ns), nil
	case have.Type != TypeView:
		return skipped("%s is not a view", ns), nil
	}
	return Effect{Applied: true, Dropped: []string{ns}}, c.colls.Drop(ctx, ns)
}

// dropDatabase drops the job's collections of a source database, then the target's database if it is
// empty: servers refuse another one whose name differs only in case.
func (c *changer) dropDatabase(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	effect, err := c.dropNames(ctx, ch, o, o.Names.OfDB(ch.NS))
	if err != nil || !effect.Applied {
		return effect, err
	}
	db, _ := mongo.SplitNS(o.Rules.Target(ch.NS + "."))
	left, err := listCollections(ctx, c.c, db, bson.D{})
	if err != nil || len(left) > 0 && (len(left) > 1 || left[0].Name != "system.views") { // which stays without views
		return effect, err
	}
	err = c.change(ctx, db, bson.D{{Key: "dropDatabase", Value: 1}})
	if mongo.IsCode(err, mongo.CodeUnauthorized) { // it is in the way of one of another case alone
		c.o.Log.Info("an empty database stays on the target",
			"database", db, "why", err, "hint", "grant dropDatabase on it, or drop it")
		err = nil
	}
	return effect, mongo.Wrap(err, "drop the empty database %s of the target", db)
}

// dropNames drops the job's collections of a source database. Hardly any are left, as each had a
// drop of its own. Other collections of the target's database are not the job's.
func (c *changer) dropNames(ctx context.Context, ch stream.Change, o ApplyOptions, list []Name) (Effect, error) {
	if !o.Rules.MatchDB(ch.NS) {
		return skipped("excluded"), nil
	}
	effect := Effect{Applied: true}
	for _, one := range list {
		if r := o.Rules.Route(one.NS); r.Skips.Has(stream.OpDrop) || o.Recorded && r.History {
			effect.Dropped = append(effect.Dropped, one.Target)
			continue
		}
		have, there, err := c.find(ctx, one.Target)
		if err != nil {
			return effect, err
		}
		if !there || (have.Type == TypeView) != (one.Type == TypeView) {
			continue
		}
		if err := c.colls.Drop(ctx, one.Target); err != nil {
			return effect, err
		}
		effect.Dropped = append(effect.Dropped, one.Target)
	}
	return effect, nil
}
