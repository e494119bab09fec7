package schema

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

func (c *changer) applyCollMod(ctx context.Context, ch stream.Change, ns string, o ApplyOptions) (Effect, error) {
	effect := Effect{Applied: true}
	dataNS, _, err := c.indexes.locate(ctx, ns)
	if err != nil {
		if IsGone(err) && o.Ahead {
			return skipped("%s is gone on the target", ns), nil
		}
		return Effect{}, err
	}
	if v, err := ch.Options.LookupErr(expiry.Option); err == nil {
		if err := c.deferred.save(ctx, Deferred{DeferredID: c.deferred.id(ns, ""), Expire: &v}); err != nil {
			return Effect{}, err
		}
	}
	if mod := sub(ch.Options, "index"); mod != nil {
		left, err := c.modIndex(ctx, ns, dataNS, mod, o)
		r := o.Rules.Route(ch.NS)
		unknown := has(mod, expiry.Option) && r.KeepsExpired
		mapped := r.Fields != nil
		if mapped && unknown && errors.Is(err, errIndexGone) && !o.lenient() {
			return Effect{}, cannotKeep(ch.NS, err)
		}
		if err != nil && !(errors.Is(err, errIndexGone) && (o.lenient() || r.Skips.Has(stream.OpCreateIndexes) || mapped)) {
			return Effect{}, err
		}
		if left != "" {
			effect = skipped("the target goes without index %s of %s", left, ns)
		}
	}
	rest, err := c.changeLimits(ctx, ns, ch.Options)
	if err == nil {
		rest, _, err = createOptions(rest, c.dialect())
	}
	if err == nil {
		rest, err = without(rest, "index")
	}
	// What create leaves out as a default must be sent here: it switches off.
	if on := truthyField(ch.Options, "recordPreImages"); err == nil && has(ch.Options, "recordPreImages") {
		switch {
		case !c.dialect().AtLeast(7, 0):
			rest, err = with(rest, "recordPreImages", on)
		case !has(rest, "changeStreamPreAndPostImages"): // as 7.0 calls it
			rest, err = with(rest, "changeStreamPreAndPostImages", bson.D{{Key: "enabled", Value: on}})
		}
	}
	if err != nil || len(rest) <= len(emptyDoc()) {
		effect.Applied = effect.Applied && err == nil
		return effect, err
	}
	effect.Applied = true
	return effect, c.collMod(ctx, ns, rest)
}

var errIndexGone = errors.New("the index does not exist on the target")

// modIndex applies a collMod of an index, setting by setting. For an absent index, named by left, it
// changes the record.
func (c *changer) modIndex(ctx context.Context, ns, dataNS string, mod bson.Raw,
	o ApplyOptions) (left string, err error) {
	d, err := c.modified(ctx, ns, dataNS, mod)
	if err != nil {
		return "", err
	}
	for key, v := range fields(mod) {
		if err := c.modIndexSetting(ctx, &d, key, v, o); err != nil {
			return "", fmt.Errorf("index %s of %s: %w", d.Index, ns, err)
		}
	}
	if d.Absent {
		left = d.Index
	}
	return left, nil
}

func (c *changer) modified(ctx context.Context, ns, dataNS string, mod bson.Raw) (d Deferred, err error) {
	name, key := str(mod, "name"), sub(mod, "keyPattern")
	absent, err := c.deferred.absent(ctx, ns)
	if err != nil {
		return d, err
	}
	for _, d := range absent {
		if d.Index == name || name == "" && comparableKey(sub(d.Spec, "key")) == comparableKey(key) {
			return d, nil
		}
	}
	ix, built, err := c.findIndex(ctx, dataNS, name, key)
	if err != nil {
		return d, err
	}
	name = cmp.Or(name, ix.Name)
	d, isDeferred, err := c.deferred.one(ctx, ns, name)
	switch {
	case err != nil:
	case !built && !(isDeferred && d.Unbuilt):
		err = fmt.Errorf("index %s of %s: %w", name, ns, errIndexGone)
	case !isDeferred:
		d.Spec = ix.Spec
	case built && len(d.Spec) > 0:
		var same bool
		if same, err = sameIndex(ix.Spec, d.Spec); err == nil && !same {
			d.Absent, d.Was, d.Foreign = true, nil, false
		}
	}
	return d, err
}

func (c *changer) modIndexSetting(ctx context.Context, d *Deferred, key string, v bson.RawValue,
	o ApplyOptions) (err error) {
	switch key {
	case "name", "keyPattern":
		return nil
	case expiry.Option:
		n, ok := expiry.Seconds(v)
		if !ok {
			return fmt.Errorf("expireAfterSeconds is a %s", v.Type)
		}
		v = rawValue(n)
		d.Expire, d.Foreign = &v, false
		if d.Spec, err = with(d.Spec, key, n); err != nil {
			return err
		}
		return c.deferred.save(ctx, *d)
	case "hidden", "prepareUnique", "unique":
		drop := []string{key}
		if key == "unique" { // which ends the preparation
			drop = append(drop, "prepareUnique")
		}
		if d.Spec, err = without(d.Spec, drop...); err == nil && truthy(v) {
			d.Spec, err = with(d.Spec, key, true)
		}
		if err != nil {
			return err
		}
	default:
		return fmt.Errorf("setting %s is not known", key)
	}
	if d.Absent {
		return c.deferred.save(ctx, *d)
	}
	if d.Unbuilt || key != "hidden" && truthy(v) && o.Overlap {
		return c.rebuildLater(ctx, d)
	}
	if err := c.collModIndex(ctx, d.NS, d.Index, key, truthy(v)); err != nil || d.Expire == nil {
		return err
	}
	return c.deferred.save(ctx, *d) // keep the specification true
}

// rebuildLater defers an index that is to refuse documents: it drops it until the data is
// consistent. A deferred one that refuses nothing is built. The record exists as long as the index
// does not, for an attempt after a crash.
func (c *changer) rebuildLater(ctx context.Context, d *Deferred) error {
	d.Unbuilt = true
	if err := c.deferred.save(ctx, *d); err != nil {
		return err
	}
	if uniqueLike(d.Spec) {
		return c.indexes.drop(ctx, d.NS, d.Index)
	}
	dataNS, ns, err := c.indexes.locate(ctx, d.NS)
	if err != nil {
		return err
	}
	ix, err := c.indexes.plan(ns, stream.Index{Name: d.Index, Spec: d.Spec}, Consistent)
	if err != nil {
		return err
	}
	err = c.indexes.create(ctx, dataNS, []bson.Raw{ix.spec})
	if mongo.Unindexable(err) {
		c.o.Log.Info("documents do not fit an index yet: it is built when the target is consistent",
			"ns", d.NS, "index", d.Index, "reason", err)
		return nil
	}
	if err != nil {
		return err
	}
	d.Unbuilt = false
	return c.deferred.save(ctx, *d)
}
