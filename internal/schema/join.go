package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// joins reports a rename onto a name under which a collection may have been left, because its
// drop or rename was skipped: the documents come into that one.
func (o ApplyOptions) joins(ch stream.Change) bool {
	return ch.Kind == stream.ChangeRename && !ch.DropTarget && o.Rules.Route(ch.To).Skips.Has(leaving)
}

// mayJoin fails where documents cannot come into the collection that was left under the new
// name.
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

// TakeOver ends a join once the documents of from are in to. It transfers the indexes and
// deferred settings of the collection from, as far as nothing in to is in the way, and drops
// from. If it is repeated after a crash, it goes on where it stopped. Before the drop, a marker
// records that the join is done: that from is missing proves nothing.
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

// markJoined records that all of a collection with a UUID has come into a namespace.
func (d *deferrals) markJoined(ctx context.Context, ns string, uuid bson.Binary) error {
	mark := Deferred{DeferredID: d.id(ns, ""), Spec: rawDoc(bson.D{{Key: "joined", Value: uuid}})}
	mark.Absent = true // nothing of it is to be restored
	return d.save(ctx, mark)
}

// hasJoined reports that a collection with a UUID has come into a namespace.
func (d *deferrals) hasJoined(ctx context.Context, ns string, uuid bson.Binary) (bool, error) {
	absent, err := d.absent(ctx, ns)
	return slices.ContainsFunc(absent, func(a Deferred) bool {
		sub, data, ok := bson.Raw(a.Spec).Lookup("joined").BinaryOK()
		return a.Index == "" && ok && uuid.Equal(bson.Binary{Subtype: sub, Data: data})
	}), err
}

// discard discards what is deferred of a namespace, but for what the target had by itself.
func (d *deferrals) discard(ctx context.Context, ns string) error {
	all, err := d.List(ctx, inNS(ns))
	for _, one := range all {
		if err == nil {
			err = d.save(ctx, Deferred{DeferredID: one.DeferredID})
		}
	}
	return err
}
