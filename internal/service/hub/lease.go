package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Leases assign units of work to processes. It is safe for concurrent use.
type Leases struct {
	kv  jetstream.KeyValue
	ttl time.Duration // without renewal

	mu      sync.Mutex
	holders map[string]holder // by unit
}

// Held is a lease of this process. Only Until may be called concurrently.
type Held struct {
	of    *Leases
	unit  string
	value []byte
	rev   uint64

	mu    sync.Mutex
	until time.Time // monotonic
}

// Take takes the lease of a unit. It returns ErrHeld if another process has it.
func (l *Leases) Take(ctx context.Context, unit string, lease service.Lease) (*Held, error) {
	raw, err := encode(lease)
	if err != nil {
		return nil, err
	}
	// The store starts counting later.
	began := time.Now()
	rev, err := l.kv.Create(ctx, unit, raw)
	if conflict(err) {
		if silent := l.silent(ctx, unit); silent > 0 {
			began = time.Now()
			rev, err = l.kv.Update(ctx, unit, raw, silent)
		}
	}
	if err = as(ErrHeld, err); !errors.Is(err, ErrHeld) {
		l.mu.Lock()
		delete(l.holders, unit)
		l.mu.Unlock()
	}
	if err != nil {
		return nil, fmt.Errorf("take the lease of %s: %w", unit, err)
	}
	return &Held{of: l, unit: unit, value: raw, rev: rev, until: began.Add(l.ttl)}, nil
}

type holder struct {
	rev uint64
	at  time.Time // first seen, monotonic
}

// silent returns the revision of a lease that was not renewed for its time by this process' clock, else 0. The store
// uses its wall clock, which may have been set back.
func (l *Leases) silent(ctx context.Context, unit string) uint64 {
	e, err := l.kv.Get(ctx, unit)
	if err != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seen, ok := l.holders[unit]
	if !ok || seen.rev != e.Revision() {
		maps.DeleteFunc(l.holders, func(_ string, s holder) bool { return time.Since(s.at) > 10*l.ttl }) // no longer wanted
		l.holders[unit] = holder{e.Revision(), time.Now()}
		return 0
	}
	if time.Since(seen.at) <= l.ttl {
		return 0
	}
	return seen.rev
}

// Until returns when the lease ends without renewal, not later than the store does.
func (l *Held) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// Renew returns ErrHeld if the lease is lost. After other errors it lasts until Until.
func (l *Held) Renew(ctx context.Context) error {
	began := time.Now()
	rev, err := l.of.kv.Update(ctx, l.unit, l.value, l.rev)
	if conflict(err) {
		// The last renewal may be stored although its answer was lost.
		e, getErr := l.of.kv.Get(ctx, l.unit)
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
	l.until = began.Add(l.of.ttl)
	return nil
}

// Release releases the lease, unless it is lost.
func (l *Held) Release(ctx context.Context) error {
	err := l.of.kv.Delete(ctx, l.unit, jetstream.LastRevision(l.rev))
	if conflict(err) {
		return nil
	}
	return mongo.Wrap(err, "release the lease of %s", l.unit)
}
