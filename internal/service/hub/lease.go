package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/service"
)

// Held is a lease that this process has. Renew and Release are called one at a time,
// Until also meanwhile.
type Held struct {
	hub   *Hub
	unit  string
	value []byte
	rev   uint64

	mu    sync.Mutex
	until time.Time // by this process' monotonic clock
}

// Take takes the lease of a unit of work, ErrHeld where somebody has it.
func (h *Hub) Take(ctx context.Context, unit string, l service.Lease) (*Held, error) {
	raw, err := encode(l)
	if err != nil {
		return nil, err
	}
	// The store counts from the moment it has the lease, which is later.
	began := time.Now()
	rev, err := h.leases.Create(ctx, unit, raw)
	if conflict(err) {
		if silent := h.silent(ctx, unit); silent > 0 {
			began = time.Now()
			rev, err = h.leases.Update(ctx, unit, raw, silent)
		}
	}
	if conflict(err) {
		err = ErrHeld
	}
	if err == nil || !errors.Is(err, ErrHeld) {
		h.forgetHolder(unit)
	}
	if err != nil {
		return nil, fmt.Errorf("take the lease of %s: %w", unit, err)
	}
	return &Held{hub: h, unit: unit, value: raw, rev: rev, until: began.Add(h.lease)}, nil
}

// holder is a lease that somebody else has.
type holder struct {
	rev uint64
	at  time.Time // when it was seen first at this revision, by this process' clock
}

// silent is the revision of a lease that nobody has renewed for its whole time by this
// process' clock, 0 of another. The store takes leases away by its wall clock, which may
// have been set back: then it would keep the lease of a worker that died for as long.
func (h *Hub) silent(ctx context.Context, unit string) uint64 {
	e, err := h.leases.Get(ctx, unit)
	if err != nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	seen, ok := h.holders[unit]
	if !ok || seen.rev != e.Revision() {
		maps.DeleteFunc(h.holders, func(_ string, s holder) bool { return time.Since(s.at) > 10*h.lease }) // nobody asks for it
		h.holders[unit] = holder{e.Revision(), time.Now()}
		return 0
	}
	if time.Since(seen.at) <= h.lease {
		return 0
	}
	return seen.rev
}

func (h *Hub) forgetHolder(unit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.holders, unit)
}

// Until is when the lease ends unless it is renewed, on the safe side.
func (l *Held) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// Renew keeps the lease. ErrHeld says that it is lost; after another error it is held
// until Until.
func (l *Held) Renew(ctx context.Context) error {
	began := time.Now()
	rev, err := l.hub.leases.Update(ctx, l.unit, l.value, l.rev)
	if conflict(err) {
		// An answer that was lost has stored it all the same.
		e, getErr := l.hub.leases.Get(ctx, l.unit)
		if getErr == nil && string(e.Value()) == string(l.value) {
			l.rev = e.Revision()
			return fmt.Errorf("renew the lease of %s: its last renewal was answered late", l.unit)
		}
		if getErr == nil || errors.Is(getErr, jetstream.ErrKeyNotFound) {
			err = ErrHeld
		}
	}
	if err != nil {
		return fmt.Errorf("renew the lease of %s: %w", l.unit, err)
	}
	l.rev = rev
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = began.Add(l.hub.lease)
	return nil
}

// Release gives the lease back. One that is lost meanwhile is left alone.
func (l *Held) Release(ctx context.Context) error {
	err := l.hub.leases.Delete(ctx, l.unit, jetstream.LastRevision(l.rev))
	if err != nil && !conflict(err) {
		return fmt.Errorf("release the lease of %s: %w", l.unit, err)
	}
	return nil
}
