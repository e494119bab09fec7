package job

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// loadNames reads which namespaces of the source the job has on the target, at
// the position from which it goes on.
func (j *Job) loadNames(ctx context.Context) error {
	catalog, err := j.store.LoadCatalog(ctx)
	j.names = state.Names(catalog)
	return err
}

// keepNames keeps the names true after a schema change.
func (j *Job) keepNames(ctx context.Context, ch stream.Change) error {
	return j.changeNames(ctx, j.names.After(ch, j.rules))
}

// neverCame notes that a collection which a rename brought inside the filter is
// gone from the source already: until its drop comes, nothing is applied to it.
func (f *follower) neverCame(ctx context.Context, ev *stream.Event, effect schema.Effect) error {
	j := f.j
	there, err := j.cat.Has(ctx, effect.ResyncNS)
	if err != nil {
		return err
	}
	if ahead := !f.job.Consistent.Before(ev.At); there && ahead {
		return nil // a target that was filled by other means has it still
	}
	j.log.Info("the renamed collection is gone from the source; what is left until its drop is skipped", "ns", ev.Change.To, "position", ev.At)
	one, _ := j.names.Source(ev.Change.To)
	one.Gone = true
	return j.changeNames(ctx, schema.NameChange{Put: []schema.Name{one}})
}

func (j *Job) changeNames(ctx context.Context, change schema.NameChange) error {
	if change.IsZero() {
		return nil
	}
	if err := j.store.NoteNames(ctx, change); err != nil {
		return err
	}
	j.names.Change(change)
	return nil
}

// mappedNames are names in the form of a catalog.
func mappedNames(names []schema.Name) []state.Mapped {
	out := make([]state.Mapped, len(names))
	for i, n := range names {
		out[i] = state.Mapped{Collection: schema.Collection{NS: n.NS, Type: n.Type, UUID: n.UUID, Options: bson.Raw{5, 0, 0, 0, 0}}, Target: n.Target}
	}
	return out
}

// absent tells of a source namespace that has nothing on the target yet.
func (j *Job) absent(ns string) bool {
	db, coll := mongo.SplitNS(ns)
	one, _ := j.names.Source(db + "." + strings.TrimPrefix(coll, mongo.BucketsPrefix))
	return one.Gone
}

// holdTTL holds back what expires on the target of collections that somebody
// else made, or changed while no process of the job ran: once a process, and
// not where this one makes all of them.
func (j *Job) holdTTL(ctx context.Context) error {
	if j.ttlHeld || !j.resumed && j.spec.Mode != ModeIncremental {
		return nil
	}
	catalog, err := j.store.LoadCatalog(ctx)
	if err != nil {
		return err
	}
	if err := j.cat.DeferExpiries(ctx, state.Names(catalog).Targets()); err != nil {
		return err
	}
	j.ttlHeld = true
	return nil
}
