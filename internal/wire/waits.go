package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// waits are a pool's checkouts and connections in use, for which exchanges may wait. It is safe for concurrent use.
type waits struct {
	mu  sync.Mutex
	all map[*wait]struct{}
}

// wait is a checkout, or a connection that is checked out.
type wait struct {
	what  string       // guarded by waits.mu
	since atomic.Int64 // when it began, in nanoseconds; 0 while nothing is asked
}

func (w *waits) add(what string) *wait {
	one := &wait{what: what}
	one.begin()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*wait]struct{}{}
	}
	w.all[one] = struct{}{}
	return one
}

func (w *waits) name(one *wait, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.what = what
}

func (w *waits) forget(one *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
}

// begin and end enclose an exchange.
func (w *wait) begin() { w.since.Store(time.Now().UnixNano()) }
func (w *wait) end()   { w.since.Store(0) }

// Waits returns what the oldest operation under way waits for, such as "to answer on 127.0.0.1:27017", and since
// when: zero for none.
func (p *Pool) Waits() (what string, since time.Time) {
	p.waits.mu.Lock()
	defer p.waits.mu.Unlock()
	oldest := int64(0)
	for one := range p.waits.all {
		if began := one.since.Load(); began != 0 && (oldest == 0 || began < oldest) {
			what, oldest = one.what, began
		}
	}
	if oldest == 0 {
		return "", time.Time{}
	}
	return what, time.Unix(0, oldest)
}
