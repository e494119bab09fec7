package topology

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

const (
	// settle is how long a member may take to be at its new source. It counts when it stays there for steady: the
	// server may drop a source at once.
	settle = 2500 * time.Millisecond
	steady = 400 * time.Millisecond
	// askEvery is the interval of questions meanwhile.
	askEvery = 50 * time.Millisecond
	gap      = 100 * time.Millisecond // between two commands
	// retryFirst and retryMost bound the pause between commands to a member. A server that lost its source waits a
	// second before it takes another.
	retryFirst = 1200 * time.Millisecond
	retryMost  = 30 * time.Second
	// mostFailures in a row make a controller take a seat's second source.
	mostFailures = 4
)

// ControlOptions shape a controller.
type ControlOptions struct {
	Plan     PlanOptions
	Interval time.Duration // between two observations; 0 is 1 second
	// NoNotes forbids notes in the oplog. A change in a set without writes then waits for a note of the server,
	// which writes one every ten seconds.
	NoNotes bool
	Log     *slog.Logger
}

// Stats counts what a controller has done.
type Stats struct {
	Plans    int64 `json:"plans"`    // trees made
	Commands int64 `json:"commands"` // replSetSyncFrom commands
	Settled  int64 `json:"settled"`  // commands that took effect
	Agrees   bool  `json:"agrees"`   // the set had the planned tree when last observed
}

// Controller moves members. Apply, Hold and Restore must not run concurrently. Stats may be called at any time.
type Controller struct {
	observer *Observer
	o        ControlOptions
	log      *slog.Logger
	tries    map[string]attempts
	last     time.Time // of the last command

	mu    sync.Mutex
	stats Stats
	plan  *Plan
}

type attempts struct {
	failed int           // in a row
	next   time.Time     // of the next command, at the earliest
	moved  time.Time     // last success
	calm   time.Duration // pause after it
}

func NewController(observer *Observer, o ControlOptions) *Controller {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	return &Controller{observer: observer, o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		tries: map[string]attempts{}}
}

func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Controller) count(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
}

// Apply brings the set into the planned tree. It returns when all members have their planned source, or ctx ends.
func (c *Controller) Apply(ctx context.Context) (*Plan, error) {
	h := session{Controller: c}
	over, err := h.settle(ctx)
	if over {
		err = mongo.WithHint(fmt.Errorf("not all members have their planned source: %w", err),
			"run millrace topology show; a set without writes takes longest")
	}
	return h.plan, err
}

// settle moves all members; over reports that ctx ended before.
func (h *session) settle(ctx context.Context) (over bool, err error) {
	for {
		agrees, err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
			return true, context.Cause(ctx)
		case err != nil && h.plan == nil:
			return false, err
		case err != nil:
			h.log.Warn("cannot observe the set", "error", err)
		case agrees:
			return false, nil
		}
		_ = pace.Pause(ctx, min(h.o.Interval, 300*time.Millisecond)) // its error is reported above
	}
}

// Hold keeps the set in the planned tree until ctx ends. It returns the error that ended ctx, that of the first
// observation, or ErrAnotherHold if an earlier hold works on the set.
func (c *Controller) Hold(ctx context.Context) error {
	h := session{Controller: c}
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
			c.log.Warn("cannot observe the set", "error", err)
		case agrees && !h.agreed:
			c.log.Info("the set has the planned tree", "members", len(h.plan.Seats))
		}
		h.agreed = agrees
		c.count(func(s *Stats) { s.Agrees = agrees })
		if err := pace.Pause(ctx, c.o.Interval); err != nil {
			return err
		}
	}
}

// Restore moves the members back to their recorded sources, as far as these can be sources now.
func (c *Controller) Restore(ctx context.Context, was *Memory) error {
	set, err := c.observer.Observe(ctx)
	if err != nil {
		return err
	}
	h := session{Controller: c, plan: was.plan(set), set: set, signature: signature(set), fixed: true}
	if over, err := h.settle(ctx); over {
		return fmt.Errorf("not all members have their recorded source: %w", err)
	}
	return nil
}

type session struct {
	*Controller
	set       *Set
	plan      *Plan
	signature string // of the set that the plan was made for
	changed   string // last signature, when it is another
	agreed    bool
	fixed     bool      // the plan is not replaced
	looked    time.Time // for other holds
}

// signature is what a plan depends on, except round trips.
func signature(set *Set) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %v", set.ConfigVersion, set.Chaining)
	for _, m := range set.Members {
		fmt.Fprintf(&b, "|%s %s %v %v", m.Host, m.State, m.Healthy, m.InitialSync)
	}
	return b.String()
}

// round observes the set and moves members that can move now; agrees reports that all have their planned source.
func (h *session) round(ctx context.Context) (agrees bool, err error) {
	began := time.Now()
	set, err := h.observer.Observe(ctx)
	if err != nil {
		return false, err
	}
	h.set = set
	h.log.Debug("observed", "took", time.Since(began), "primary", h.observer.primary)
	if set.Primary() == nil {
		h.changed = ""
		h.log.Info("waiting for a primary")
		return false, nil
	}
	if ready, err := h.replan(set); err != nil || !ready {
		return false, err
	}
	agrees = true
	now := time.Now()
	for i := range h.plan.Seats {
		seat := &h.plan.Seats[i]
		m := set.Member(seat.Host)
		want := h.want(seat)
		if m == nil || m.Source == want {
			continue
		}
		if m.State != StateSecondary || m.InitialSync || !m.Healthy {
			continue // another plan follows when it is back
		}
		agrees = false
		if now.Before(h.tries[m.Host].next) || !possible(set, m, want) {
			continue
		}
		if err := h.move(ctx, set, m, want); err != nil {
			return false, err
		}
	}
	return agrees, nil
}

// alone looks for other holds. The hold whose name comes first stays, so that not both of two end.
func (h *session) alone(ctx context.Context) error {
	if h.set == nil || time.Since(h.looked) < otherHoldsEvery {
		return nil
	}
	h.looked = time.Now()
	others, err := h.observer.otherHolds(ctx, h.set)
	if err != nil {
		h.log.Debug("cannot look for other holds", "error", err)
		return nil
	}
	for _, name := range others {
		h.log.Warn("another hold works on the set", "hold", name)
	}
	me := since(h.observer.app)
	return anotherHold(h.set.Name, slices.DeleteFunc(others, func(name string) bool { return since(name) > me }))
}

// replan makes a plan when the set has changed. A change counts when it is observed twice: states pass quickly
// during an election or a restart.
func (h *session) replan(set *Set) (ready bool, err error) {
	sig := signature(set)
	if h.plan != nil && (h.fixed || sig == h.signature) {
		h.changed = ""
		return true, nil
	}
	if h.plan != nil && sig != h.changed {
		h.changed = sig
		return false, nil
	}
	plan, err := MakePlan(set, h.o.Plan)
	if err != nil {
		return false, err
	}
	for host, a := range h.tries {
		a.failed = 0
		if h.plan != nil && h.plan.Primary != plan.Primary {
			a = attempts{} // an election is no drift
		}
		h.tries[host] = a
	}
	h.plan, h.signature, h.changed = plan, sig, ""
	h.mu.Lock()
	h.Controller.plan = plan
	h.stats.Plans++
	h.mu.Unlock()
	h.log.Info("planned", "primary", plan.Primary, "members", len(plan.Seats), "changes", len(plan.Changes()), "left",
		len(plan.Left))
	return true, nil
}

func (h *session) want(seat *Seat) string {
	if h.tries[seat.Host].failed/mostFailures%2 == 1 && seat.Second != "" {
		return seat.Second
	}
	return seat.Source
}

// possible reports a source that is up and does not itself fetch, directly or not, from the member.
func possible(set *Set, m *Member, want string) bool {
	src := set.Member(want)
	if src == nil || !src.Healthy || src.State != StatePrimary && src.State != StateSecondary {
		return false
	}
	tree := set.Tree()
	for steps := 0; want != "" && steps <= len(set.Members); steps++ {
		if want == m.Host {
			return false
		}
		want = tree[want]
	}
	return true
}

func (h *session) move(ctx context.Context, set *Set, m *Member, want string) error {
	if err := pace.Pause(ctx, time.Until(h.last.Add(gap))); err != nil {
		return err
	}
	// An initial sync would start anew.
	source, state, err := h.observer.Source(ctx, m.Host)
	if err != nil {
		h.log.Debug("a member does not answer", "member", m.Host, "error", err)
	}
	if state != StateSecondary {
		return ctx.Err() // the next round observes it again
	}
	began := time.Now()
	h.last = began
	h.count(func(s *Stats) { s.Commands++ })
	if err := h.observer.SyncFrom(ctx, m.Host, want); err != nil {
		h.log.Warn("a member refuses its source", "member", m.Host, "source", want, "error", err)
		h.failed(m.Host, want)
		return ctx.Err()
	}
	h.notes(ctx, set.Primary().Host)
	ok, err := h.settled(ctx, m.Host, source, want)
	switch {
	case err != nil:
		return err
	case !ok:
		h.log.Warn("a member does not keep its source yet", "member", m.Host, "source", want, "was", source, "try",
			h.tries[m.Host].failed+1)
		h.failed(m.Host, want)
		return nil
	}
	h.log.Info("source changed", "member", m.Host, "from", source, "to", want, "took",
		time.Since(began).Round(time.Millisecond))
	h.count(func(s *Stats) { s.Settled++ })
	h.succeeded(m.Host, h.plan.Seat(m.Host).Source == want)
	m.Source = want // the rest of this round depends on it
	return nil
}

// succeeded doubles the pause of a member that drifts again within a minute.
func (h *session) succeeded(host string, first bool) {
	a, now := h.tries[host], time.Now()
	if first {
		a.failed = 0
	}
	a.calm = min(max(2*a.calm, retryFirst), retryMost)
	if now.Sub(a.moved) > time.Minute {
		a.calm = retryFirst
	}
	a.moved, a.next = now, now.Add(a.calm)
	h.tries[host] = a
}

func (h *session) failed(host, want string) {
	a := h.tries[host]
	a.failed++
	a.next = time.Now().Add(min(retryFirst<<min(max(a.failed-3, 0), 10), retryMost))
	h.tries[host] = a
	if a.failed == mostFailures {
		if seat := h.plan.Seat(host); seat.Second != "" {
			h.log.Warn("taking the second choice", "member", host, "source", seat.Second, "instead", want)
			a.next = time.Now().Add(retryFirst)
			h.tries[host] = a
		}
	}
}

// notes puts the new source ahead of the member. It stops for good when the user may not write notes.
func (h *session) notes(ctx context.Context, primary string) {
	if h.o.NoNotes {
		return
	}
	err := h.observer.Notes(ctx, primary)
	switch {
	case err == nil || ctx.Err() != nil:
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		h.o.NoNotes = true
		h.log.Warn("cannot write oplog notes; changes in a set with few writes take long", "error", err)
	default:
		h.log.Debug("cannot write an oplog note", "error", err)
	}
}

// settled waits until the member has fetched from the source for a while. A third source means that the
// member dropped the wanted one.
func (h *session) settled(ctx context.Context, host, was, want string) (bool, error) {
	var since time.Time
	for deadline := time.Now().Add(settle); ; {
		source, state, err := h.observer.Source(ctx, host)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case state == "":
			h.log.Debug("a member does not answer", "member", host, "error", err)
			return false, nil // the next round observes it again
		case source != want && source != was && source != "":
			return false, nil
		case source != want:
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= steady:
			return true, nil
		}
		if now.After(deadline) {
			return false, nil
		}
		if err := pace.Pause(ctx, askEvery); err != nil {
			return false, err
		}
	}
}
