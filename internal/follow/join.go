package follow

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

// join has the documents of a collection of the target come into the one that was left under
// the name that the source has given it. The target does it by itself: the source may have
// changed or dropped them since, and what the rules keep of them it has no longer.
func (f *follower) join(ctx context.Context, ev *stream.Event, effect schema.Effect, overlap bool) error {
	phase := schema.Consistent
	if overlap {
		phase = schema.BeforeConsistent
	}
	f.Log.Info("documents come into a collection that was left", "from", effect.Join.NS, "to", effect.JoinNS,
		"position", ev.At)
	err := f.Job.CopyWithin(ctx, *effect.Join, effect.JoinNS)
	if err == nil {
		failpoint.Hit("join.copied")
		err = f.untangled(ctx, func() error { return f.Schema.Changes.TakeOver(ctx, effect.Join.NS, effect.JoinNS, phase) })
	}
	if err != nil {
		return fmt.Errorf("%s of %s at %s: documents come into %s, which was left on the target: %w", ev.Change.Kind,
			ev.Change.NS, ev.At, effect.JoinNS, err)
	}
	return nil
}
