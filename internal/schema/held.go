package schema

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// heldCollection keeps the settings held back, in the target's database
// mongo.StateDB: one document for each job, namespace and index.
const heldCollection = "held"

// HeldSetting is what the target does not have yet although the source has it.
type HeldSetting struct {
	NS string // target namespace
	// Index names the index; empty for the expiry of a collection.
	Index string
	// Unbuilt says that the index is not built yet because it refuses
	// documents; Spec is then all of it.
	Unbuilt bool
	// Expire is the expiry to be set, in seconds, or "off"; nil for none.
	Expire *bson.RawValue
	// Was is the expiry that the target had before the job held it back; nil for
	// none. It is what is restored where the source has none to restore, and it
	// outlives a job that begins anew.
	Was *bson.RawValue
	// Spec is the whole specification of the index on the source.
	Spec bson.Raw
}

type heldID struct {
	Job   string `bson:"job"`
	NS    string `bson:"ns"`
	Index string `bson:"index"`
}

// heldDoc keeps the specification as bytes, for servers before 5.0 refuse
// documents with the names in it that start with a dollar sign.
type heldDoc struct {
	ID      heldID         `bson:"_id"`
	Unbuilt bool           `bson:"unbuilt"`
	Expire  *bson.RawValue `bson:"expire,omitempty"`
	Was     *bson.RawValue `bson:"was,omitempty"`
	Spec    []byte         `bson:"spec,omitempty"`
}

func (t *Target) heldStore() *driver.Collection {
	return t.c.Client.Database(mongo.StateDB).Collection(heldCollection)
}

// Held lists what is held back for the job, by namespace and index.
func (t *Target) Held(ctx context.Context) ([]HeldSetting, error) {
	return t.held(ctx, bson.D{})
}

func (t *Target) held(ctx context.Context, more bson.D) ([]HeldSetting, error) {
	filter := append(bson.D{{Key: "_id.job", Value: t.o.Job}}, more...)
	cur, err := t.heldStore().Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	var docs []heldDoc
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is held back: %w", err)
	}
	var out []HeldSetting
	for _, d := range docs {
		out = append(out, HeldSetting{NS: d.ID.NS, Index: d.ID.Index, Unbuilt: d.Unbuilt, Expire: d.Expire, Was: d.Was, Spec: d.Spec})
	}
	return out, nil
}

// heldOne reads what is held back for one index (or, with an empty name, for
// the collection itself).
func (t *Target) heldOne(ctx context.Context, ns, index string) (HeldSetting, bool, error) {
	found, err := t.held(ctx, bson.D{{Key: "_id.ns", Value: ns}, {Key: "_id.index", Value: index}})
	if err != nil || len(found) == 0 {
		return HeldSetting{NS: ns, Index: index}, false, err
	}
	return found[0], true, nil
}

// hold stores settings durably; one with nothing left to hold is removed. An
// expiry that the target had before is never forgotten so: it stands in again.
func (t *Target) hold(ctx context.Context, settings ...HeldSetting) error {
	var updates, deletes []bson.D
	for _, h := range settings {
		id := heldID{Job: t.o.Job, NS: h.NS, Index: h.Index}
		filter := bson.D{{Key: "_id", Value: id}}
		if !h.Unbuilt && h.Expire == nil {
			own := append(filter, bson.E{Key: "was", Value: bson.D{{Key: "$exists", Value: true}}})
			updates = append(updates, bson.D{{Key: "q", Value: own}, {Key: "u", Value: standIn()}})
			deletes = append(deletes, append(filter, bson.E{Key: "was", Value: bson.D{{Key: "$exists", Value: false}}}))
			continue
		}
		set := bson.D{{Key: "unbuilt", Value: h.Unbuilt}, {Key: "spec", Value: []byte(h.Spec)}}
		unset := bson.D{}
		if h.Was != nil {
			set = append(set, bson.E{Key: "was", Value: h.Was})
		}
		if h.Expire != nil {
			set = append(set, bson.E{Key: "expire", Value: h.Expire})
		} else {
			unset = append(unset, bson.E{Key: "expire", Value: ""})
		}
		update := bson.D{{Key: "$set", Value: set}}
		if len(unset) > 0 {
			update = append(update, bson.E{Key: "$unset", Value: unset})
		}
		updates = append(updates, bson.D{{Key: "q", Value: filter}, {Key: "u", Value: update}, {Key: "upsert", Value: true}})
	}
	_, err := t.c.UpdateState(ctx, heldCollection, "majority", updates...)
	if err == nil {
		_, err = t.c.DeleteState(ctx, heldCollection, "majority", deletes...)
	}
	if err != nil {
		return fmt.Errorf("record what is held back for %s: %w", settings[0].NS, err)
	}
	return nil
}

// standIn makes the expiry that the target had the one to be restored.
func standIn() bson.A {
	return bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "unbuilt", Value: false}, {Key: "expire", Value: "$was"}}}}}
}

// holdExpiry holds the expiry of a collection back.
func (t *Target) holdExpiry(ctx context.Context, ns string, expire bson.RawValue) error {
	return t.hold(ctx, HeldSetting{NS: ns, Expire: &expire})
}

// unhold forgets what is held back for an index, or for all of a namespace.
func (t *Target) unhold(ctx context.Context, ns, index string) error {
	filter := bson.D{{Key: "_id.job", Value: t.o.Job}, {Key: "_id.ns", Value: ns}}
	if index != "" {
		filter = append(filter, bson.E{Key: "_id.index", Value: index})
	}
	if _, err := t.c.DeleteState(ctx, heldCollection, "majority", filter); err != nil {
		return fmt.Errorf("forget what is held back for %s: %w", ns, err)
	}
	return nil
}

// moveHeld renames what is held back. Done again after a crash it goes on
// where it stopped.
func (t *Target) moveHeld(ctx context.Context, from, to string) error {
	found, err := t.held(ctx, bson.D{{Key: "_id.ns", Value: from}})
	if err != nil {
		return err
	}
	for _, h := range found {
		h.NS = to
		if err := t.hold(ctx, h); err != nil {
			return err
		}
	}
	return t.unhold(ctx, from, "")
}

// Forget removes all that is held back for the job: for one that begins anew.
// The expiries that the target had before stay held back, and known.
func (t *Target) Forget(ctx context.Context) error {
	own := bson.D{{Key: "_id.job", Value: t.o.Job}, {Key: "was", Value: bson.D{{Key: "$exists", Value: true}}}}
	again := bson.D{{Key: "q", Value: own}, {Key: "u", Value: standIn()}, {Key: "multi", Value: true}}
	if _, err := t.c.UpdateState(ctx, heldCollection, "majority", again); err != nil {
		return fmt.Errorf("forget what is held back: %w", err)
	}
	rest := bson.D{{Key: "_id.job", Value: t.o.Job}, {Key: "was", Value: bson.D{{Key: "$exists", Value: false}}}}
	if _, err := t.c.DeleteState(ctx, heldCollection, "majority", rest); err != nil {
		return fmt.Errorf("forget what is held back: %w", err)
	}
	return nil
}
