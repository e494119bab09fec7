package mongo

import (
	"context"
	"fmt"
	"time"
)

// stallAfter is how long to wait for a later position before asking the primary, which writes a no-op every 10 s.
const stallAfter = time.Minute

// StallWatch detects a member that answers but gets nothing, such as an old primary behind a partition. Only Cluster
// is to be set.
type StallWatch struct {
	Cluster *Cluster

	reached      OpTime    // by what is read
	moved, asked time.Time // when that changed last, and when the primary was asked
	expected     OpTime    // what the primary had then
}

// Check returns an error of ClassRetry if what is read stands at a position while the primary goes on. It is called
// now and then while nothing comes.
func (w *StallWatch) Check(ctx context.Context, reached OpTime) error {
	now := time.Now()
	switch {
	case w.reached.Before(reached):
		w.reached, w.moved = reached, now
		return nil
	case now.Sub(w.moved) < stallAfter || now.Sub(w.asked) < stallAfter/4:
		return nil
	case w.asked.After(w.moved) && reached.Before(w.expected):
		return Retry(fmt.Sprintf("reading stands at %s for %s although the source is at %s", reached,
			now.Sub(w.moved).Round(time.Second), w.expected), nil, "")
	}
	w.asked = now
	if p, err := w.Cluster.Positions(ctx); err == nil {
		w.expected = p.Majority // of a router it is none
	}
	return nil
}
