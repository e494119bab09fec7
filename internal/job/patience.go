package job

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
)

// patience tries again what fails in a way that passes by itself.
type patience struct {
	log      *slog.Logger
	progress *progress.Progress
	answered time.Time // when both sides answered in this try
}

// worked says that both sides answer.
func (p *patience) worked() {
	p.answered = time.Now()
	p.progress.Wait("")
}

// worksAfter is how long after both sides answered a try counts as one that
// worked. It is longer than a member is waited for.
const worksAfter = 45 * time.Second

// try tries again with growing pauses, and says so in the status. It gives up
// when one failure lasts longer than limit; 0 is never.
func (p *patience) try(ctx context.Context, limit time.Duration, do func() error) error {
	var failingSince time.Time
	backoff := newBackoff()
	for {
		began := time.Now()
		p.answered = time.Time{}
		err := do()
		switch {
		case err == nil:
			p.progress.Wait("")
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case mongo.Classify(err) != mongo.ClassRetry:
			return err
		}
		ran := time.Duration(0) // since both sides answered
		if !p.answered.IsZero() {
			ran = time.Since(p.answered)
		}
		switch {
		case ran > worksAfter:
			failingSince, backoff = time.Time{}, newBackoff()
		case ran > time.Second:
			backoff = newBackoff() // it works at times: a long pause would not help
		}
		if failingSince.IsZero() {
			failingSince = began.Add(ran)
		}
		if limit > 0 && time.Since(failingSince) > limit {
			return fmt.Errorf("gave up after %s of failures: %w", limit, err)
		}
		d := backoff.next()
		p.progress.CountError("retry")
		p.progress.Wait("a failure to pass: " + err.Error())
		p.log.Warn("interrupted; trying again from the last checkpoint", "error", err, "retryIn", d)
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// backoff grows from half a second to 15 s, with jitter so that many jobs do
// not come back at once.
type backoff struct{ d time.Duration }

func newBackoff() *backoff { return &backoff{d: 250 * time.Millisecond} }

func (b *backoff) next() time.Duration {
	b.d = min(2*b.d, 15*time.Second)
	return b.d/2 + time.Duration(rand.Int64N(int64(b.d)))
}
