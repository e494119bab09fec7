package schema

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// applyCollMod splits a collMod into what is held back (expiry, uniqueness) and
// what takes effect at once.
func (t *Target) applyCollMod(ctx context.Context, ch stream.Change, ns string, o ApplyOptions) (Effect, error) {
	dataNS, _, err := t.locate(ctx, ns)
	if err != nil {
		if IsGone(err) && o.lenient() {
			return skipped("%s is gone on the target", ns), nil
		}
		return Effect{}, err
	}
	if v, err := ch.Options.LookupErr("expireAfterSeconds"); err == nil {
		if err := t.holdExpiry(ctx, ns, v); err != nil {
			return Effect{}, err
		}
	}
	if mod := sub(ch.Options, "index"); mod != nil {
		err := t.modIndex(ctx, ns, dataNS, mod, o)
		if err != nil && !(errors.Is(err, errIndexGone{}) && o.lenient()) {
			return Effect{}, err
		}
	}
	rest, _, err := createOptions(ch.Options, t.c.Info.Version)
	if err == nil {
		rest, err = without(rest, "index")
	}
	// What create leaves out as a default must be sent here: it switches off.
	if err == nil && has(ch.Options, "recordPreImages") && !t.c.Info.Version.AtLeast(7, 0) {
		rest, err = with(rest, "recordPreImages", truthyField(ch.Options, "recordPreImages"))
	}
	if err != nil || len(rest) <= len(emptyDoc()) {
		return Effect{Applied: err == nil}, err
	}
	return Effect{Applied: true}, t.collMod(ctx, ns, rest)
}

func (t *Target) collMod(ctx context.Context, ns string, options bson.Raw) error {
	options, err := t.keepPreImages(ctx, ns, options)
	if err != nil {
		return err
	}
	db, coll := mongo.SplitNS(ns)
	cmd, err := command("collMod", coll, options)
	if err != nil {
		return err
	}
	if err := t.change(ctx, db, cmd); err != nil {
		return mongo.WithHint(fmt.Errorf("collMod %s on the target: %w", ns, err),
			"the target refuses an option of the source's collection: change it on the source and start the job again with --restart, or exclude the collection")
	}
	return nil
}

// keepPreImages repeats recordPreImages where it is on: some servers (seen on
// 5.0.4 and 6.0.5) switch it off by any collMod that does not mention it.
func (t *Target) keepPreImages(ctx context.Context, ns string, options bson.Raw) (bson.Raw, error) {
	if has(options, "recordPreImages") || t.c.Info.Version.AtLeast(7, 0) {
		return options, nil
	}
	coll, _, err := t.find(ctx, ns)
	if err != nil || !truthyField(coll.Options, "recordPreImages") {
		return options, err
	}
	return with(options, "recordPreImages", true)
}

// errIndexGone is the absence of an index on the target.
type errIndexGone struct{}

func (errIndexGone) Error() string { return "the index does not exist on the target" }

// modIndex applies a collMod of an index, one setting after the other.
func (t *Target) modIndex(ctx context.Context, ns, dataNS string, mod bson.Raw, o ApplyOptions) error {
	ix, built, err := t.findIndex(ctx, dataNS, str(mod, "name"), sub(mod, "keyPattern"))
	if err != nil {
		return err
	}
	name := str(mod, "name")
	if name == "" {
		name = ix.Name
	}
	held, isHeld, err := t.heldOne(ctx, ns, name)
	if err != nil {
		return err
	}
	if !built && !(isHeld && held.Unbuilt) {
		return fmt.Errorf("index %s of %s: %w", name, ns, errIndexGone{})
	}
	if !isHeld {
		held.Spec = ix.Spec
	}
	els, err := elements(mod)
	if err != nil {
		return err
	}
	for _, el := range els {
		if err := t.modIndexSetting(ctx, &held, el.Key(), el.Value(), o); err != nil {
			return fmt.Errorf("index %s of %s: %w", name, ns, err)
		}
	}
	return nil
}

// modIndexSetting changes one setting of an index that is built, or held back.
func (t *Target) modIndexSetting(ctx context.Context, h *HeldSetting, key string, v bson.RawValue, o ApplyOptions) (err error) {
	switch key {
	case "name", "keyPattern":
		return nil
	case "expireAfterSeconds":
		n, ok := seconds(v)
		if !ok {
			return fmt.Errorf("expireAfterSeconds is a %s", v.Type)
		}
		v = rawValue(n)
		h.Expire = &v
		if h.Spec, err = with(h.Spec, key, n); err != nil {
			return err
		}
		return t.hold(ctx, *h)
	case "hidden", "prepareUnique", "unique":
		if h.Spec, err = withFlag(h.Spec, key, truthy(v)); err != nil {
			return err
		}
		if key == "unique" {
			// Becoming unique ends the preparation.
			if h.Spec, err = without(h.Spec, "prepareUnique"); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("setting %s is not known", key)
	}
	if h.Unbuilt || key != "hidden" && truthy(v) && o.Window {
		return t.holdUnbuilt(ctx, h)
	}
	mod, err := with(emptyDoc(), "index", bson.D{{Key: "name", Value: h.Index}, {Key: key, Value: truthy(v)}})
	if err != nil {
		return err
	}
	if err := t.collMod(ctx, h.NS, mod); err != nil || h.Expire == nil {
		return err
	}
	return t.hold(ctx, *h) // keep the specification true
}

// holdUnbuilt holds an index back that exists already, in a state in which it
// refuses nothing: it is dropped, and built when the data is consistent.
func (t *Target) holdUnbuilt(ctx context.Context, h *HeldSetting) error {
	already := h.Unbuilt
	h.Unbuilt = uniqueLike(h.Spec)
	if err := t.hold(ctx, *h); err != nil || already && h.Unbuilt {
		return err
	}
	if h.Unbuilt {
		return t.dropIndex(ctx, h.NS, h.Index)
	}
	return t.BuildIndexes(ctx, h.NS, []stream.Index{{Name: h.Index, Spec: h.Spec}}, BeforeConsistent)
}

// withFlag sets a boolean setting, or leaves it out when it is false.
func withFlag(spec bson.Raw, key string, on bool) (bson.Raw, error) {
	if on {
		return with(spec, key, true)
	}
	return without(spec, key)
}
