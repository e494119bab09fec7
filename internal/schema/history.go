package schema

import (
	"cmp"
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/versions"
)

// CheckHistory says why the target cannot hold the versions of the documents of a
// collection as the rules want it; nil where it can, or does not have to.
func CheckHistory(c Collection, rules *transform.Set) error {
	r := rules.Route(c.NS)
	if c.Type == TypeView || !r.History {
		return nil
	}
	why := cmp.Or(byKind(c, "documents go without a word of the source"), r.NoHistory())
	if why == "" {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("the target cannot hold the history of %s: %s", c.NS, why),
		"have the patterns of --history leave it out, change the other rule, or --exclude it")
}

// OfVersions reports a view of documents of which the target holds versions: it is left
// out.
func OfVersions(c Collection, rules *transform.Set) bool {
	db, _ := mongo.SplitNS(c.NS)
	on, _ := c.Options.Lookup("viewOn").StringValueOK()
	return c.Type == TypeView && on != "" && rules.Match(db+"."+on) && rules.Route(db+"."+on).History
}

// mayRecord fails where a collection of the target holds what is no version: it is none
// that the job has left there.
func (c *changer) mayRecord(ctx context.Context, ns string) error {
	coll, there, err := c.find(ctx, ns)
	if err != nil || !there {
		return err
	}
	if coll.Type != TypeCollection {
		return existsAlready(fmt.Errorf("%s is a %s on the target", ns, coll.Type), ns)
	}
	doc, err := c.anyID(ctx, ns)
	if doc != nil {
		if _, _, ok := versions.IsID(bsonraw.IDOf(doc)); !ok {
			return existsAlready(fmt.Errorf("%s exists on the target, and holds no versions", ns), ns)
		}
	}
	return err
}

// applyRecorded does what a change does to collections of versions; done is false where
// it is no other than to others.
func (c *changer) applyRecorded(ctx context.Context, ch stream.Change,
	o ApplyOptions) (effect Effect, done bool, err error) {
	of := func(ns string) bool { return ns != "" && o.Rules.Match(ns) && o.Rules.Route(ns).History }
	from, to := of(ch.NS), of(ch.To)
	switch ch.Kind {
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
		return skipped("the target holds versions of the documents"), from, nil
	case stream.ChangeDrop:
		if from && o.Recorded {
			effect = skipped("the history stays")
			effect.Dropped = []string{o.Rules.Target(ch.NS)}
			return effect, true, nil
		}
	case stream.ChangeRename:
		if to && !from {
			return effect, true, mongo.WithHint(fmt.Errorf("a rename gives %s the name %s, whose history is kept: what its "+
				"documents were is not known", ch.NS, ch.To),
				"start the job again with --restart, or --exclude the name")
		}
		if from && o.Recorded {
			return c.renameRecorded(ctx, ch, to, o)
		}
	}
	return effect, false, nil
}

// renameRecorded leaves what is under the old name. Under the new one the history is
// written by whoever makes versions, or else the collection is copied.
func (c *changer) renameRecorded(ctx context.Context, ch stream.Change, to bool,
	o ApplyOptions) (effect Effect, done bool, err error) {
	if effect = skipped("the history stays"); !to && o.Rules.Match(ch.To) {
		if effect, err = c.renameIn(ctx, ch, o.Rules.Target(ch.To), o); err != nil {
			return effect, true, err
		}
	}
	effect.Dropped = append(effect.Dropped, o.Rules.Target(ch.NS))
	return effect, true, nil
}
