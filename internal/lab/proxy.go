package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/rs/zerolog"
)

// client is what ownerOf says of a connection that no member made.
const client = -1

// Proxy stands before one member and spoils its connections on demand.
//
// The replica set knows its members by the addresses of their proxies, because
// drivers take the addresses from its configuration; members reach each other
// through the proxies too. So that a fault hits clients alone, the proxy asks
// the kernel (Linux) who made a connection and passes those of the cluster's
// own members through as they are; [Cluster.Isolate] cuts those. Elsewhere
// than on Linux all connections count as clients'.
type Proxy struct {
	listener net.Listener
	upstream string
	owner    func(net.Conn) int // index of the member that made it, or client
	server   *toxiproxy.ApiServer
	toxic    *toxiproxy.Proxy
	wg       sync.WaitGroup // the accept loop and everything that serves a connection

	mu       sync.Mutex // guards what follows
	closed   bool
	cut      bool         // clients are refused
	cutPeers map[int]bool // members that are refused
	pairs    map[*pair]bool
	serial   int
}

// newProxy listens on a free port and forwards to upstream.
func newProxy(port int, upstream string, owner func(net.Conn) int) (*Proxy, error) {
	listener, err := net.Listen("tcp", hostPort(port))
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy of %s: %w", upstream, err)
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{
		listener: listener, upstream: upstream, owner: owner, server: server,
		// Only its links are used. It never listens itself: its listener
		// would go away with every cut and might not get its port back.
		toxic:    toxiproxy.NewProxy(server, upstream, "", upstream),
		cutPeers: map[int]bool{}, pairs: map[*pair]bool{},
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is the host:port the proxy listens on.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Latency delays each answer of the member to its clients by d, plus or minus
// a random part of jitter; 0 ends it. It works on open connections too.
func (p *Proxy) Latency(d, jitter time.Duration) error {
	return p.spoil("latency", d > 0, stream.Downstream,
		fmt.Sprintf(`{"latency":%d,"jitter":%d}`, d.Milliseconds(), jitter.Milliseconds()))
}

// Bandwidth limits each connection and direction to so many kilobytes a
// second; 0 ends it. It works on open connections too.
func (p *Proxy) Bandwidth(kbps int) error {
	attributes := fmt.Sprintf(`{"rate":%d}`, kbps)
	return errors.Join(
		p.spoil("bandwidth", kbps > 0, stream.Upstream, attributes),
		p.spoil("bandwidth", kbps > 0, stream.Downstream, attributes))
}

// Stall lets connections stand but swallows all bytes, as a network does that
// lost its route; Restore ends it.
func (p *Proxy) Stall() error {
	return errors.Join(
		p.spoil("timeout", true, stream.Upstream, `{"timeout":0}`),
		p.spoil("timeout", true, stream.Downstream, `{"timeout":0}`))
}

// Cut drops the clients' connections and refuses new ones until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.Reset()
}

// Reset drops the clients' current connections; they may connect again.
func (p *Proxy) Reset() { p.drop(func(peer int) bool { return peer == client }) }

// Restore ends Cut, Stall, Latency and Bandwidth.
func (p *Proxy) Restore() {
	p.mu.Lock()
	p.cut = false
	p.mu.Unlock()
	if p.toxic.Toxics.GetToxic(toxicName("timeout", stream.Upstream)) != nil {
		p.Reset() // bytes are missing in these connections
	}
	p.toxic.Toxics.ResetToxics(context.Background())
}

// toxicName is a toxic's name in its collection.
func toxicName(kind string, direction stream.Direction) string {
	return kind + "_" + direction.String()
}

// spoil replaces or removes a toxic. It does not update one in place: running
// connections would read it at the same time.
func (p *Proxy) spoil(kind string, on bool, direction stream.Direction, attributes string) error {
	name := toxicName(kind, direction)
	err := p.toxic.Toxics.RemoveToxic(context.Background(), name)
	if err != nil && !errors.Is(err, toxiproxy.ErrToxicNotFound) {
		return fmt.Errorf("lab: end %s on proxy %s: %w", kind, p.Addr(), err)
	}
	if !on {
		return nil
	}
	if _, err := p.toxic.Toxics.AddToxicJson(toxicJSON(name, kind, direction, attributes)); err != nil {
		return fmt.Errorf("lab: set %s on proxy %s: %w", kind, p.Addr(), err)
	}
	return nil
}

// refuse sets whether a member is refused, and drops its connections if so.
func (p *Proxy) refuse(member int, yes bool) {
	p.mu.Lock()
	p.cutPeers[member] = yes
	p.mu.Unlock()
	if yes {
		p.drop(func(peer int) bool { return peer == member })
	}
}

// drop closes the connections of those that match.
func (p *Proxy) drop(match func(peer int) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		if match(pair.peer) {
			reset(pair.near)
			reset(pair.far)
		}
	}
}

// close ends the proxy and waits for everything it started.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.drop(func(int) bool { return true })
	p.toxic.Toxics.ResetToxics(context.Background()) // nobody waits for delayed bytes
	p.wg.Wait()
}

// accept serves connections until the listener is closed.
func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // that one has gone before it was served
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

// serve connects a client or member with the server.
func (p *Proxy) serve(conn net.Conn) {
	pr := &pair{near: conn, peer: p.owner(conn)}
	if !p.admits(pr.peer) {
		reset(conn)
		return
	}
	far, err := net.Dial("tcp", p.upstream)
	if err != nil {
		reset(conn)
		return
	}
	pr.far = far
	name, ok := p.add(pr)
	if !ok {
		pr.close()
		return
	}
	if pr.peer == client {
		p.link(pr, name)
		return
	}
	p.pass(pr)
}

// admits tells whether a connection may be made.
func (p *Proxy) admits(peer int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admitsLocked(peer)
}

func (p *Proxy) admitsLocked(peer int) bool {
	if peer == client {
		return !p.closed && !p.cut
	}
	return !p.closed && !p.cutPeers[peer]
}

// add makes a connection known, unless a cut came in between, and names it.
func (p *Proxy) add(pr *pair) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.admitsLocked(pr.peer) {
		return "", false
	}
	p.pairs[pr] = true
	p.serial++
	return strconv.Itoa(p.serial), true
}

// forget is called when a connection's last byte is done with.
func (p *Proxy) forget(pr *pair) {
	pr.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, pr)
}

// link lets a client's bytes run through the toxics.
func (p *Proxy) link(pr *pair, name string) {
	p.wg.Add(2)
	done := func() {
		p.forget(pr)
		p.wg.Done()
	}
	p.toxic.Toxics.StartLink(p.server, name+"up", pr.near, &sink{Conn: pr.far, pair: pr, done: done}, stream.Upstream)
	p.toxic.Toxics.StartLink(p.server, name+"down", pr.far, &sink{Conn: pr.near, pair: pr, done: done}, stream.Downstream)
}

// pass copies a member's bytes as they are.
func (p *Proxy) pass(pr *pair) {
	defer p.forget(pr)
	p.wg.Go(func() {
		_, _ = io.Copy(pr.far, pr.near)
		pr.close()
	})
	_, _ = io.Copy(pr.near, pr.far)
}

// pair is a connection to the proxy and the one it made to the server.
type pair struct {
	near, far net.Conn
	peer      int
}

// close ends both, after what was written; it may be called again.
func (pr *pair) close() {
	_ = pr.near.Close()
	_ = pr.far.Close()
}

// reset closes a connection as a crash does: bytes not yet sent are lost.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// sink is where a link's bytes go. It never fails: a link that cannot deliver
// stops reading its channel, and the next change of toxics would wait for it
// for ever. Instead both connections are closed, which ends the link at its
// source.
type sink struct {
	net.Conn
	pair   *pair
	done   func()
	broken bool // only the link's writer uses it
}

// Write delivers bytes, or drops them once the connection is broken.
func (s *sink) Write(b []byte) (int, error) {
	if s.broken {
		return len(b), nil
	}
	if _, err := s.Conn.Write(b); err != nil {
		s.broken = true
		s.pair.close()
	}
	return len(b), nil
}

// Close is called by the link as the last thing it does.
func (s *sink) Close() error {
	s.done()
	return nil
}
