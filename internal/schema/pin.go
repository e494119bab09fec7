package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

const (
	// pinAttempts bounds how often a listing is tried that a schema change crossed.
	pinAttempts = 12
	// pinPause is the wait before the second attempt; it doubles up to maxPinPause.
	pinPause    = 100 * time.Millisecond
	maxPinPause = 5 * time.Second
)

// Pin lists the part of the catalog in scope exactly as it stood at a
// majority-committed position. It lists, and reads the oplog from the majority
// position before to the newest one after: when no schema change lies between,
// the listing is the catalog at the former. Otherwise it lists again, and gives
// up with an error that names the change in the way. A standalone has no
// oplog: there the position is zero.
func Pin(ctx context.Context, c *mongo.Cluster, scope Scope) (Snapshot, error) {
	if c.Info.Kind == mongo.KindStandalone {
		colls, err := List(ctx, c, scope)
		return Snapshot{Collections: colls}, err
	}
	var obstacle string
	pause := pinPause
	for attempt := 0; attempt < pinAttempts; attempt++ {
		if attempt > 0 {
			if err := sleep(ctx, pause); err != nil {
				return Snapshot{}, err
			}
			pause = min(2*pause, maxPinPause)
		}
		var snap Snapshot
		var err error
		if snap, obstacle, err = tryPin(ctx, c, scope); err != nil {
			return Snapshot{}, err
		}
		if obstacle == "" {
			return snap, estimate(ctx, c, snap.Collections)
		}
	}
	return Snapshot{}, mongo.WithHint(
		fmt.Errorf("the catalog of %s changed during each of %d attempts to list it; the last time by %s", c.Address(), pinAttempts, obstacle),
		"start when fewer collections and indexes are being created, or exclude the namespaces concerned")
}

// tryPin lists once; obstacle tells why the listing is no snapshot.
func tryPin(ctx context.Context, c *mongo.Cluster, scope Scope) (snap Snapshot, obstacle string, err error) {
	// Below the majority position the oplog has no holes: what is at or before
	// it is visible to the listing.
	before, err := c.Positions(ctx)
	if err != nil {
		return snap, "", err
	}
	colls, err := list(ctx, c, scope)
	if err != nil {
		return snap, "", err
	}
	end, err := c.CommittedSeen(ctx)
	if err != nil {
		return snap, "", err
	}
	if end.Term != before.Majority.Term {
		return snap, "an election", nil
	}
	obstacle, err = schemaChangeIn(ctx, c, before.Majority, end, scope)
	return Snapshot{At: before.Majority, Collections: colls}, obstacle, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// oplogEntry is what of an entry can matter to the catalog.
type oplogEntry struct {
	TS bson.Timestamp `bson:"ts"`
	Op string         `bson:"op"`
	NS string         `bson:"ns"`
	UI *bson.Binary   `bson:"ui"`
	O  bson.Raw       `bson:"o"`
	O2 bson.Raw       `bson:"o2"`
}

// schemaChangeIn describes the first schema change after from, up to to, that
// concerns something in scope; "" when there is none.
func schemaChangeIn(ctx context.Context, c *mongo.Cluster, from, to mongo.OpTime, scope Scope) (string, error) {
	wrap := func(err error) error { return fmt.Errorf("read oplog of %s for schema changes: %w", c.Address(), err) }
	cur, err := c.Client.Database("local").RunCommandCursor(ctx, bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: from.TS}, {Key: "$lte", Value: to.TS}}},
			{Key: "$or", Value: bson.A{
				bson.D{{Key: "op", Value: "c"}},
				bson.D{{Key: "ns", Value: bson.Regex{Pattern: `\.system\.views$`}}},
			}},
		}},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: 1}}},
		// A primary elected since may not know yet that all this is committed.
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: to.TS}}},
	}, options.RunCmd().SetReadPreference(readpref.Primary()))
	if err != nil {
		return "", wrap(err)
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		var e oplogEntry
		if err := bson.Unmarshal(cur.Current, &e); err != nil {
			return "", wrap(err)
		}
		what, err := e.touches(scope)
		if err != nil {
			return "", wrap(fmt.Errorf("entry at %d:%d: %w", e.TS.T, e.TS.I, err))
		}
		if what != "" {
			return fmt.Sprintf("%s at %d:%d", what, e.TS.T, e.TS.I), nil
		}
	}
	if err := cur.Err(); err != nil {
		return "", wrap(err)
	}
	return "", nil
}

// touches describes the schema change of an entry if it concerns something in scope.
func (e oplogEntry) touches(scope Scope) (string, error) {
	db, coll := mongo.SplitNS(e.NS)
	var ch stream.Change
	var effect bool
	var err error
	switch {
	case e.Op == "c" && has(e.O, "applyOps"):
		return e.nestedTouches(scope)
	case e.Op == "c" && (has(e.O, "commitTransaction") || has(e.O, "abortTransaction")):
		return "", nil
	case e.Op == "c":
		ch, effect, err = ParseChange(e.NS, e.UI, e.O)
	case coll == "system.views" && strings.Contains("iud", e.Op):
		ch, effect, err = ParseViewWrite(e.Op[0], db, e.O, e.O2)
	}
	if err != nil || !effect || !scope.concerned(ch) {
		return "", err
	}
	return string(ch.Kind) + " of " + ch.NS, nil
}

func (e oplogEntry) nestedTouches(scope Scope) (string, error) {
	arr, ok := e.O.Lookup("applyOps").ArrayOK()
	if !ok {
		return "", errors.New("malformed applyOps")
	}
	values, err := arr.Values()
	if err != nil {
		return "", err
	}
	for _, v := range values {
		inner := oplogEntry{TS: e.TS}
		if err := v.Unmarshal(&inner); err != nil {
			return "", err
		}
		if what, err := inner.touches(scope); what != "" || err != nil {
			return what, err
		}
	}
	return "", nil
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
