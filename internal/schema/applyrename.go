package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// applyRename renames kept collections, drops those that leave the rules, and requests a copy of
// those that enter them.
func (c *changer) applyRename(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	from, to := o.Rules.Target(ch.NS), o.Rules.Target(ch.To)
	switch fromKept, toKept := o.Rules.Match(ch.NS), o.Rules.Match(ch.To); {
	case fromKept && toKept && (ch.Buckets || !o.Rules.Route(ch.NS).SameDocuments(o.Rules.Route(ch.To))):
		// The rules keep or make other documents under the new name, or no command renames it (time
		// series).
		if err := c.colls.Drop(ctx, from); err != nil {
			return Effect{}, err
		}
		effect, err := c.renameIn(ctx, ch, to, o)
		effect.Dropped = append(effect.Dropped, from)
		return effect, err
	case fromKept && toKept:
		return c.renameKept(ctx, ch, from, to, o)
	case fromKept:
		return Effect{Applied: true, Dropped: []string{from}}, c.colls.Drop(ctx, from)
	case toKept:
		return c.renameIn(ctx, ch, to, o)
	}
	return skipped("excluded"), nil
}

func (c *changer) renameIn(ctx context.Context, ch stream.Change, to string, o ApplyOptions) (Effect, error) {
	if len(ch.UUID.Data) == 0 {
		return Effect{}, mongo.WithHint(fmt.Errorf("%s becomes %s, which is kept, but the entry does not name its UUID, "+
			"so it cannot be copied", ch.NS, ch.To),
			"start the job again with --restart")
	}
	effect := Effect{Applied: true, Resync: &ch.UUID, ResyncNS: to}
	// A copy begun before a crash may be partial. What existed before is not the job's: the copy
	// replaces what it has to.
	if ch.DropTarget || o.Maybe && o.existing(ch.To) != KeepExisting {
		effect.Dropped = []string{to}
		return effect, c.colls.Drop(ctx, to)
	}
	return effect, nil
}

func (c *changer) renameKept(ctx context.Context, ch stream.Change, from, to string, o ApplyOptions) (Effect, error) {
	if from == to {
		return Effect{}, mongo.WithHint(fmt.Errorf("%s and %s have one name on the target, %s", ch.NS, ch.To, to),
			"change the renames of the job")
	}
	without := func(why string) (Effect, error) {
		effect := skipped("%s %s", from, why)
		if ch.DropTarget {
			effect.Dropped = []string{to}
			return effect, c.colls.Drop(ctx, to)
		}
		return effect, nil
	}
	if o.Names.NeverCame(ch) {
		if comesAnew(ch, o.Rules) {
			return c.renameIn(ctx, ch, to, o)
		}
		return without("never came to the target")
	}
	done, err := c.renamed(ctx, ch, from, to, o)
	if err != nil {
		return Effect{}, err
	}
	if done { // before the restart; what is deferred may not have followed
		return Effect{Applied: true, Dropped: []string{from}}, c.follow(ctx, from, to)
	}
	have, there, err := c.find(ctx, from)
	if err == nil && there && o.joins(ch) && len(o.Before.To.Data) > 0 {
		if o.Maybe {
			err = c.deferred.discard(ctx, to)
		}
		return Effect{Applied: true, Dropped: []string{from}, Join: &have, JoinNS: to}, err
	}
	switch {
	case err != nil:
		return Effect{}, err
	case there:
		return c.rename(ctx, ch, from, to, o)
	case o.Ahead:
		return without("is gone on the target")
	}
	return Effect{}, renamesNothing(from)
}

func renamesNothing(from string) error {
	return mongo.WithHint(fmt.Errorf("%s %w", from, errGone),
		"something else drops or renames collections of the target; restore the collection there, or start the job again "+
			"with --restart")
}

// comesAnew reports a rename between databases, which makes a new collection that the source may
// still have.
func comesAnew(ch stream.Change, rules *transform.Set) bool {
	return ch.Command == mongo.CommandMove && rules.Commands() &&
		!rules.Route(ch.NS).Skips.Has(stream.OpCreate|stream.OpRename)
}

func (c *changer) renames(ctx context.Context, ch stream.Change, o ApplyOptions) (before Before, err error) {
	if o.ofCommand(ch) && (ch.Command != mongo.CommandCapped || o.staysUncapped(ch)) {
		return before, c.stillRuled(ctx, ch, o)
	}
	if ch.Kind != stream.ChangeRename || !o.Rules.Match(ch.NS) || !o.Rules.Match(ch.To) || o.leftOut(ch) ||
		o.Recorded && o.Rules.Route(ch.NS).History {
		return before, nil
	}
	if o.Names.NeverCame(ch) {
		return before, nil
	}
	from, there, err := c.find(ctx, o.Rules.Target(ch.NS))
	if err == nil && there {
		err = c.mayBe(ctx, from, ch.To, o.Rules)
	}
	if err != nil || ch.Buckets || !o.Rules.Route(ch.NS).SameDocuments(o.Rules.Route(ch.To)) {
		return before, err // it is copied again
	}
	if !there && !o.Ahead {
		return before, renamesNothing(o.Rules.Target(ch.NS))
	}
	to, _, err := c.find(ctx, o.Rules.Target(ch.To))
	return Before{NS: ch.NS, From: from.UUID, To: to.UUID}, err
}

// stillRuled returns why the rules cannot apply to a collection that becomes capped on the source
// only. The next start would report the same.
func (c *changer) stillRuled(ctx context.Context, ch stream.Change, o ApplyOptions) error {
	if ch.Command != mongo.CommandCapped || o.Names.Missing(ch.To) {
		return nil
	}
	filled, there, err := c.find(ctx, o.Rules.Target(ch.NS))
	if err != nil || !there {
		return err
	}
	return c.mayBe(ctx, filled, ch.To, o.Rules)
}

// stillBefore returns what was recorded before a restart, or the present state if the rename was not
// applied and its collection was replaced.
func (c *changer) stillBefore(ctx context.Context, ch stream.Change, o ApplyOptions) (Before, error) {
	if !o.Before.of(ch) {
		return o.Before, nil
	}
	from, to := o.Rules.Target(ch.NS), o.Rules.Target(ch.To)
	if done, err := c.renamed(ctx, ch, from, to, o); done || err != nil {
		return o.Before, err
	}
	have, there, err := c.find(ctx, from)
	if err != nil || !there || have.UUID.Equal(o.Before.From) {
		return o.Before, err
	}
	stands, _, err := c.find(ctx, to)
	return Before{NS: ch.NS, From: have.UUID, To: stands.UUID}, err
}

func (c *changer) mayBe(ctx context.Context, have Collection, sourceNS string, rules *transform.Set) (err error) {
	if rules.Route(sourceNS).Skips.Has(stream.OpTTL) && have.Type == TypeCollection {
		if have.Indexes, _, err = indexes(ctx, c.c, have.NS); err != nil {
			return err
		}
	}
	have.NS = sourceNS
	return CheckCollection(have, rules)
}

// renamed reports a rename that was applied before a restart. Within a database the collection keeps
// its UUID, between two it gets another one.
func (c *changer) renamed(ctx context.Context, ch stream.Change, from, to string, o ApplyOptions) (bool, error) {
	if !o.Maybe {
		return false, nil
	}
	fromDB, _ := mongo.SplitNS(from)
	toDB, _ := mongo.SplitNS(to)
	if o.Before.of(ch) && o.joins(ch) && len(o.Before.To.Data) > 0 {
		if _, there, err := c.find(ctx, from); there || err != nil {
			return false, err
		}
		return c.deferred.hasJoined(ctx, to, o.Before.From)
	}
	if !o.Before.of(ch) || fromDB != toDB {
		if _, there, err := c.find(ctx, from); there || err != nil {
			return false, err
		}
	}
	have, there, err := c.find(ctx, to)
	switch {
	case err != nil || !there:
		return false, err
	case !o.Before.of(ch): // it was recorded without UUIDs, as all but the first of a position
		return true, nil
	case fromDB == toDB:
		return len(have.UUID.Data) > 0 && have.UUID.Equal(o.Before.From), nil
	}
	return !have.UUID.Equal(o.Before.To), nil
}

// rename renames the collection. Records of a dropped target are deleted before, those of the source
// follow after it. After a crash in between, the source's absence tells them apart.
func (c *changer) rename(ctx context.Context, ch stream.Change, from, to string, o ApplyOptions) (Effect, error) {
	fromDB, _ := mongo.SplitNS(from)
	toDB, _ := mongo.SplitNS(to)
	effect := Effect{Applied: true, Dropped: []string{from}}
	// Between databases the server copies, then drops: interrupted, it leaves both.
	dropTarget := ch.DropTarget || o.Maybe && fromDB != toDB
	if dropTarget {
		effect.Dropped = append(effect.Dropped, to)
	}
	if err := c.deferred.forget(ctx, inNS(to)); err != nil {
		return effect, err
	}
	if err := c.o.Sharding.Forget(ctx, to); err != nil {
		return effect, err
	}
	err := c.change(ctx, "admin", bson.D{
		{Key: "renameCollection", Value: from}, {Key: "to", Value: to}, {Key: "dropTarget", Value: dropTarget},
	})
	if err != nil {
		switch {
		case mongo.Classify(err) == mongo.ClassExists:
			err = existsAlready(err, to)
		case c.c.Info.Kind == mongo.KindSharded && fromDB != toDB:
			err = mongo.WithHint(err,
				fmt.Sprintf("routers rename between databases only where both have one primary shard: give %s that of %s on the "+
					"target (movePrimary), then resume", toDB, fromDB))
		}
		return effect, fmt.Errorf("rename %s to %s on the target: %w", from, to, err)
	}
	failpoint.Hit("rename.done")
	return effect, c.follow(ctx, from, to)
}

func (c *changer) follow(ctx context.Context, from, to string) error {
	if err := c.deferred.move(ctx, from, to); err != nil {
		return err
	}
	return c.o.Sharding.Move(ctx, from, to)
}

// ofCommand reports a rename that ends a server's command, where the filled collection cannot
// replace the other one: the target has other or additional documents of it.
func (o ApplyOptions) ofCommand(ch stream.Change) bool {
	if ch.Kind != stream.ChangeRename || !o.Rules.Commands() || !o.Rules.Match(ch.To) || !o.Rules.Route(ch.To).Ruled {
		return false
	}
	switch ch.Command {
	case mongo.CommandReshard:
		return true
	case mongo.CommandOut, mongo.CommandCapped:
		_, known := o.Names.Source(ch.NS)
		return known || o.Maybe
	}
	return false
}

// applyCommand ends a command on the target. What $out has written is there already.
func (c *changer) applyCommand(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	missing := o.Names.Missing(ch.To)
	comes := o.Names.Absent(ch.To) && !missing
	switch {
	case ch.Command == mongo.CommandReshard && missing:
		return skipped("%s never came to the target", ch.To), nil
	case ch.Command == mongo.CommandReshard && (o.Cut || comes):
		return Effect{Applied: true, Resync: &ch.UUID, ResyncNS: o.Rules.Target(ch.To), Keep: true}, nil
	case ch.Command == mongo.CommandReshard:
		return skipped("the documents of %s are the same", ch.To), nil
	case ch.Command == mongo.CommandCapped && !o.staysUncapped(ch):
		return c.renameKept(ctx, ch, o.Rules.Target(ch.NS), o.Rules.Target(ch.To), o)
	}
	effect := Effect{Applied: true, Dropped: []string{o.Rules.Target(ch.NS)}}
	switch {
	case ch.Command == mongo.CommandCapped && comes:
		effect.Resync, effect.ResyncNS = &ch.UUID, o.Rules.Target(ch.To)
	case ch.Command == mongo.CommandCapped && missing:
		effect.Applied, effect.Skipped = false, ch.To+" never came to the target"
	case ch.Command == mongo.CommandCapped:
		c.o.Log.Warn("convertToCapped is not applied: by the rules the target's collection keeps its options",
			"ns", o.Rules.Target(ch.To))
		effect.Applied, effect.Skipped = false, "the collection stays as it is"
	case o.leftOut(ch):
		effect.Applied, effect.Skipped = false, "create is skipped"
	}
	return effect, c.colls.Drop(ctx, o.Rules.Target(ch.NS))
}

// staysUncapped reports that the target's collection does not become capped: there is none, the rules
// skip the change, or they keep documents that a capped one might remove.
func (o ApplyOptions) staysUncapped(ch stream.Change) bool {
	return o.Names.Missing(ch.To) || o.leftOut(ch) || o.Rules.Others() || o.Rules.Route(ch.To).Skips.Has(leaving)
}

// CheckCollection returns why the rules cannot apply to a collection of the source.
func CheckCollection(c Collection, rules *transform.Set) error {
	return errors.Join(CheckFilter(c, rules), CheckSkip(c, rules), CheckFields(c, rules, nil), CheckHistory(c, rules))
}

// joins reports a rename onto a name under which a collection may have been left, as its drop or
// rename was skipped: the documents join it.
func (o ApplyOptions) joins(ch stream.Change) bool {
	return ch.Kind == stream.ChangeRename && !ch.DropTarget && o.Rules.Route(ch.To).Skips.Has(leaving)
}

func (c *changer) mayJoin(ctx context.Context, from, to string) error {
	have, there, err := c.find(ctx, from)
	if err != nil || !there {
		return err
	}
	left, there, err := c.find(ctx, to)
	if err != nil || !there {
		return err
	}
	switch {
	case c.c.Info.Kind == mongo.KindSharded:
		return existsAlready(fmt.Errorf("%s was left on the target, a sharded cluster, which cannot be read by a "+
			"collection's UUID", to), to)
	case left.Type != TypeCollection || have.Type != TypeCollection:
		return existsAlready(fmt.Errorf("%s, which was left on the target, is a %s, and %s a %s", to, left.Type, from,
			have.Type), to)
	case left.Capped() || have.Capped():
		return existsAlready(fmt.Errorf("%s was left on the target, and the order of a capped collection would be lost", to),
			to)
	}
	diffs, err := diffOptions(have, left, DiffOptions{IgnoreTTL: true})
	if err == nil && len(diffs) > 0 {
		err = existsAlready(fmt.Errorf("%s was left on the target and differs from %s: %s: %s has %q", to, from,
			diffs[0].What, to, diffs[0].Target), to)
	}
	return err
}

// TakeOver ends a join, once the documents of from are in to: it moves indexes and records, where
// nothing is in the way, and drops from. It can be repeated after a crash. A marker before the drop
// records that the join is done, as a missing from proves nothing.
func (c *changer) TakeOver(ctx context.Context, from, to string, p Phase) error {
	dataNS, _, err := c.indexes.locate(ctx, from)
	if err != nil {
		return err
	}
	have, _, err := indexes(ctx, c.c, dataNS)
	if err != nil {
		return err
	}
	deferred, err := c.deferred.List(ctx, inNS(from))
	if err != nil {
		return err
	}
	var unbuilt []stream.Index
	for _, d := range deferred {
		i := slices.Index(namesOf(have), d.Index)
		switch {
		case d.Index == "":
			d.NS = to
			err = c.deferred.save(ctx, d)
		case d.Unbuilt:
			unbuilt = append(unbuilt, stream.Index{Name: d.Index, Spec: d.Spec})
		case i >= 0:
			have[i].Spec = d.Spec
		}
		if err != nil {
			return err
		}
	}
	for i, ix := range have {
		if expiry.StandsIn(ix.Spec.Lookup(expiry.Option)) {
			if have[i].Spec, err = without(ix.Spec, expiry.Option); err != nil {
				return err
			}
		}
	}
	if _, err := c.indexes.buildBeside(ctx, to, have, p); err != nil {
		return err
	}
	if _, err := c.indexes.buildBeside(ctx, to, unbuilt, BeforeConsistent); err != nil {
		return err
	}
	absent, err := c.deferred.absent(ctx, from)
	if err != nil {
		return err
	}
	for i := range absent {
		absent[i].NS = to
	}
	if err := c.deferred.save(ctx, absent...); err != nil {
		return err
	}
	coll, _, err := c.find(ctx, from)
	if err == nil {
		err = c.deferred.markJoined(ctx, to, coll.UUID)
	}
	if err != nil {
		return err
	}
	return c.colls.Drop(ctx, from)
}

func (d *deferrals) markJoined(ctx context.Context, ns string, uuid bson.Binary) error {
	mark := Deferred{DeferredID: d.id(ns, ""), Spec: rawDoc(bson.D{{Key: "joined", Value: uuid}})}
	mark.Absent = true // nothing of it is to be restored
	return d.save(ctx, mark)
}

func (d *deferrals) hasJoined(ctx context.Context, ns string, uuid bson.Binary) (bool, error) {
	absent, err := d.absent(ctx, ns)
	return slices.ContainsFunc(absent, func(a Deferred) bool {
		sub, data, ok := bson.Raw(a.Spec).Lookup("joined").BinaryOK()
		return a.Index == "" && ok && uuid.Equal(bson.Binary{Subtype: sub, Data: data})
	}), err
}

// discard discards what is deferred of a namespace, except what the target had before.
func (d *deferrals) discard(ctx context.Context, ns string) error {
	all, err := d.List(ctx, inNS(ns))
	for _, one := range all {
		if err == nil {
			err = d.save(ctx, Deferred{DeferredID: one.DeferredID})
		}
	}
	return err
}
