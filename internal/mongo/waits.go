package mongo

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// questions are what a driver's client has under way. It is safe for concurrent use.
type questions struct {
	mu        sync.Mutex
	commands  map[int64]question
	checkouts map[string]checkouts // by address
	headless  time.Time            // since when there is no primary; zero while there is one
}

type question struct {
	command, address string
	since            time.Time
}

// checkouts are those of one server's connections that have not ended.
type checkouts struct {
	open  int
	since time.Time // when the first of them began, or another one ended since
}

func (q *questions) watch(opts options.ClientOptions) *options.ClientOptions {
	servers := *opts.ServerMonitor
	servers.TopologyDescriptionChanged = q.described
	opts.SetServerMonitor(&servers).SetPoolMonitor(&event.PoolMonitor{Event: q.pooled})
	return opts.SetMonitor(&event.CommandMonitor{
		Started:   func(_ context.Context, e *event.CommandStartedEvent) { q.asked(e) },
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { q.answered(e.RequestID) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { q.answered(e.RequestID) },
	})
}

func (q *questions) asked(e *event.CommandStartedEvent) {
	if e.CommandName == "createIndexes" { // takes as long as the data are large, and has a progress of its own
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.commands == nil {
		q.commands = map[int64]question{}
	}
	q.commands[e.RequestID] = question{e.CommandName, addressOf(e.ConnectionID), time.Now()}
}

func (q *questions) answered(id int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.commands, id)
}

func (q *questions) pooled(e *event.PoolEvent) {
	step := map[string]int{event.ConnectionCheckOutStarted: 1, event.ConnectionCheckedOut: -1,
		event.ConnectionCheckOutFailed: -1}[e.Type]
	if step == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checkouts == nil {
		q.checkouts = map[string]checkouts{}
	}
	c := q.checkouts[e.Address]
	if c.open += step; step < 0 || c.open == 1 {
		c.since = time.Now()
	}
	q.checkouts[e.Address] = c
}

// described notes whether a server takes writes.
func (q *questions) described(e *event.TopologyDescriptionChangedEvent) {
	writes := slices.ContainsFunc(e.NewDescription.Servers, func(s event.ServerDescription) bool {
		return s.Kind == "RSPrimary" || s.Kind == "Mongos" || s.Kind == "Standalone"
	})
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case writes:
		q.headless = time.Time{}
	case q.headless.IsZero():
		q.headless = time.Now()
	}
}

// oldest returns what the oldest operation waits for; since is zero without one.
func (q *questions) oldest() (what string, since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	what, since = "to have a primary", q.headless
	for _, one := range q.commands {
		if earlier(one.since, since) {
			what, since = "to answer "+one.command+" on "+one.address, one.since
		}
	}
	for address, c := range q.checkouts {
		if c.open > 0 && earlier(c.since, since) {
			what, since = "to give a connection to "+address, c.since
		}
	}
	return what, since
}

// Waits returns what the oldest operation under way waits for, such as "to have a primary", and since when: zero for
// none. Index builds do not count.
func (c *Cluster) Waits() (what string, since time.Time) {
	what, since = c.asks.oldest()
	if pooled, began := c.Pool.Waits(); earlier(began, since) {
		what, since = pooled, began
	}
	return what, since
}

func earlier(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }
