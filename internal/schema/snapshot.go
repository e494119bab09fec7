package schema

import (
	"cmp"
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
	// listAttempts bounds how often changed namespaces are listed again.
	listAttempts = 60
	listPause    = 100 * time.Millisecond
	// namesAtOnce bounds the collections of a database that are listed by name.
	namesAtOnce = 1000
)

// Changes calls fn for a source's schema changes in (after, until].
type Changes func(ctx context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error

// TakeSnapshot lists the catalog in scope exactly as of a majority-committed position, which is zero
// for a standalone. See TakeSnapshotOf.
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
		// Below the majority position the oplog has no holes: the listing sees all of it.
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

// History is the positions around a listing, and the changes.
type History struct {
	// Before returns a position that the next listing includes, After one that includes all that it
	// can have shown. After fails after an election since the first Before.
	Before, After func(context.Context) (mongo.OpTime, error)
	Changes       Changes
}

// TakeSnapshotOf is TakeSnapshot for any deployment. It lists the catalog of the first server, and
// the names of the others.
//
// What no change concerned during a listing is known at the position before it, and stays known
// until a change concerns it. The rest is listed again, in less time: it is enough that what changed
// during one listing does not change during a later one.
func TakeSnapshotOf(ctx context.Context, servers []*mongo.Cluster, scope Scope, h History) (Snapshot, error) {
	l := lister{servers: servers, scope: scope, known: make([]map[string]Collection, len(servers))}
	unknown := altered{"": "all is new"}
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
			if err := scope.alter(ctx, unknown, h.Changes, last, before); err != nil {
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
		meanwhile := altered{}
		if err := scope.alter(ctx, meanwhile, h.Changes, before, end); err != nil {
			return Snapshot{}, err
		}
		if unknown = meanwhile.within(unknown); len(unknown) == 0 {
			return l.snapshot(ctx, before)
		}
		last = before
	}
	return Snapshot{}, mongo.WithHint(
		fmt.Errorf("the catalog of %s changed during each of %d attempts to list it; the last time by %s",
			servers[0].Address(), listAttempts, unknown),
		"start when fewer collections and indexes are being created, or exclude the namespaces concerned")
}

// altered has a change of each namespace that changes concern, under "" one that concerns all.
type altered map[string]string

func (s Scope) alter(ctx context.Context, a altered, changes Changes, after, until mongo.OpTime) error {
	return changes(ctx, after, until, func(ch *stream.Change, at mongo.OpTime) error {
		if !s.concerned(*ch) {
			return nil
		}
		what := fmt.Sprintf("%s of %s at %s", ch.Kind, ch.NS, at)
		switch ch.Kind {
		case stream.ChangeDropAllViews:
			a[""] = what
			return nil
		case stream.ChangeRename:
			a[ch.To] = what
		}
		a[ch.NS] = what
		return nil
	})
}

func (a altered) within(b altered) altered {
	if b[""] != "" {
		return a
	}
	out := altered{}
	for ns := range b {
		if what := cmp.Or(a[ns], a[""]); what != "" {
			out[ns] = what
		}
	}
	return out
}

// String names one of the changes.
func (a altered) String() string {
	for _, what := range a {
		return cmp.Or(a[""], what)
	}
	return ""
}

type lister struct {
	servers []*mongo.Cluster
	scope   Scope
	known   []map[string]Collection // per server, by namespace
}

func (l *lister) list(ctx context.Context, unknown altered) error {
	return sideBySide(ctx, listParallel, slices.All(l.servers), func(ctx context.Context, i int, c *mongo.Cluster) error {
		var found []Collection
		var err error
		if unknown[""] != "" {
			l.known[i] = map[string]Collection{}
			found, err = listNames(ctx, c, l.scope)
		} else {
			maps.DeleteFunc(l.known[i], func(ns string, _ Collection) bool { return unknown[ns] != "" })
			found, err = listSome(ctx, c, l.scope, slices.Sorted(maps.Keys(unknown)))
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

func listSome(ctx context.Context, c *mongo.Cluster, scope Scope, names []string) ([]Collection, error) {
	byDB := map[string][]string{}
	for _, ns := range names {
		if db, _ := mongo.SplitNS(ns); scope.DB == nil || scope.DB(db) {
			byDB[db] = append(byDB[db], ns)
		}
	}
	return gather(ctx, slices.Sorted(maps.Keys(byDB)), func(ctx context.Context, db string) ([]Collection, error) {
		filter := bson.D{}
		if len(byDB[db]) <= namesAtOnce {
			var these []string
			for _, ns := range byDB[db] {
				_, name := mongo.SplitNS(ns)
				these = append(these, name, mongo.BucketsPrefix+name)
			}
			filter = bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: these}}}}
		}
		return listDB(ctx, c, db, filter, func(ns string) bool {
			_, listed := slices.BinarySearch(byDB[db], ns)
			return listed && scope.NS(ns)
		})
	})
}

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
