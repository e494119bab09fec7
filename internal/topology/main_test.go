package topology

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

// shared is the set of five members that the package's tests use in turn.
type shared struct {
	mu      sync.Mutex
	cluster *lab.Cluster
}

var theSet shared

func TestMain(m *testing.M) {
	code := m.Run()
	if theSet.cluster != nil {
		if err := theSet.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// labSet starts the shared set for the first test that asks for it.
func labSet(t *testing.T) *lab.Cluster {
	t.Helper()
	lab.NeedServers(t)
	theSet.mu.Lock()
	defer theSet.mu.Unlock()
	if theSet.cluster == nil {
		c, err := lab.Start(t.Context(), lab.Options{Topology: "rs:5", CacheGB: 0.25, LeanJournal: true})
		if err != nil {
			t.Fatal(err)
		}
		theSet.cluster = c
	}
	return theSet.cluster
}

func open(t *testing.T, c *lab.Cluster) *Observer {
	t.Helper()
	o, err := Open(c.URI(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

// eventually waits until the set is as ok wants it.
func eventually(t *testing.T, o *Observer, what string, ok func(*Set) bool) *Set {
	t.Helper()
	return eventuallyWithin(t, o, 3*time.Minute, what, ok)
}

func eventuallyWithin(t *testing.T, o *Observer, limit time.Duration, what string, ok func(*Set) bool) *Set {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var last *Set
	for {
		s, err := o.Observe(ctx)
		if ctx.Err() != nil {
			t.Fatalf("not seen: %s; last %+v", what, last)
		}
		if err == nil && ok(s) {
			return s
		}
		last = s
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
