package schema

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/stream"
)

const (
	// listAttempts bounds how often what changed meanwhile is listed again.
	listAttempts = 60
	// listPause is the wait before that.
	listPause = 100 * time.Millisecond
	// namesAtOnce is how many collections of a database are asked for by name. Of more,
	// all of the database are listed.
	namesAtOnce = 1000
)

// Changes tells of the schema changes of a source after a position, up to another.
type Changes func(ctx context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error

// TakeSnapshot lists the part of the catalog in scope exactly as it stood at a
// majority-committed position. A standalone has no history: there the position is
// zero. See TakeSnapshotOf.
func TakeSnapshot(ctx context.Context, c *mongo.Cluster, scope Scope, changes Changes) (Snapshot, error) {
	if c.Info.Kind == mongo.KindStandalone {
		colls, err := List(ctx, c, scope)
		return Snapshot{Collections: colls}, err
	}
	return TakeSnapshotFrom(ctx, c, scope, changes, mongo.OpTime{})
}

// TakeSnapshotFrom is TakeSnapshot at a position that a majority has, unless what is in scope
// changed between it and now: then the position is a later one. Zero is that of now.
func TakeSnapshotFrom(ctx context.Context, c *mongo.Cluster, scope Scope, changes Changes,
	from mongo.OpTime) (Snapshot, error) {
	term := from.Term
	return TakeSnapshotOf(ctx, []*mongo.Cluster{c}, scope, History{
		// Below the majority position the oplog has no holes: what is at or before
		// it is visible to the listing.
		Before: func(ctx context.Context) (mongo.OpTime, error) {
			if first := from; !first.IsZero() {
				from = mongo.OpTime{}
				return first, nil
			}
			p, err := c.Positions(ctx)
			if err == nil && term == 0 {
				term = p.Majority.Term
			}
			return p.Majority, err
		},
		After: func(ctx context.Context) (mongo.OpTime, error) {
			end, err := c.CommittedSeen(ctx)
			if err == nil && end.Term != term {
				err = mongo.Retry(c.Address()+" has elected another primary while its catalog was listed", nil, "")
			}
			return end, err
		},
		Changes: changes,
	})
}

// History is when something is listed, and what happens meanwhile.
type History struct {
	// Before gives a position all of which the listing that follows shows, After one
	// that holds all that the listing can have shown. After fails when a primary was
	// elected since the first call of Before.
	Before, After func(context.Context) (mongo.OpTime, error)
	Changes       Changes
}

// TakeSnapshotOf is TakeSnapshot for any deployment. It lists the catalog of the first
// of the servers, and the names that the others hold.
//
// What no change concerned while it was listed is known at the position before the
// listing, and stays known until a change concerns it. The rest is listed again, in
// less time. So a catalog that never comes to rest is listed, too: it suffices that of
// what changed during one listing nothing changes during a later one.
func TakeSnapshotOf(ctx context.Context, servers []*mongo.Cluster, scope Scope, h History) (Snapshot, error) {
	l := lister{servers: servers, scope: scope, known: make([]map[string]Collection, len(servers))}
	unknown := altered{all: "all is new"}
	var last mongo.OpTime
	for attempt := range listAttempts {
		if attempt > 0 {
			if err := pace.Pause(ctx, listPause); err != nil {
				return Snapshot{}, err
			}
		}
		before, err := h.Before(ctx)
		if err != nil {
			return Snapshot{}, err
		}
		if attempt > 0 {
			if err := scope.alter(ctx, &unknown, h.Changes, last, before); err != nil {
				return Snapshot{}, err
			}
		}
		if err := l.list(ctx, unknown); err != nil {
			return Snapshot{}, err
		}
		end, err := h.After(ctx)
		if err != nil {
			return Snapshot{}, err
		}
		var meanwhile altered
		if err := scope.alter(ctx, &meanwhile, h.Changes, before, end); err != nil {
			return Snapshot{}, err
		}
		if unknown = meanwhile.within(unknown); unknown.none() {
			return l.snapshot(ctx, before)
		}
		last = before
	}
	return Snapshot{}, mongo.WithHint(
		fmt.Errorf("the catalog of %s changed during each of %d attempts to list it; the last time by %s",
			servers[0].Address(), listAttempts, unknown),
		"start when fewer collections and indexes are being created, or exclude the namespaces concerned")
}

// altered is what schema changes concern.
type altered struct {
	all string            // a change that concerns everything, or ""
	by  map[string]string // a change of each other namespace
}

// alter adds what the changes of a span concern in scope.
func (s Scope) alter(ctx context.Context, a *altered, changes Changes, after, until mongo.OpTime) error {
	return changes(ctx, after, until, func(ch *stream.Change, at mongo.OpTime) error {
		if !s.concerned(*ch) {
			return nil
		}
		what := fmt.Sprintf("%s of %s at %s", ch.Kind, ch.NS, at)
		if ch.Kind == stream.ChangeDropAllViews {
			a.all = what
			return nil
		}
		if a.by == nil {
			a.by = map[string]string{}
		}
		a.by[ch.NS] = what
		if ch.Kind == stream.ChangeRename {
			a.by[ch.To] = what
		}
		return nil
	})
}

// within is what of a is part of b.
func (a altered) within(b altered) altered {
	switch {
	case b.all != "":
		return a
	case a.all == "":
		by := maps.Clone(a.by)
		maps.DeleteFunc(by, func(ns, _ string) bool { return b.by[ns] == "" })
		return altered{by: by}
	}
	by := maps.Clone(b.by)
	for ns := range by {
		by[ns] = a.all
	}
	return altered{by: by}
}

func (a altered) none() bool { return a.all == "" && len(a.by) == 0 }

// String names one of the changes.
func (a altered) String() string {
	if a.all == "" {
		for _, what := range a.by {
			return what
		}
	}
	return a.all
}

// lister knows what of catalogs is listed.
type lister struct {
	servers []*mongo.Cluster
	scope   Scope
	known   []map[string]Collection // of each server, by namespace
}

// list lists again what is not known.
func (l *lister) list(ctx context.Context, unknown altered) error {
	return sideBySide(ctx, listParallel, slices.All(l.servers), func(ctx context.Context, i int, c *mongo.Cluster) error {
		var found []Collection
		var err error
		if unknown.all != "" {
			l.known[i] = map[string]Collection{}
			found, err = listNames(ctx, c, l.scope)
		} else {
			maps.DeleteFunc(l.known[i], func(ns string, _ Collection) bool { return unknown.by[ns] != "" })
			found, err = listSome(ctx, c, l.scope, slices.Sorted(maps.Keys(unknown.by)))
		}
		if err == nil && i == 0 && !l.scope.NamesOnly {
			err = addIndexes(ctx, c, found)
		}
		for _, coll := range found {
			l.known[i][coll.NS] = coll
		}
		return err
	})
}

// listSome lists collections by their names, without indexes.
func listSome(ctx context.Context, c *mongo.Cluster, scope Scope, names []string) ([]Collection, error) {
	byDB := map[string][]string{}
	for _, ns := range names {
		if db, _ := mongo.SplitNS(ns); scope.DB == nil || scope.DB(db) {
			byDB[db] = append(byDB[db], ns)
		}
	}
	found := make([][]Collection, len(byDB))
	err := sideBySide(ctx, listParallel, slices.All(slices.Sorted(maps.Keys(byDB))),
		func(ctx context.Context, i int, db string) (err error) {
			filter := bson.D{}
			if len(byDB[db]) <= namesAtOnce {
				filter = bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: withBuckets(byDB[db])}}}}
			}
			found[i], err = listDB(ctx, c, db, filter, func(ns string) bool {
				_, listed := slices.BinarySearch(byDB[db], ns)
				return listed && scope.NS(ns)
			})
			return err
		})
	return slices.Concat(found...), err
}

// withBuckets are the names within their database, and those of their buckets.
func withBuckets(namespaces []string) (names bson.A) {
	for _, ns := range namespaces {
		_, name := mongo.SplitNS(ns)
		names = append(names, name, mongo.BucketsPrefix+name)
	}
	return names
}

// snapshot is what is known.
func (l *lister) snapshot(ctx context.Context, at mongo.OpTime) (snap Snapshot, err error) {
	snap.At = at
	if snap.Collections, err = inOrder(slices.Collect(maps.Values(l.known[0]))); err != nil {
		return snap, err
	}
	for _, held := range l.known[1:] {
		snap.Others = append(snap.Others, slices.Collect(maps.Values(held)))
	}
	if l.scope.NamesOnly {
		return snap, nil
	}
	return snap, estimate(ctx, l.servers[0], snap.Collections)
}

// concerned reports whether a change matters to what is in scope.
func (s Scope) concerned(ch stream.Change) bool {
	switch ch.Kind {
	case stream.ChangeDropDatabase:
		return false // the drops of its collections come before it
	case stream.ChangeDropAllViews:
		return s.DB == nil || s.DB(ch.NS)
	case stream.ChangeRename:
		return s.NS(ch.NS) || s.NS(ch.To)
	}
	return s.NS(ch.NS)
}
