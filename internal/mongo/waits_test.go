package mongo

import (
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
)

// TestQuestions: the oldest of what a client has under way is named, and nothing once all
// is answered. A build of an index has a progress of its own.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &questions{}
		wants := func(want string, age time.Duration) {
			t.Helper()
			what, since := q.waits.Oldest()
			if want == "" && since.IsZero() {
				return
			}
			if what != want || time.Since(since) != age {
				t.Errorf("%q since %s, want %q for %s", what, since, want, age)
			}
		}
		pooled := func(kind string) { q.pooled(&event.PoolEvent{Type: kind, Address: "h:1"}) }
		described := func(kinds ...string) {
			var e event.TopologyDescriptionChangedEvent
			for _, k := range kinds {
				e.NewDescription.Servers = append(e.NewDescription.Servers, event.ServerDescription{Kind: k})
			}
			q.described(&e)
		}
		wants("", 0)
		q.asked(&event.CommandStartedEvent{CommandName: "createIndexes", RequestID: 1, ConnectionID: "h:1[-7]"})
		wants("", 0)
		q.asked(&event.CommandStartedEvent{CommandName: "update", RequestID: 2, ConnectionID: "h:1[-7]"})
		time.Sleep(time.Second)
		pooled(event.ConnectionCheckOutStarted)
		wants("to answer update on h:1", time.Second)
		q.answered(2)
		wants("to give a connection to h:1", 0)
		time.Sleep(time.Second)
		pooled(event.ConnectionCheckOutStarted)
		wants("to give a connection to h:1", time.Second)
		pooled(event.ConnectionCheckedOut) // one of them: the server answers
		wants("to give a connection to h:1", 0)
		pooled(event.ConnectionCheckOutFailed)
		wants("", 0)
		described("RSSecondary", "Unknown")
		time.Sleep(time.Second)
		described("RSSecondary", "RSSecondary")
		wants("to have a primary", time.Second)
		described("RSSecondary", "RSPrimary")
		wants("", 0)
	})
}
