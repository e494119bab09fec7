package topology

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// cluster is what a controller works on; an [Observer] is one.
type cluster interface {
	Observe(ctx context.Context) (*Set, error)
	Source(ctx context.Context, host string) (source, state string, err error)
	SyncFrom(ctx context.Context, host, source string) error
	Notes(ctx context.Context, primary string) error
	Rivals(ctx context.Context, hosts []string) ([]string, error)
	Name() string
}

const (
	// settle is how long a member gets to be seen at its new source, steady how
	// long it has to stay there to count: the server may drop a source at once.
	settle = 2500 * time.Millisecond
	steady = 400 * time.Millisecond
	// askEvery is how often it is asked meanwhile.
	askEvery = 50 * time.Millisecond
	// retryFirst and retryMost bound the pause before a member is told again; a
	// server that lost its source waits a second before it takes another.
	retryFirst = 1200 * time.Millisecond
	retryMost  = 30 * time.Second
	// patience is how many times in a row a source may fail before a hold takes
	// the second choice.
	patience = 4
)

// ControlOptions shape a controller.
type ControlOptions struct {
	Plan PlanOptions
	// Interval between two looks at the set; 0 is 1 second.
	Interval time.Duration
	// Gap is the least time between two commands, whatever the member; 0 is
	// 100 milliseconds.
	Gap time.Duration
	// NoNotes forbids notes in the oplog. A set without writes then takes up to
	// ten seconds, the time between two of the server's own, for each change,
	// and may need several.
	NoNotes bool
	Log     *slog.Logger
}

// Stats are what a controller has done.
type Stats struct {
	Plans    int64 `json:"plans"`    // trees made
	Commands int64 `json:"commands"` // members told to change
	Settled  int64 `json:"settled"`  // of them those that did
	Agrees   bool  `json:"agrees"`   // the set had the planned tree when last seen
}

// Controller moves members. Apply, Hold and Restore are not to be called
// concurrently; Stats may be called at any time.
type Controller struct {
	cluster cluster
	o       ControlOptions
	log     *slog.Logger
	tries   map[string]attempts
	last    time.Time // of the last command
	noNotes bool

	mu    sync.Mutex
	stats Stats
	plan  *Plan
}

// attempts are those to move one member.
type attempts struct {
	failed int           // in a row
	next   time.Time     // not told before
	moved  time.Time     // last success
	calm   time.Duration // pause after it
}

// NewController returns a controller of the set that c observes.
func NewController(c *Observer, o ControlOptions) *Controller { return newController(c, o) }

func newController(c cluster, o ControlOptions) *Controller {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.Gap <= 0 {
		o.Gap = 100 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Controller{cluster: c, o: o, log: o.Log, tries: map[string]attempts{}, noNotes: o.NoNotes}
}

// Stats returns what was done so far.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Plan returns the tree that is held at the moment, nil before the first; it
// is not to be changed. It may be called at any time.
func (c *Controller) Plan() *Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan
}

func (c *Controller) count(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
}

// Apply brings the set into the planned tree and returns when all members are
// where they belong; ctx bounds how long that may take.
func (c *Controller) Apply(ctx context.Context) (*Plan, error) {
	h := holding{Controller: c}
	for {
		agrees, err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
			return h.plan, mongo.WithHint(fmt.Errorf("not all members are where the plan wants them: %w", context.Cause(ctx)),
				"millrace topology show says where they are; a set without writes takes longest")
		case err != nil && h.plan == nil:
			return nil, err
		case err != nil:
			c.log.Warn("the set cannot be seen at the moment", "error", err)
		case agrees:
			return h.plan, nil
		}
		if err := pause(ctx, min(c.o.Interval, 300*time.Millisecond)); err != nil {
			continue // reported above
		}
	}
}

// Hold keeps the set in the planned tree until ctx ends: when members drift,
// restart or are lost, when another primary is elected, when the configuration
// changes. It returns the error that ended ctx, that of a first look, or ErrHeld
// when it sees a hold that was there before it.
func (c *Controller) Hold(ctx context.Context) error {
	h := holding{Controller: c}
	for {
		if err := h.alone(ctx); err != nil {
			return err
		}
		agrees, err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && h.plan == nil && h.set == nil:
			return err
		case err != nil:
			c.log.Warn("the set cannot be seen at the moment", "error", err)
		case agrees && !h.agreed:
			c.log.Info("the set has the planned tree", "members", len(h.plan.Seats))
		}
		h.agreed = agrees
		c.count(func(s *Stats) { s.Agrees = agrees })
		if err := pause(ctx, c.o.Interval); err != nil {
			return err
		}
	}
}

// Restore brings the members back under the sources that they once had, as far
// as these can still be sources.
func (c *Controller) Restore(ctx context.Context, was *Memory) error {
	set, err := c.cluster.Observe(ctx)
	if err != nil {
		return err
	}
	plan := was.plan(set)
	h := holding{Controller: c, plan: plan, set: set, signature: signature(set), fixed: true}
	for {
		agrees, err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("not all members are back where they were: %w", context.Cause(ctx))
		case err != nil:
			c.log.Warn("the set cannot be seen at the moment", "error", err)
		case agrees:
			return nil
		}
		if err := pause(ctx, min(c.o.Interval, 300*time.Millisecond)); err != nil {
			continue // reported above
		}
	}
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
