package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// An oplog names an index only by its name. Where rules skip drops, the target may have another
// index of that name. The source's index is then recorded as absent, and changes go to the record.

func isAbsent(yes bool) bson.E {
	return bson.E{Key: "_id.absent", Value: bson.D{{Key: "$exists", Value: yes}}}
}

func (d *deferrals) absent(ctx context.Context, ns string) ([]Deferred, error) {
	return readDeferred(ctx, d.c, d.of(inNS(ns), isAbsent(true)))
}

func (d *deferrals) goWithout(ctx context.Context, ns string, idx ...stream.Index) error {
	var list []Deferred
	for _, ix := range idx {
		_, expire, err := cleanIndex(ix)
		if err != nil {
			return err
		}
		one := Deferred{DeferredID: d.id(ns, ix.Name), Expire: expire, Spec: ix.Spec}
		one.Absent = true
		list = append(list, one)
	}
	if len(list) == 0 {
		return nil
	}
	d.o.Log.Warn("the target goes without indexes of the source", "ns", ns, "indexes", namesOf(idx))
	return d.save(ctx, list...)
}

func (d *deferrals) present(ctx context.Context, ns string, idx ...stream.Index) error {
	absent, err := d.absent(ctx, ns)
	if err != nil || len(absent) == 0 || len(idx) == 0 {
		return err
	}
	return d.forget(ctx, inNS(ns), isAbsent(true), ofIndex(bson.D{{Key: "$in", Value: namesOf(idx)}}))
}

func namesOf(idx []stream.Index) (out []string) {
	for _, ix := range idx {
		out = append(out, ix.Name)
	}
	return out
}

func specsOf(idx []stream.Index) (out []bson.Raw) {
	for _, ix := range idx {
		out = append(out, ix.Spec)
	}
	return out
}

func sameIndex(a, b bson.Raw) (bool, error) {
	return alike(a, b, func(setting string) bool {
		return slices.Contains([]string{"key", "collation", "partialFilterExpression"}, setting)
	})
}

func alike(a, b bson.Raw, counts func(setting string) bool) (bool, error) {
	x, y, err := comparablePair(stream.Index{Name: str(a, "name"), Spec: a}, stream.Index{Name: str(b, "name"), Spec: b},
		DiffOptions{IgnoreTTL: true})
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(diffMaps("", "", x, y), func(d Difference) bool { return counts(d.What) }), nil
}

func taken(have []stream.Index, ix stream.Index) (bool, error) {
	i := slices.IndexFunc(have, func(other stream.Index) bool { return other.Name == ix.Name })
	if i < 0 {
		return false, nil
	}
	same, err := alike(ix.Spec, have[i].Spec, func(setting string) bool {
		return !slices.Contains([]string{"v", "hidden", "prepareUnique"}, setting) // collMod changes them
	})
	return err == nil && !same, err
}

// isOf reports that the target's index is not another one than the deferred one.
func (b *builder) isOf(ctx context.Context, d Deferred) (bool, error) {
	dataNS, _, err := b.locate(ctx, d.NS)
	if err != nil {
		return false, err
	}
	ix, built, err := b.findIndex(ctx, dataNS, d.Index, nil)
	if err != nil || !built || len(d.Spec) == 0 {
		return err == nil, err
	}
	same, err := sameIndex(ix.Spec, d.Spec)
	if err == nil && !same {
		b.o.Log.Warn("the target has another index of that name: it stays as it is",
			"ns", d.NS, "index", d.Index, "target", text(ix.Spec), "source", text(d.Spec))
	}
	return same, err
}

func clashes(err error) bool {
	return mongo.IsCode(err, mongo.CodeIndexOptionsConflict) || mongo.IsCode(err, mongo.CodeIndexKeySpecsClash)
}

// BuildSkipping is Build of a collection with skipped operations. left names the indexes that are not
// built, as an index that was left is in the way.
func (b *builder) BuildSkipping(ctx context.Context, targetNS string, idx []stream.Index, p Phase,
	skips stream.Ops) (left []string, err error) {
	if skips.Has(stream.OpDropIndexes | leaving) {
		return b.buildBeside(ctx, targetNS, idx, p)
	}
	return nil, b.Build(ctx, targetNS, idx, p)
}

// buildBeside is BuildSkipping where operations that may have left indexes are skipped. It records
// indexes in whose way one stands as absent.
func (b *builder) buildBeside(ctx context.Context, targetNS string, idx []stream.Index,
	p Phase) (left []string, err error) {
	dataNS, ns, err := b.locate(ctx, targetNS)
	if err != nil {
		return nil, fmt.Errorf("build indexes of %s: %w", targetNS, err)
	}
	have, _, err := indexes(ctx, b.c, dataNS)
	if err != nil {
		return nil, err
	}
	var free, without []stream.Index
	for _, ix := range idx {
		other, err := taken(have, ix)
		if err != nil {
			return nil, err
		}
		if other {
			without = append(without, ix)
		} else {
			free = append(free, ix)
		}
	}
	if err := b.deferred.goWithout(ctx, ns, without...); err != nil {
		return nil, err
	}
	if err := b.build(ctx, Build{NS: targetNS, Indexes: free, yields: true}, p, mostParts); err != nil {
		return nil, err
	}
	absent, err := b.deferred.absent(ctx, ns)
	for _, ix := range idx {
		if slices.ContainsFunc(absent, func(d Deferred) bool { return d.Index == ix.Name }) {
			left = append(left, ix.Name)
		}
	}
	return left, err
}

func (b *builder) eachBeside(ctx context.Context, list []Deferred, specs []bson.Raw,
	build func([]Deferred, []bson.Raw) error) error {
	for i, d := range list {
		err := build(list[i:i+1], specs[i:i+1])
		if clashes(err) {
			err = b.deferred.goWithout(ctx, d.NS, stream.Index{Name: d.Index, Spec: d.Spec})
			if err == nil {
				err = b.deferred.save(ctx, Deferred{DeferredID: d.DeferredID})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leave applies a skipped change. A collection that it would drop or rename gets no more changes. An
// index that it would make is absent, and one that it would drop expires nothing.
func (c *changer) leave(ctx context.Context, ch stream.Change, o ApplyOptions) (Effect, error) {
	effect := skipped("%s is skipped", o.Names.LeftOut(ch, o.Rules))
	switch ch.Kind {
	case stream.ChangeCreateIndexes:
		return effect, c.leaveCreated(ctx, ch, o)
	case stream.ChangeDropIndexes:
		return effect, c.leaveDropped(ctx, ch, o.Rules.Target(ch.NS))
	}
	for _, ns := range []string{ch.NS, ch.To} {
		if effectOf := ch.Op(false); ns != "" && effectOf.Has(leaving) && o.Rules.Match(ns) {
			effect.Dropped = append(effect.Dropped, o.Rules.Target(ns))
		}
	}
	return effect, nil
}

// has lists the indexes of a collection of the target, and its name in the records; there is false
// if the collection is gone.
func (b *builder) has(ctx context.Context, targetNS string) (have []stream.Index, ns string, there bool, err error) {
	dataNS, ns, err := b.locate(ctx, targetNS)
	if IsGone(err) {
		return nil, "", false, nil
	}
	if err == nil {
		have, _, err = indexes(ctx, b.c, dataNS)
	}
	return have, ns, err == nil, err
}

func (c *changer) leaveCreated(ctx context.Context, ch stream.Change, o ApplyOptions) error {
	have, ns, exists, err := c.indexes.has(ctx, o.Rules.Target(ch.NS))
	if err != nil || !exists {
		return err
	}
	var there, without []stream.Index
	for _, ix := range ch.Indexes {
		if m := o.Rules.Route(ch.NS).Fields; m != nil {
			if spec, why := m.Index(ix.Spec); why == "" {
				ix.Spec = spec
			}
		}
		other, err := taken(have, ix)
		if err != nil {
			return err
		}
		if !other && slices.Contains(namesOf(have), ix.Name) {
			there = append(there, ix)
		} else {
			without = append(without, ix)
		}
	}
	if err := c.deferred.present(ctx, ns, there...); err != nil {
		return err
	}
	return c.deferred.goWithout(ctx, ns, without...)
}

// leaveDropped discards what is deferred of an index that stays. The source no longer has its
// expiry, by which the target would delete what the source keeps.
func (c *changer) leaveDropped(ctx context.Context, ch stream.Change, ns string) error {
	all, err := c.deferred.List(ctx, inNS(ns))
	if err != nil {
		return err
	}
	for _, ix := range ch.Indexes {
		if err := c.deferred.forget(ctx, inNS(ns), isAbsent(true), droppedIndex(ix)); err != nil {
			return err
		}
		for _, d := range all {
			switch {
			case d.Index != ix.Name && (ix.Name != "*" || d.Index == "" || d.Limits()):
				continue
			case d.Unbuilt:
				err = c.deferred.forget(ctx, inNS(ns), ofIndex(d.Index))
			default:
				err = c.deferred.save(ctx, Deferred{DeferredID: d.DeferredID})
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func droppedIndex(ix stream.Index) bson.E {
	if ix.Name == "*" {
		return ofIndex(bson.D{{Key: "$nin", Value: bson.A{"", limitsIndex}}})
	}
	return ofIndex(ix.Name)
}

// dropPresent drops an index, or all of them, except those that are absent. Their records stay until
// the source makes an index of that name: a drop that is repeated after a crash needs them.
func (c *changer) dropPresent(ctx context.Context, ns string, ix stream.Index, absent []Deferred) error {
	isOther := func(name string) bool {
		return slices.ContainsFunc(absent, func(d Deferred) bool { return d.Index == name })
	}
	for _, d := range absent {
		if d.Expire = nil; d.Index == ix.Name || ix.Name == "*" {
			if err := c.deferred.save(ctx, d); err != nil {
				return err
			}
		}
	}
	if isOther(ix.Name) {
		return nil
	}
	if ix.Name != "*" || len(absent) == 0 {
		return c.indexes.drop(ctx, ns, ix.Name)
	}
	have, _, _, err := c.indexes.has(ctx, ns)
	if err != nil {
		return err
	}
	for _, one := range have {
		if isOther(one.Name) {
			continue
		}
		if err := c.indexes.drop(ctx, ns, one.Name); err != nil {
			return err
		}
	}
	return nil
}
