package changestream

import (
	"context"
	"errors"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// errOver ends a look.
var errOver = errors.New("the span is over")

// Look calls fn, in order, for the span's events of the namespaces that o.Keep takes, and for all schema
// changes. Those that cannot be followed have kind and names only. fn must not keep the event. Look waits until
// the stream has passed the span.
func Look(ctx context.Context, c *mongo.Cluster, o Options, span oplog.Span, fn func(*stream.Event) error) error {
	if !span.After.Before(span.Until) {
		return nil
	}
	o.names = true
	err := New(c, o).Run(ctx, stream.Position{At: span.After}, func(_ context.Context, b *stream.Batch) error {
		for i := range b.Events {
			if span.Until.Before(b.Events[i].At) {
				return errOver
			}
			if err := fn(&b.Events[i]); err != nil {
				return err
			}
		}
		if !b.End.Before(span.Until) {
			return errOver
		}
		return nil
	})
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}

// Changes returns a function that calls fn for the schema changes after a position, up to another. Changes
// that cannot be followed have kind and names only. Before 6.0 there are drops and renames only.
func Changes(c *mongo.Cluster, s Support) schema.Changes {
	return func(ctx context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error {
		o := Options{Support: s, Keep: func(string) bool { return false },
			match: []string{"insert", "update", "replace", "delete"}}
		return Look(ctx, c, o, oplog.Span{After: after, Until: until}, func(ev *stream.Event) error {
			return fn(ev.Change, ev.At)
		})
	}
}
