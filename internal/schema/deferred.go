package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// deferredCollection keeps what is deferred, in the target's database
// mongo.StateDB: one document for each job, namespace and index.
const deferredCollection = "held"

// Deferred is what the target does not have yet although the source has it.
type Deferred struct {
	DeferredID `bson:"_id"`
	// Unbuilt says that the index is not built yet because it refuses
	// documents; Spec is then all of it.
	Unbuilt bool `bson:"unbuilt"`
	// Expire is the expiry to be set, in seconds, or "off"; nil for none. Of a capped
	// collection it is its limits, as collMod takes them.
	Expire *bson.RawValue `bson:"expire,omitempty"`
	// Was is the expiry that the target had before the job deferred it, or the limits; nil for
	// none. It is what is restored where the source has none to restore, and it
	// outlives a job that begins anew.
	Was *bson.RawValue `bson:"was,omitempty"`
	// Foreign says that Expire is what the target had, and not what the source has.
	Foreign bool `bson:"foreign,omitempty"`
	// Yields says that an index that is not built yet is left out where another one of the target
	// is in its way.
	Yields bool `bson:"yields,omitempty"`
	// Stays says that the target never gets Expire, for documents stay that have expired.
	Stays bool `bson:"stays,omitempty"`
	// Spec is the complete specification of the index on the source. It is kept as bytes, for
	// servers before 5.0 refuse documents whose field names start with a dollar sign.
	Spec []byte `bson:"spec,omitempty"`
}

// limitsIndex stands for the limits of a capped collection in the place of an index:
// servers take none of that name.
const limitsIndex = "*"

// Limits reports that it is the limits of a capped collection.
func (d *Deferred) Limits() bool { return d.Index == limitsIndex }

// explains reports that a difference of the catalogs is one of what is deferred.
func (d *Deferred) explains(what string) bool {
	if d.Absent {
		return false
	}
	switch d.Index {
	case limitsIndex:
		return what == "option size" || what == "option max"
	case "":
		return !d.Stays && what == "option expireAfterSeconds"
	}
	return d.Unbuilt && what == "index "+d.Index || d.Expire != nil && !d.Stays &&
		what == "index "+d.Index+", expireAfterSeconds"
}

// DeferredID says of what something is deferred.
type DeferredID struct {
	Job string `bson:"job"`
	NS  string `bson:"ns"` // target namespace
	// Index names the index; empty for the expiry of a collection, limitsIndex for the
	// limits of a capped one.
	Index string `bson:"index"`
	// Absent says that the target goes without the source's index of that name: what it
	// has under the name, or the key, is another one. The rest is as the source has it.
	Absent bool `bson:"absent,omitempty"`
}

// deferrals keeps what is deferred.
type deferrals struct{ *link }

// of selects what is deferred for the job, of it what more wants.
func (d *deferrals) of(more ...bson.E) bson.D {
	return append(bson.D{mongo.OfJobDocuments(d.o.Job)}, more...)
}

// inNS selects what is deferred of a namespace.
func inNS(ns string) bson.E { return bson.E{Key: "_id.ns", Value: ns} }

// ofIndex selects what is deferred of an index; empty is the collection itself.
func ofIndex(name any) bson.E { return bson.E{Key: "_id.index", Value: name} }

// had selects by whether the target had an expiry of its own.
func had(an bool) bson.E { return bson.E{Key: "was", Value: bson.D{{Key: "$exists", Value: an}}} }

// List reads what is deferred, by namespace and index, of it what more wants; of what the
// target goes without nothing is.
func (d *deferrals) List(ctx context.Context, more ...bson.E) ([]Deferred, error) {
	return readDeferred(ctx, d.c, append(d.of(more...), isAbsent(false)))
}

// AllDeferred lists what a target does not have yet, whichever job deferred it:
// nothing where the user may not read that.
func AllDeferred(ctx context.Context, target *mongo.Cluster) ([]Deferred, error) {
	all, err := readDeferred(ctx, target, bson.D{})
	if mongo.IsCode(err, mongo.CodeUnauthorized) {
		return nil, nil
	}
	return all, err
}

func readDeferred(ctx context.Context, c *mongo.Cluster, filter bson.D) ([]Deferred, error) {
	return mongo.ReadAll[Deferred](ctx, "read what is deferred")(c.Client.Database(mongo.StateDB).
		Collection(deferredCollection).Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))
}

// id is that of an index of a namespace, or with an empty name of the collection
// itself.
func (d *deferrals) id(ns, index string) DeferredID {
	return DeferredID{Job: d.o.Job, NS: ns, Index: index}
}

// one reads what is deferred of one index (or, with an empty name, of the
// collection itself).
func (d *deferrals) one(ctx context.Context, ns, index string) (Deferred, bool, error) {
	found, err := d.List(ctx, inNS(ns), ofIndex(index))
	if err != nil || len(found) == 0 {
		return Deferred{DeferredID: d.id(ns, index)}, false, err
	}
	return found[0], true, nil
}

// save stores settings durably; one with nothing left to defer is removed. An
// expiry that the target had before is never forgotten so: it stands in again.
func (d *deferrals) save(ctx context.Context, settings ...Deferred) error {
	var updates, deletes []bson.D
	for _, s := range settings {
		filter := bson.D{{Key: "_id", Value: s.DeferredID}}
		if !s.Unbuilt && s.Expire == nil && !s.Absent {
			updates = append(updates, bson.D{{Key: "q", Value: append(filter[:1:1], had(true))}, {Key: "u", Value: standIn()}})
			deletes = append(deletes, append(filter[:1:1], had(false)))
			continue
		}
		set := bson.D{{Key: "unbuilt", Value: s.Unbuilt}, {Key: "foreign", Value: s.Foreign},
			{Key: "stays", Value: d.o.keepsExpired(s.NS)}, {Key: "spec", Value: s.Spec}, {Key: "yields", Value: s.Yields}}
		if s.Was != nil {
			set = append(set, bson.E{Key: "was", Value: s.Was})
		}
		var update bson.D
		if s.Expire != nil {
			set = append(set, bson.E{Key: "expire", Value: s.Expire})
		} else {
			update = bson.D{{Key: "$unset", Value: bson.D{{Key: "expire", Value: ""}}}}
		}
		update = append(update, bson.E{Key: "$set", Value: set})
		updates = append(updates, bson.D{{Key: "q", Value: filter}, {Key: "u", Value: update}, {Key: "upsert", Value: true}})
	}
	_, err := d.c.UpdateState(ctx, deferredCollection, "majority", updates...)
	if err == nil {
		_, err = d.c.DeleteState(ctx, deferredCollection, "majority", deletes...)
	}
	if err != nil {
		return fmt.Errorf("record what is deferred of %s: %w", settings[0].NS, err)
	}
	return nil
}

// standIn makes the expiry that the target had the one to be restored.
func standIn() bson.A {
	return bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "unbuilt", Value: false}, {Key: "foreign", Value: true},
		{Key: "expire", Value: "$was"}}}}}
}

// forget removes what is deferred.
func (d *deferrals) forget(ctx context.Context, what ...bson.E) error {
	if _, err := d.c.DeleteState(ctx, deferredCollection, "majority", d.of(what...)); err != nil {
		return fmt.Errorf("forget what is deferred: %w", err)
	}
	return nil
}

// move renames what is deferred. Done again after a crash it goes on where it
// stopped.
func (d *deferrals) move(ctx context.Context, from, to string) error {
	found, err := readDeferred(ctx, d.c, d.of(inNS(from)))
	if err != nil {
		return err
	}
	absent, err := d.absent(ctx, to)
	if err != nil {
		return err
	}
	for _, one := range found {
		if slices.ContainsFunc(absent, func(a Deferred) bool { return a.Index == one.Index }) {
			continue // of a collection that has joined another one
		}
		one.NS = to
		if err := d.save(ctx, one); err != nil {
			return err
		}
	}
	return d.forget(ctx, inNS(from))
}

// Waiting is what waits for the target to be consistent, or for finalize.
type Waiting struct {
	Indexes  bool // to be built
	Expiries bool // to be restored, or limits of capped collections
	Expires  bool // among them one by which documents go by themselves from then on
}

// Waits reports what is deferred for the job.
func (d *deferrals) Waits(ctx context.Context) (w Waiting, err error) {
	all, err := d.List(ctx)
	for _, one := range all {
		w.Indexes = w.Indexes || one.Unbuilt
		w.Expiries = w.Expiries || one.Expire != nil
		w.Expires = w.Expires || one.Expire != nil && !one.Limits() && !d.o.keepsExpired(one.NS)
	}
	return w, err
}

// ForgetAll removes all that is deferred for the job, what the target had before
// included: for one that is given up.
func (d *deferrals) ForgetAll(ctx context.Context) error { return d.forget(ctx) }

// GiveUp forgets an index that is not built: the target goes without it.
func (d *deferrals) GiveUp(ctx context.Context, ix IndexName) error {
	return d.forget(ctx, inNS(ix.NS), ofIndex(ix.Name))
}

// Forget removes all that is deferred for the job: for one that begins anew.
// The expiries that the target had before stay deferred, and known.
func (d *deferrals) Forget(ctx context.Context) error {
	again := bson.D{{Key: "q", Value: d.of(had(true))}, {Key: "u", Value: standIn()}, {Key: "multi", Value: true}}
	if _, err := d.c.UpdateState(ctx, deferredCollection, "majority", again); err != nil {
		return fmt.Errorf("forget what is deferred: %w", err)
	}
	return d.forget(ctx, had(false))
}
