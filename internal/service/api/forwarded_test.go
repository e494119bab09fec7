package api

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestForwarded: only trusted proxies name a client, and a client cannot invent an address.
func TestForwarded(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("127.0.0.1/32")}
	for _, c := range []struct{ peer, header, want string }{
		{"127.0.0.1:9", "192.0.2.7", "192.0.2.7:0"},
		{"[::ffff:127.0.0.1]:9", "192.0.2.7", "192.0.2.7:0"},
		{"127.0.0.1:9", "1.1.1.1, 192.0.2.7", "192.0.2.7:0"},
		{"127.0.0.1:9", "1.1.1.1, 192.0.2.7, 10.0.0.3", "192.0.2.7:0"},
		{"127.0.0.1:9", "1.1.1.1|192.0.2.7|10.0.0.3", "192.0.2.7:0"},
		{"127.0.0.1:9", "2001:db8::1", "[2001:db8::1]:0"},
		{"127.0.0.1:9", "", "127.0.0.1:9"},
		{"127.0.0.1:9", "1.1.1.1, nonsense", "127.0.0.1:9"},
		{"127.0.0.1:9", "10.0.0.4", "10.0.0.4:0"},
		{"192.0.2.1:9", "1.1.1.1", "192.0.2.1:9"},
	} {
		var got string
		h := forwarded(trusted, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr }))
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = c.peer
		for line := range strings.SplitSeq(c.header, "|") {
			r.Header.Add("X-Forwarded-For", line)
		}
		if h.ServeHTTP(httptest.NewRecorder(), r); got != c.want {
			t.Errorf("from %s, forwarded for %q: %s, want %s", c.peer, c.header, got, c.want)
		}
	}
}

// TestSlowBody: a body that does not arrive in time is the client's fault, not the service's.
func TestSlowBody(t *testing.T) {
	r := newRig(t)
	s := httptest.NewUnstartedServer(nil)
	s.Config = r.api.Server()
	if s.Config.WriteTimeout <= s.Config.ReadTimeout {
		t.Error("there is no time to reply to a body that does not arrive in time")
	}
	s.Config.ReadTimeout = 300 * time.Millisecond
	s.Start()
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = fmt.Fprintf(
		c,
		"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
			"Content-Length: 100\r\n\r\n{",
		PathJobs,
		r.tokens["admin"],
	)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%s", reply.Status)
	}
}
