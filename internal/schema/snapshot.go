package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/stream"
)

const (
	// listAttempts bounds how often a listing is tried that a schema change crossed.
	listAttempts = 12
	// listPause is the wait before the second attempt; it doubles up to maxListPause.
	listPause    = 100 * time.Millisecond
	maxListPause = 5 * time.Second
)

// Changes tells of the schema changes of a source after a position, up to another.
type Changes func(ctx context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error

// TakeSnapshot lists the part of the catalog in scope exactly as it stood at a
// majority-committed position. It lists, and asks for the schema changes from the
// majority position before to the newest one after: when there is none, the
// listing is the catalog at the former. Otherwise it lists again, and gives up
// with an error that names the change in the way. A standalone has no history:
// there the position is zero.
func TakeSnapshot(ctx context.Context, c *mongo.Cluster, scope Scope, changes Changes) (Snapshot, error) {
	if c.Info.Kind == mongo.KindStandalone {
		colls, err := List(ctx, c, scope)
		return Snapshot{Collections: colls}, err
	}
	return TakeSnapshotOf(ctx, c, scope, History{
		// Below the majority position the oplog has no holes: what is at or before
		// it is visible to the listing.
		Before: func(ctx context.Context) (mongo.OpTime, error) {
			p, err := c.Positions(ctx)
			return p.Majority, err
		},
		After: c.CommittedSeen, Changes: changes,
	})
}

// History is when something is listed, and what happens meanwhile.
type History struct {
	// Before gives a position all of which the listing that follows shows, After one
	// that holds all that the listing can have shown. Another term says that a
	// primary was elected in between.
	Before, After func(context.Context) (mongo.OpTime, error)
	Changes       Changes
}

// TakeSnapshotOf is TakeSnapshot for any deployment.
func TakeSnapshotOf(ctx context.Context, c *mongo.Cluster, scope Scope, h History) (Snapshot, error) {
	var obstacle string
	pause := listPause
	for attempt := 0; attempt < listAttempts; attempt++ {
		if attempt > 0 {
			if err := pace.Pause(ctx, pause); err != nil {
				return Snapshot{}, err
			}
			pause = min(2*pause, maxListPause)
		}
		var snap Snapshot
		var err error
		if snap, obstacle, err = trySnapshot(ctx, c, scope, h); err != nil {
			return Snapshot{}, err
		}
		if obstacle == "" {
			return snap, estimate(ctx, c, snap.Collections)
		}
	}
	return Snapshot{}, mongo.WithHint(
		fmt.Errorf("the catalog of %s changed during each of %d attempts to list it; the last time by %s", c.Address(), listAttempts, obstacle),
		"start when fewer collections and indexes are being created, or exclude the namespaces concerned")
}

// trySnapshot lists once; obstacle tells why the listing is no snapshot.
func trySnapshot(ctx context.Context, c *mongo.Cluster, scope Scope, h History) (snap Snapshot, obstacle string, err error) {
	before, err := h.Before(ctx)
	if err != nil {
		return snap, "", err
	}
	colls, err := list(ctx, c, scope)
	if err != nil {
		return snap, "", err
	}
	end, err := h.After(ctx)
	if err != nil {
		return snap, "", err
	}
	if end.Term != before.Term {
		return snap, "an election", nil
	}
	obstacle, err = scope.firstOf(ctx, h.Changes, before, end)
	return Snapshot{At: before, Collections: colls}, obstacle, err
}

// firstOf describes the first change that concerns something in scope; "" when
// there is none.
func (s Scope) firstOf(ctx context.Context, changes Changes, after, until mongo.OpTime) (what string, err error) {
	enough := errors.New("enough")
	err = changes(ctx, after, until, func(ch *stream.Change, at mongo.OpTime) error {
		if !s.concerned(*ch) {
			return nil
		}
		what = fmt.Sprintf("%s of %s at %s", ch.Kind, ch.NS, at)
		return enough
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return what, err
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
