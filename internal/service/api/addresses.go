package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// An address may send guessBurst wrong tokens, then one each guessEvery.
	guessBurst  = 20
	guessEvery  = 3 * time.Second
	maxGuessers = 4096
)

// guesses count wrong tokens by network; nil counts none.
type guesses struct {
	mu sync.Mutex
	by map[netip.Prefix]*rate.Limiter
}

func newGuesses() *guesses { return &guesses{by: map[netip.Prefix]*rate.Limiter{}} }

func network(from string) netip.Prefix {
	ip, err := netip.ParseAddr(from)
	if err != nil {
		return netip.Prefix{} // unknown addresses share one
	}
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // bits is valid
	return p
}

// wrong counts a wrong token. wait means that its network must wait.
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

// room bounds memory: it forgets networks that need not wait, or else others.
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

// forwarded sets a request's address to the client's if a trusted proxy sent it: the last address of X-Forwarded-For
// that is not a trusted proxy's. Clients may write what comes before.
func forwarded(trusted []netip.Prefix, next http.Handler) http.Handler {
	if len(trusted) == 0 {
		return next
	}
	ours := func(ip netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		for ip := peer.Addr().Unmap(); err == nil && ours(ip) && len(list) > 0; list = list[:len(list)-1] {
			if ip, err = netip.ParseAddr(strings.TrimSpace(list[len(list)-1])); err == nil {
				ip = ip.Unmap()
				r.RemoteAddr = net.JoinHostPort(ip.String(), "0")
			}
		}
		next.ServeHTTP(w, r)
	})
}
