package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Waits are operations that wait for servers. The zero value is ready. It is safe for concurrent use.
type Waits struct {
	mu  sync.Mutex
	all map[*Wait]struct{}
}

// Wait is one of Waits. Of a pool it is a checkout, or a connection in use.
type Wait struct {
	what  string       // guarded by Waits.mu
	since atomic.Int64 // when it began, in nanoseconds; 0 while nothing is asked
}

// Add begins a wait, such as "to have a primary".
func (w *Waits) Add(what string) *Wait {
	one := &Wait{what: what}
	one.begin()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*Wait]struct{}{}
	}
	w.all[one] = struct{}{}
	return one
}

func (w *Waits) name(one *Wait, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.what = what
}

// Forget ends a wait; nil is none.
func (w *Waits) Forget(one *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
}

// begin and end enclose an exchange.
func (w *Wait) begin() { w.since.Store(time.Now().UnixNano()) }
func (w *Wait) end()   { w.since.Store(0) }

// Waits returns what the oldest operation under way waits for, such as "to answer on 127.0.0.1:27017", and since
// when: zero for none.
func (p *Pool) Waits() (what string, since time.Time) { return p.waits.Oldest() }

// Oldest returns the oldest wait, and since when it lasts: zero for none.
func (w *Waits) Oldest() (what string, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldest := int64(0)
	for one := range w.all {
		if began := one.since.Load(); began != 0 && (oldest == 0 || began < oldest) {
			what, oldest = one.what, began
		}
	}
	if oldest == 0 {
		return "", time.Time{}
	}
	return what, time.Unix(0, oldest)
}
