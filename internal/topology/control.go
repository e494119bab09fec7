package topology

import (
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
func NewController(c cluster, o ControlOptions) *Controller {
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
	over, err := h.settle(ctx)
	if over {
		err = mongo.WithHint(fmt.Errorf("not all members are where the plan wants them: %w", err),
			"millrace topology show says where they are; a set without writes takes longest")
	}
	return h.plan, err
}

// settle brings all members to where the plan wants them; over says that ctx ended before.
func (h *holding) settle(ctx context.Context) (over bool, err error) {
	for {
		agrees, err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
			return true, context.Cause(ctx)
		case err != nil && h.plan == nil:
			return false, err
		case err != nil:
			h.log.Warn("the set cannot be seen at the moment", "error", err)
		case agrees:
			return false, nil
		}
		_ = pace.Pause(ctx, min(h.o.Interval, 300*time.Millisecond)) // its error is reported above
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
		if err := pace.Pause(ctx, c.o.Interval); err != nil {
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
	h := holding{Controller: c, plan: was.plan(set), set: set, signature: signature(set), fixed: true}
	if over, err := h.settle(ctx); over {
		return fmt.Errorf("not all members are back where they were: %w", err)
	}
	return nil
}

// holding is one run of a controller.
type holding struct {
	*Controller
	set       *Set
	plan      *Plan
	signature string // of the set that the plan was made for
	changed   string // signature seen last, when it is another
	agreed    bool
	fixed     bool      // the plan is not to be made anew
	looked    time.Time // for other holds
}

// signature is what a plan depends on, but for round trips, which vary.
func signature(set *Set) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %v", set.ConfigVersion, set.Chaining)
	for _, m := range set.Members {
		fmt.Fprintf(&b, "|%s %s %v %v", m.Host, m.State, m.Healthy, m.InitialSync)
	}
	return b.String()
}

// round looks at the set once and does what can be done now; agrees says that
// all members are where they belong.
func (h *holding) round(ctx context.Context) (agrees bool, err error) {
	began := time.Now()
	set, err := h.cluster.Observe(ctx)
	if err != nil {
		return false, err
	}
	h.set = set
	h.log.Debug("seen", "took", time.Since(began), "primary", h.primary())
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
		if now.Before(h.tries[m.Host].next) || !h.possible(set, m, want) {
			continue
		}
		if err := h.move(ctx, set, m, want); err != nil {
			return false, err
		}
	}
	return agrees, nil
}

// alone looks from time to time whether another hold works on the set. The one
// whose name comes first stays, so that not both of two end.
func (h *holding) alone(ctx context.Context) error {
	if h.set == nil || time.Since(h.looked) < rivalsEvery {
		return nil
	}
	h.looked = time.Now()
	rivals, err := h.cluster.Rivals(ctx, reachable(h.set))
	if err != nil {
		h.log.Debug("other holds cannot be seen", "error", err)
		return nil
	}
	me := h.cluster.Name()
	for _, r := range rivals {
		h.log.Warn("another hold works on the set", "hold", r)
	}
	return held(h.set.Name, slices.DeleteFunc(rivals, func(r string) bool { return since(r) > since(me) }))
}

func (h *holding) primary() string {
	if p := h.set.Primary(); p != nil {
		return p.Host
	}
	return ""
}

// replan makes a plan when there is none for the set as it is. A change has to
// be seen twice, for states pass quickly during an election or a restart.
func (h *holding) replan(set *Set) (ready bool, err error) {
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
			a = attempts{} // to follow an election is no drift
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

// want is the source that a seat is to have now.
func (h *holding) want(seat *Seat) string {
	if h.tries[seat.Host].failed/patience%2 == 1 && seat.Second != "" {
		return seat.Second
	}
	return seat.Source
}

// possible says that the source is up and does not itself fetch, however
// indirectly, from the member.
func (h *holding) possible(set *Set, m *Member, want string) bool {
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

// move tells a member to change its source and waits until it has.
func (h *holding) move(ctx context.Context, set *Set, m *Member, want string) error {
	if err := pace.Pause(ctx, time.Until(h.last.Add(h.o.Gap))); err != nil {
		return err
	}
	// The member is asked once more: an initial sync would start again.
	source, state, err := h.cluster.Source(ctx, m.Host)
	if err != nil {
		h.log.Debug("a member does not answer", "member", m.Host, "error", err)
	}
	if state != StateSecondary {
		return ctx.Err() // seen again in the next round
	}
	began := time.Now()
	h.last = began
	h.count(func(s *Stats) { s.Commands++ })
	if err := h.cluster.SyncFrom(ctx, m.Host, want); err != nil {
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
	m.Source = want // what follows in this round builds on it
	return nil
}

// succeeded keeps a member that drifts again and again from being told as
// often: each time within a minute doubles the pause.
func (h *holding) succeeded(host string, first bool) {
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

// failed puts the next attempt off.
func (h *holding) failed(host, want string) {
	a := h.tries[host]
	a.failed++
	a.next = time.Now().Add(min(retryFirst<<min(max(a.failed-3, 0), 10), retryMost))
	h.tries[host] = a
	if a.failed == patience {
		if seat := h.plan.Seat(host); seat.Second != "" {
			h.log.Warn("the second choice is taken", "member", host, "source", seat.Second, "instead", want)
			a.next = time.Now().Add(retryFirst)
			h.tries[host] = a
		}
	}
}

// notes makes the new source be ahead of the member, unless the operator does
// not want them or the user may not write them. Another failure passes: the
// primary may have stepped down since it was seen.
func (h *holding) notes(ctx context.Context, primary string) {
	if h.noNotes {
		return
	}
	err := h.cluster.Notes(ctx, primary)
	switch {
	case err == nil || ctx.Err() != nil:
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		h.noNotes = true
		h.log.Warn("no notes are written, so that changes in a set with few writes take long", "error", err)
	default:
		h.log.Debug("no note was written", "error", err)
	}
}

// settled waits until the member has fetched from the source for a while. A
// third source says that the member has dropped the one that is wanted.
func (h *holding) settled(ctx context.Context, host, was, want string) (bool, error) {
	var since time.Time
	for deadline := time.Now().Add(settle); ; {
		source, state, err := h.cluster.Source(ctx, host)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case state == "":
			h.log.Debug("a member does not answer", "member", host, "error", err)
			return false, nil // the next round sees it
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
