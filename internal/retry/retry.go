// Package retry retries what fails with a transient error by mongo.Classify.
package retry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// Backoff retries one operation with growing pauses. One goroutine uses it.
type Backoff struct {
	// Waiting is called with each failure and the pause that follows, and with nil once the failure has passed.
	Waiting func(failure error, pause time.Duration)

	worked time.Time // in this try; zero: not yet
}

// Worked says that the present try works: the earlier failure has passed.
func (b *Backoff) Worked() {
	b.worked = time.Now()
	b.Waiting(nil, 0)
}

// Try retries do with growing pauses. It gives up when one failure lasts longer than limit; 0 is no limit.
func (b *Backoff) Try(ctx context.Context, limit time.Duration, do func() error) error {
	var failingSince time.Time
	var grown time.Duration // from half a second to 15 s
	for {
		began := time.Now()
		b.worked = time.Time{}
		err := do()
		switch {
		case err == nil:
			b.Waiting(nil, 0)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case mongo.Classify(err) != mongo.ClassRetry:
			return err
		}
		ran := time.Duration(0)
		if !b.worked.IsZero() {
			ran = time.Since(b.worked)
		}
		if ran > 45*time.Second { // longer than the wait for a member
			failingSince = time.Time{}
		}
		if ran > time.Second {
			grown = 0 // it works at times: a long pause would not help
		}
		if failingSince.IsZero() {
			failingSince = began.Add(ran)
		}
		if limit > 0 && time.Since(failingSince) > limit {
			return fmt.Errorf("gave up after %s of failures: %w", limit, err)
		}
		grown = min(max(2*grown, 500*time.Millisecond), 15*time.Second)
		pause := grown/2 + time.Duration(rand.Int64N(int64(grown))) // so that many do not come back at once
		b.Waiting(err, pause)
		if err := pace.Pause(ctx, pause); err != nil {
			return err
		}
	}
}

// Again retries do while passes allows it, with pauses that double from least to most. It returns the last failure, or
// why ctx ended in a pause.
func Again(ctx context.Context, least, most time.Duration, passes func(failure error, pause time.Duration) bool,
	do func() error) error {
	for pause := least; ; pause = min(2*pause, most) {
		err := do()
		if err == nil || !passes(err, pause) {
			return err
		}
		if err := pace.Pause(ctx, pause); err != nil {
			return err
		}
	}
}

// Every calls do at an interval until it fails or ctx ends.
func Every(ctx context.Context, interval time.Duration, do func() error) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := do(); err != nil {
			return err
		}
	}
}
