package schema

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// applyRename renames within what is kept, drops what leaves it, and asks for a
// copy of what enters it.
func (c *changer) applyRename(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	from, to := o.Rules.Target(ch.NS), o.Rules.Target(ch.To)
	switch fromKept, toKept := o.Rules.Match(ch.NS), o.Rules.Match(ch.To); {
	case fromKept && toKept && (ch.Buckets || !o.Rules.Route(ch.NS).SameDocuments(o.Rules.Route(ch.To))):
		// Other documents are kept under the new name, or other ones are made of them;
		// and no command renames a time-series collection.
		if err := c.colls.Drop(ctx, from); err != nil {
			return Effect{}, err
		}
		effect, err := c.renameIn(ctx, ch, to, o)
		effect.Dropped = append(effect.Dropped, from)
		return effect, err
	case fromKept && toKept:
		return c.renameKept(ctx, ch, from, to, o)
	case fromKept:
		// Under its new name nobody wants it.
		return Effect{Applied: true, Dropped: []string{from}}, c.colls.Drop(ctx, from)
	case toKept:
		return c.renameIn(ctx, ch, to, o)
	}
	return skipped("excluded"), nil
}

// renameIn handles a collection that the target does not have yet.
func (c *changer) renameIn(ctx context.Context, ch stream.Change, to string, o ApplyOptions) (Effect, error) {
	if len(ch.UUID.Data) == 0 {
		return Effect{}, mongo.WithHint(fmt.Errorf("%s becomes %s, which is kept, but the entry does not name its UUID, "+
			"so it cannot be copied", ch.NS, ch.To),
			"start the job again with --restart")
	}
	effect := Effect{Applied: true, Resync: &ch.UUID, ResyncNS: to}
	// Begun before a crash, it may be half copied. What was there before is not
	// ours to drop: the copy replaces what it has to.
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

// comesAnew reports that a collection which never came to the target comes with a rename:
// one between databases makes a new collection, which the source may still have.
func comesAnew(ch stream.Change, rules *transform.Set) bool {
	return ch.Command == mongo.CommandMove && rules.Commands() &&
		!rules.Route(ch.NS).Skips.Has(stream.OpCreate|stream.OpRename)
}

// renames finds what the target has under the names of a rename that is to be applied
// there. A collection that it does not have cannot be renamed.
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

// stillRuled returns why the rules cannot apply to a collection that is capped on the source
// from now on, where the target's stays uncapped. The next start would report the same.
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

// stillBefore is what was noted before a restart. Where the rename was not applied, and
// somebody has replaced what is to be renamed, it is what the target has now.
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

// mayBe says why a collection of the target cannot be what the rules want under another
// name on the source.
func (c *changer) mayBe(ctx context.Context, have Collection, sourceNS string, rules *transform.Set) (err error) {
	if rules.Route(sourceNS).Skips.Has(stream.OpTTL) && have.Type == TypeCollection {
		if have.Indexes, _, err = indexes(ctx, c.c, have.NS); err != nil {
			return err
		}
	}
	have.NS = sourceNS
	return CheckCollection(have, rules)
}

// renamed reports that a rename was applied before a restart. Within a database the
// collection keeps its UUID; between two it gets another one.
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
	case !o.Before.of(ch): // an older version noted the change, without UUIDs
		return true, nil
	case fromDB == toDB:
		return len(have.UUID.Data) > 0 && have.UUID.Equal(o.Before.From), nil
	}
	return !have.UUID.Equal(o.Before.To), nil
}

// rename renames the collection. What is deferred for a target that gets dropped is forgotten
// before the rename. What is deferred for the source follows after it. After a crash in
// between, the source's absence shows which of the two was done.
func (c *changer) rename(ctx context.Context, ch stream.Change, from, to string, o ApplyOptions) (Effect, error) {
	fromDB, _ := mongo.SplitNS(from)
	toDB, _ := mongo.SplitNS(to)
	effect := Effect{Applied: true, Dropped: []string{from}}
	// Between databases the server copies and then drops: interrupted, both may
	// be there.
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

// follow has what is known of a namespace follow its new name.
func (c *changer) follow(ctx context.Context, from, to string) error {
	if err := c.deferred.move(ctx, from, to); err != nil {
		return err
	}
	return c.o.Sharding.Move(ctx, from, to)
}
