package schema

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// deferredCollection of mongo.StateDB on the target has a document per job, namespace and index.
const deferredCollection = "held"

// Deferred is what the source has and the target does not have yet.
type Deferred struct {
	DeferredID `bson:"_id"`
	// Unbuilt: the index is not built yet because it refuses documents. Spec has all of it.
	Unbuilt bool `bson:"unbuilt"`
	// Expire is the expiry to set, in seconds or "off", or the limits of a capped collection as
	// collMod takes them; nil for none.
	Expire *bson.RawValue `bson:"expire,omitempty"`
	// Was is the expiry, or the limits, that the target had before; nil for none. It is restored
	// where the source has none, and it outlives a restart of the job.
	Was *bson.RawValue `bson:"was,omitempty"`
	// Foreign: Expire is what the target had, not the source.
	Foreign bool `bson:"foreign,omitempty"`
	// Yields: the unbuilt index is left out if another one is in its way.
	Yields bool `bson:"yields,omitempty"`
	// Stays: the target never gets Expire, as expired documents stay.
	Stays bool `bson:"stays,omitempty"`
	// Spec is the specification on the source. It is kept as bytes, as servers before 5.0 refuse
	// field names with a leading dollar.
	Spec []byte `bson:"spec,omitempty"`
}

// limitsIndex stands for the limits of a capped collection; no index can have this name.
const limitsIndex = "*"

// Limits reports the limits of a capped collection.
func (d *Deferred) Limits() bool { return d.Index == limitsIndex }

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

// DeferredID identifies what is deferred.
type DeferredID struct {
	Job string `bson:"job"`
	NS  string `bson:"ns"` // target namespace
	// Index names the index; empty is the expiry of a collection, limitsIndex its limits.
	Index string `bson:"index"`
	// Absent: the target lacks the source's index of that name, as another one has its name or key.
	Absent bool `bson:"absent,omitempty"`
}

type deferrals struct{ *link }

func (d *deferrals) of(more ...bson.E) bson.D {
	return append(bson.D{mongo.OfJobDocuments(d.o.Job)}, more...)
}

func inNS(ns string) bson.E { return bson.E{Key: "_id.ns", Value: ns} }

func ofIndex(name any) bson.E { return bson.E{Key: "_id.index", Value: name} }

func had(an bool) bson.E { return bson.E{Key: "was", Value: bson.D{{Key: "$exists", Value: an}}} }

// List reads the job's records that match more, by namespace and index, without absent indexes.
func (d *deferrals) List(ctx context.Context, more ...bson.E) ([]Deferred, error) {
	return readDeferred(ctx, d.c, append(d.of(more...), isAbsent(false)))
}

// AllDeferred lists the records of all jobs; none if the user may not read them.
func AllDeferred(ctx context.Context, target *mongo.Cluster) ([]Deferred, error) {
	all, err := readDeferred(ctx, target, bson.D{})
	if mongo.IsCode(err, mongo.CodeUnauthorized) {
		return nil, nil
	}
	return all, err
}

func readDeferred(ctx context.Context, c *mongo.Cluster, filter bson.D) ([]Deferred, error) {
	return mongo.ReadAll[Deferred](ctx, "read what is deferred")(primaryDB(c, mongo.StateDB).
		Collection(deferredCollection).Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))
}

func (d *deferrals) id(ns, index string) DeferredID {
	return DeferredID{Job: d.o.Job, NS: ns, Index: index}
}

func (d *deferrals) one(ctx context.Context, ns, index string) (Deferred, bool, error) {
	found, err := d.List(ctx, inNS(ns), ofIndex(index))
	if err != nil || len(found) == 0 {
		return Deferred{DeferredID: d.id(ns, index)}, false, err
	}
	return found[0], true, nil
}

// save stores records durably, and deletes those with nothing left to defer. An expiry that the
// target had before is kept, and becomes the one to restore.
func (d *deferrals) save(ctx context.Context, settings ...Deferred) error {
	if none, err := d.nothing(ctx, settings); none || err != nil {
		return err
	}
	var updates, deletes []bson.D
	for _, s := range settings {
		filter := bson.D{{Key: "_id", Value: s.DeferredID}}
		if s.plain() {
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

// plain reports that there is nothing to defer.
func (d *Deferred) plain() bool { return !d.Unbuilt && d.Expire == nil && !d.Absent }

// nothing reports that there is nothing to store and nothing to delete, as for most indexes. A read is cheaper than
// two majority writes for each of thousands of collections.
func (d *deferrals) nothing(ctx context.Context, settings []Deferred) (bool, error) {
	ids := make(bson.A, len(settings))
	for i := range settings {
		if ids[i] = settings[i].DeferredID; !settings[i].plain() {
			return false, nil
		}
	}
	found, err := d.c.Documents(ctx, mongo.StateDB, bson.D{{Key: "find", Value: deferredCollection},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "limit", Value: 1}})
	return len(found) == 0, mongo.Wrap(err, "read what is deferred")
}

// standIn makes the expiry that the target had the one to restore.
func standIn() bson.A {
	return bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "unbuilt", Value: false}, {Key: "foreign", Value: true},
		{Key: "expire", Value: "$was"}}}}}
}

func (d *deferrals) forget(ctx context.Context, what ...bson.E) error {
	_, err := d.c.DeleteState(ctx, deferredCollection, "majority", d.of(what...))
	return mongo.Wrap(err, "forget what is deferred")
}

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

// Waiting is what waits for consistency, or for finalize.
type Waiting struct {
	Indexes  bool // to be built
	Expiries bool // to be restored, or limits of capped collections
	Expires  bool // one of them makes documents expire
}

func (d *deferrals) Waits(ctx context.Context) (w Waiting, err error) {
	all, err := d.List(ctx)
	for _, one := range all {
		w.Indexes = w.Indexes || one.Unbuilt
		w.Expiries = w.Expiries || one.Expire != nil
		w.Expires = w.Expires || one.Expire != nil && !one.Limits() && !d.o.keepsExpired(one.NS)
	}
	return w, err
}

// ForgetAll deletes all records of a job that is given up, with what the target had before.
func (d *deferrals) ForgetAll(ctx context.Context) error { return d.forget(ctx) }

// GiveUp deletes the record of an unbuilt index, which the target will not get.
func (d *deferrals) GiveUp(ctx context.Context, ix IndexName) error {
	return d.forget(ctx, inNS(ix.NS), ofIndex(ix.Name))
}

// Forget deletes the records of a job that begins anew, except expiries that the target had before.
func (d *deferrals) Forget(ctx context.Context) error {
	again := bson.D{{Key: "q", Value: d.of(had(true))}, {Key: "u", Value: standIn()}, {Key: "multi", Value: true}}
	if _, err := d.c.UpdateState(ctx, deferredCollection, "majority", again); err != nil {
		return fmt.Errorf("forget what is deferred: %w", err)
	}
	return d.forget(ctx, had(false))
}
