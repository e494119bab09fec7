package changestream

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// Support says what a deployment's change streams report.
type Support struct {
	Expanded bool // showExpandedEvents (6.0): all schema changes, UUIDs
	Raw      bool // showRawUpdateDescription (6.0): updates as they are in oplogs
	Split    bool // $changeStreamSplitLargeEvent (6.0.9): events above 16 MB
	System   bool // showSystemEvents (6.0): time series, system.js
	// Copies: showMigrationEvents of a replica set, where it shows what servers copy for convertToCapped,
	// cloneCollectionAsCapped and, before 6.0, renames between databases. In a sharded cluster it would also
	// show chunk migrations.
	Copies bool
}

func (s Support) options() (out bson.D) {
	for _, o := range []struct {
		on   bool
		name string
	}{{s.Expanded, "showExpandedEvents"}, {s.Raw, "showRawUpdateDescription"}, {s.System, "showSystemEvents"},
		{s.Copies, "showMigrationEvents"}} {
		if o.on {
			out = append(out, bson.E{Key: o.name, Value: true})
		}
	}
	return out
}

// Probe opens change streams to find out what a deployment reports. It fails where there are none at all, or
// where the user may not read them.
func Probe(ctx context.Context, c *mongo.Cluster) (s Support, err error) {
	if _, err := present(ctx, c, Support{}); err != nil {
		return Support{}, err
	}
	options := map[*bool]Support{&s.Expanded: {Expanded: true}, &s.Raw: {Raw: true}, &s.Split: {Split: true},
		&s.System: {System: true}}
	if c.Info.Kind == mongo.KindReplicaSet && c.Info.Role == "" {
		options[&s.Copies] = Support{Copies: true}
	}
	for option, with := range options {
		_, err := present(ctx, c, with)
		if err != nil && (!mongo.Reported(err) || mongo.Classify(err) == mongo.ClassRetry) {
			return Support{}, err
		}
		*option = err == nil
	}
	return s, nil
}

// Start returns the present position with its token: Run from there reads what is committed later.
func Start(ctx context.Context, c *mongo.Cluster) (stream.Position, error) {
	t, err := present(ctx, c, Support{})
	if err != nil {
		return stream.Position{}, err
	}
	return stream.Position{At: t.at().Previous(), Mark: t.mark()}, nil
}

// present opens a change stream at the present and returns its first token.
func present(ctx context.Context, c *mongo.Cluster, with Support) (t token, err error) {
	conn, err := c.Checkout(ctx, c.Reader())
	if err != nil {
		return t, err
	}
	defer conn.Release()
	pipeline, err := Options{Support: with}.pipeline(stream.Position{})
	if err != nil {
		return t, err
	}
	cur, err := conn.OpenCursor(ctx, "admin", aggregate(pipeline, "millrace looks for change streams"),
		wire.CursorOptions{})
	if err != nil {
		return t, mongo.NeedsRole(fmt.Errorf("open a change stream of %s: %w", conn.Addr(), err), grantHint)
	}
	defer cur.Close(ctx)
	b, err := cur.Next(ctx)
	if err == nil {
		t, err = parseToken(b.Token)
	}
	return t, mongo.Wrap(err, "open a change stream of %s", conn.Addr())
}

const grantHint = "grant the source's user the role readAnyDatabase on admin, which includes changeStream on all " +
	"databases"
