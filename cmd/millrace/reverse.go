package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/state"
)

func (r *session) reverse(ctx context.Context, s *config.Reverse) error {
	was, err := r.finished(ctx, s)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	if s.Watch {
		return r.watchWayBack(ctx, s)
	}
	back, _, err := precheck.Inverse(was)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	s.Users = s.Users || len(was.Users) > 0
	s.Exchange(back)
	r.log.Info("reversing a finalized job", "job", was.ID, "by", s.Job, "from", was.Position.At)
	return r.sync(ctx, &s.Sync)
}

func (r *session) finished(ctx context.Context, s *config.Reverse) (was state.Finished, err error) {
	c, err := mongo.Connect(ctx, s.Target, mongo.Options{AppName: "millrace-reverse"})
	if err != nil {
		return was, mongo.Wrap(err, "target of job %s", s.Job)
	}
	defer c.Close()
	if was, err = state.LoadFinished(ctx, c, s.Job); err == nil && was.Reason != "" {
		err = mongo.WithHint(fmt.Errorf("job %s cannot be reversed: %s", cli.Plain(s.Job), was.Reason),
			"see docs/guides/fall-back.md")
	}
	return was, err
}

// errWayLost ends the watch.
var errWayLost = errors.New("the way back is lost")

// watchWayBack logs how long a finalized job can still be reversed, until it cannot.
func (r *session) watchWayBack(ctx context.Context, s *config.Reverse) error {
	look := func() error {
		l, err := job.LookBack(ctx, s.Target, s.TargetShards, s.Job)
		switch {
		case err != nil && ctx.Err() == nil:
			r.log.Warn("cannot look at the oplog now", "error", err)
			return nil
		case err != nil:
			return err
		case l.Lost():
			return mongo.WithHint(
				fmt.Errorf("%w: the oplog begins at %s, and no longer has %s", errWayLost, l.Oldest, l.Position),
				"to fall back, copy in the other direction, with --on-existing drop")
		case l.Forgets && l.Left() < s.WarnWindow:
			r.log.Warn("the way back will be lost soon", "remaining", l.Left(), "warnBelow", s.WarnWindow,
				"hint", "start millrace reverse, or make the oplog larger (replSetResizeOplog)")
		case !l.Forgets: // what is left says nothing while the oplog grows
			r.log.Info("the way back is open: the oplog is not full yet", "job", s.Job, "from", l.Position, "oplogBegins",
				l.Oldest)
		default:
			r.log.Info("the way back is open", "job", s.Job, "from", l.Position, "oplogBegins", l.Oldest,
				"remaining", l.Left())
		}
		return nil
	}
	if err := look(); err != nil {
		return err
	}
	err := retry.Every(ctx, max(s.ProgressInterval, time.Second), look)
	if errors.Is(err, errWayLost) {
		return err
	}
	return nil // it was interrupted
}
