package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// follower starts a tool that copies and then follows until it is ended.
type follower struct {
	name string
	kind Kind
	how  string
	// start returns as soon as the tool runs, with the way to end it; ended is
	// closed when it ends by itself.
	start func(ctx context.Context, m *meter) (stop func() error, ended <-chan struct{}, err error)
}

// followers are millrace and the peers that can follow.
func (b *bench) followers(st *site) []follower {
	args := b.millraceSync()
	all := []follower{{
		name: "millrace", kind: KindMillrace, how: b.commandLine(args),
		start: func(ctx context.Context, m *meter) (func() error, <-chan struct{}, error) {
			c, err := b.startMillrace(ctx, st, m, args)
			if err != nil {
				return nil, nil, err
			}
			return c.stop, c.done, nil
		},
	}}
	for _, p := range b.o.Peers {
		if f, ok := b.peerFollower(st, p); ok {
			all = append(all, f)
		}
	}
	return all
}

// following runs do while a tool follows the source and has caught up.
func following(ctx context.Context, st *site, f follower, m *meter, do func(context.Context) error) error {
	return running(ctx, f, m, func(ctx context.Context) error {
		if err := caughtUp(ctx, st); err != nil {
			return err
		}
		return do(ctx)
	})
}

// running starts a tool, runs do and ends the tool. The context of do ends when
// the tool does.
func running(ctx context.Context, f follower, m *meter, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, ended, err := f.start(ctx, m)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ended:
			cancel(errEnded)
		case <-ctx.Done():
		}
	})
	defer func() {
		if errors.Is(context.Cause(ctx), errEnded) {
			err = nil // stop says why
		}
		cancel(nil)
		wg.Wait()
		err = errors.Join(err, stop())
	}()
	return do(ctx)
}

var errEnded = errors.New("the tool ended by itself")

// caughtUp waits until two markers have come through, one after the other, so
// that the second was not copied with the first data.
func caughtUp(ctx context.Context, st *site) error {
	for range 2 {
		mark := bson.NewObjectID()
		if err := setMarker(ctx, st.source, mark); err != nil {
			return err
		}
		if err := awaitMarker(ctx, st.target, mark); err != nil {
			return err
		}
	}
	return nil
}

const markers = "marker"

// setMarker writes a marker on the source.
func setMarker(ctx context.Context, source *side, mark bson.ObjectID) error {
	_, err := source.direct.Client.Database(dataDB).Collection(markers).InsertOne(ctx, bson.D{{Key: "_id", Value: mark}})
	if err != nil {
		return fmt.Errorf("write a marker: %w", err)
	}
	return nil
}

// awaitMarker waits until a marker is on the target.
func awaitMarker(ctx context.Context, target *side, mark bson.ObjectID) error {
	for {
		there, err := hasMarker(ctx, target, mark)
		if there || err != nil && ctx.Err() == nil {
			return err
		}
		if !tick(ctx, 10*time.Millisecond) {
			return fmt.Errorf("wait for a marker: %w", context.Cause(ctx))
		}
	}
}

func hasMarker(ctx context.Context, target *side, mark bson.ObjectID) (bool, error) {
	n, err := target.direct.Client.Database(dataDB).Collection(markers).CountDocuments(ctx, bson.D{{Key: "_id", Value: mark}})
	if err != nil {
		return false, fmt.Errorf("look for a marker: %w", err)
	}
	return n > 0, nil
}
