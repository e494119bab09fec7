package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// forwarded sets a request's address to the client's where one of the trusted proxies sent it: the last address of
// X-Forwarded-For that is not a trusted proxy's. What stands before it in the header the client may have written.
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
