package changestream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

const (
	// slowAfter is how long a reply may take until its wait is named, and then named again.
	slowAfter = 10 * time.Second
	// checkAfter is how many such times pass until the server is asked whether it still works at the reply.
	checkAfter = 6
	// checkTimeout bounds that question.
	checkTimeout = 30 * time.Second
)

// errCut ends an exchange whose connection was cut silently.
var errCut = errors.New("the server does not work at the reply")

// patiently runs an exchange without a limit of time. From a position far back a server searches its oplog
// within one reply, and after a time-out it would begin again.
func (r *reader) patiently(ctx context.Context, exchange func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		if err := r.watch(ctx, over); err != nil {
			cancel(err)
		}
	}()
	err := exchange(ctx)
	close(over)
	<-watched
	if cause := context.Cause(ctx); errors.Is(cause, errCut) && err != nil {
		err = mongo.Retry("wait for changes", cause, "")
	}
	cancel(nil)
	return err
}

// watch names a wait that takes long, and returns errCut if the server does not work at the reply.
func (r *reader) watch(ctx context.Context, over <-chan struct{}) error {
	began := time.Now()
	timer := time.NewTicker(r.s.slow)
	defer timer.Stop()
	for n := 1; ; n++ {
		select {
		case <-over:
			if n > 1 {
				r.s.opt.Waiting("")
			}
			return nil
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		r.s.opt.Waiting(fmt.Sprintf("%s to search its oplog from %s (%s) for the next change, for %s so far",
			r.conn.Addr(), r.from.At, r.from.At.Time().Format("2006-01-02 15:04:05Z"), time.Since(began).Round(time.Second)))
		if n%checkAfter == 0 && !r.working(ctx) {
			return errCut
		}
	}
}

// working reports that the server works at the reply, or that this cannot be known.
func (r *reader) working(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn, err := r.s.cluster.Pool.Checkout(ctx, wire.ByAddress(r.conn.Addr()))
	if err != nil {
		return false
	}
	defer conn.Release()
	current := bson.D{{Key: "allUsers", Value: false}}
	if r.s.cluster.Info.Kind == mongo.KindSharded {
		current = append(current, bson.E{Key: "localOps", Value: true})
	}
	reply, err := conn.Run(ctx, "admin", bson.D{
		{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: current}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
				bson.D{{Key: "command.comment", Value: r.name}},
				bson.D{{Key: "cursor.originatingCommand.comment", Value: r.name}},
			}}}}},
			bson.D{{Key: "$limit", Value: 1}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "op", Value: 1}}}},
		}},
	})
	if err != nil {
		return mongo.Reported(err) // the user may not ask
	}
	first, err := bson.Raw(reply).LookupErr("cursor", "firstBatch", "0")
	return err == nil && len(first.Value) > 0
}
