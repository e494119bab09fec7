package mongo

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/wire"
)

// questions are what a driver's client has under way. It is safe for concurrent use.
type questions struct {
	waits wire.Waits

	mu        sync.Mutex
	commands  map[int64]*wire.Wait
	checkouts map[string]checkouts // by address
	headless  *wire.Wait           // nil while there is a primary
}

// checkouts are those of one server's connections that have not ended.
type checkouts struct {
	open int
	wait *wire.Wait // since the first of them began, or another one ended
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
		q.commands = map[int64]*wire.Wait{}
	}
	q.commands[e.RequestID] = q.waits.Add("to answer " + e.CommandName + " on " + addressOf(e.ConnectionID))
}

func (q *questions) answered(id int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits.Forget(q.commands[id])
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
		q.waits.Forget(c.wait)
		c.wait = nil
	}
	if c.open > 0 && c.wait == nil {
		c.wait = q.waits.Add("to give a connection to " + e.Address)
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
		q.waits.Forget(q.headless)
		q.headless = nil
	case q.headless == nil:
		q.headless = q.waits.Add("to have a primary")
	}
}

// Waits returns what the oldest operation under way waits for, such as "to have a primary", and since when: zero for
// none. Index builds do not count.
func (c *Cluster) Waits() (what string, since time.Time) {
	what, since = c.asks.waits.Oldest()
	if pooled, began := c.Pool.Waits(); since.IsZero() || !began.IsZero() && began.Before(since) {
		return pooled, began
	}
	return what, since
}
