package api

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// guessBurst wrong tokens may come from an address at once, and one each guessEvery.
	guessBurst  = 20
	guessEvery  = 3 * time.Second
	maxGuessers = 4096
)

// guesses count wrong tokens by the address that they come from; nil counts none.
type guesses struct {
	mu sync.Mutex
	by map[netip.Prefix]*rate.Limiter
}

func newGuesses() *guesses { return &guesses{by: map[netip.Prefix]*rate.Limiter{}} }

// network is what one client has of the addresses: of IPv6 a /64.
func network(from string) netip.Prefix {
	ip, err := netip.ParseAddr(from)
	if err != nil {
		return netip.Prefix{} // all whose address is not known share one
	}
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // of as many bits as it has, or fewer
	return p
}

// wrong counts a wrong token, and reports whether its address has to wait.
func (g *guesses) wrong(from string, now time.Time) (wait bool) {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := network(from)
	l := g.by[key]
	if l == nil {
		g.room(now)
		l = rate.NewLimiter(rate.Every(guessEvery), guessBurst)
		g.by[key] = l
	}
	return !l.AllowN(now, 1)
}

// room forgets addresses that have waited, and others if these are few, so that memory is bounded.
func (g *guesses) room(now time.Time) {
	if len(g.by) < maxGuessers {
		return
	}
	for key, l := range g.by {
		if l.TokensAt(now) >= guessBurst {
			delete(g.by, key)
		}
	}
	for key := range g.by {
		if len(g.by) <= maxGuessers/4*3 {
			return
		}
		delete(g.by, key)
	}
}
