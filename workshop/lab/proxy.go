package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// client is what ownerOf says of a connection that no member made.
const client = -1

// Proxy stands before one member and spoils its connections on demand.
//
// The replica set knows its members by the addresses of their proxies, because
// drivers take the addresses from its configuration; members reach each other
// through the proxies too. So that a fault hits clients alone, the proxy asks
// the kernel (Linux) who made a connection and passes those of the cluster's
// own members through as they are, but for Options.PeerLatency;
// [Cluster.Isolate] cuts those. Elsewhere
// than on Linux all connections count as clients'.
type Proxy struct {
	listener net.Listener
	upstream string
	owner    func(net.Conn) int // index of the member that made it, or client
	peers    time.Duration      // latency between members; set before the first connects
	buffers  sync.Pool
	faults   atomic.Pointer[faults] // replaced under mu
	wg       sync.WaitGroup         // the accept loop and everything that serves a connection

	mu       sync.Mutex // guards what follows
	closed   bool
	cut      bool         // clients are refused
	cutPeers map[int]bool // members that are refused
	pairs    map[*pair]bool
	watch    *Watch
}

// newProxy listens on a port and forwards to upstream.
func newProxy(port int, upstream string, owner func(net.Conn) int, peers time.Duration) (*Proxy, error) {
	listener, err := listen(port)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = errPortTaken
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy of %s: %w", upstream, err)
	}
	p := &Proxy{
		listener: listener, upstream: upstream, owner: owner, peers: peers,
		buffers:  sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }},
		cutPeers: map[int]bool{}, pairs: map[*pair]bool{},
	}
	p.faults.Store(&faults{changed: make(chan struct{})})
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is the host:port the proxy listens on.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Divert has what the proxy accepts from now on forwarded to another address, which stands
// between it and the member.
func (p *Proxy) Divert(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = addr
}

func (p *Proxy) to() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstream
}

// Latency delays each answer of the member to its clients by d, plus or minus
// a random part of jitter; 0 ends it. It works on open connections too.
func (p *Proxy) Latency(d, jitter time.Duration) {
	p.spoil(func(f *faults) { f.latency, f.jitter = d, jitter })
}

// Bandwidth limits each connection and direction to so many kilobytes (of 1000
// bytes) a second; 0 ends it. It works on open connections too.
func (p *Proxy) Bandwidth(kbps int) { p.spoil(func(f *faults) { f.rate = kbps * 1000 }) }

// Link limits what all connections together may carry to so many kilobytes (of
// 1000 bytes) a second in each direction, as a network between two places does; 0
// ends it. It works on open connections too.
func (p *Proxy) Link(kbps int) {
	p.spoil(func(f *faults) {
		f.up, f.down = nil, nil
		if kbps > 0 {
			f.up, f.down = &link{rate: kbps * 1000}, &link{rate: kbps * 1000}
		}
	})
}

// Stall holds all bytes back while connections stand, as a network does that
// has lost its route; Restore lets them flow again.
func (p *Proxy) Stall() { p.spoil(func(f *faults) { f.stalled = true }) }

// Cut drops the clients' connections and refuses new ones until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.Reset()
}

// Reset drops the clients' current connections; they may connect again.
func (p *Proxy) Reset() { p.drop(func(peer int) bool { return peer == client }) }

// Restore ends Cut, Stall, Latency, Bandwidth and Link.
func (p *Proxy) Restore() {
	p.mu.Lock()
	p.cut = false
	p.mu.Unlock()
	p.spoil(func(f *faults) { *f = faults{} })
}

// spoil changes the faults and reports all connections.
func (p *Proxy) spoil(change func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.faults.Load()
	f := *old
	change(&f)
	f.changed = make(chan struct{})
	p.faults.Store(&f)
	close(old.changed)
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
			pair.reset()
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

// serve connects a client or member with the server until either hangs up.
func (p *Proxy) serve(conn net.Conn) {
	defer conn.Close()
	peer := p.owner(conn)
	if !p.admits(peer) {
		linger0(conn)
		return
	}
	far, err := net.Dial("tcp", p.to())
	if err != nil {
		linger0(conn) // as a server does that is down
		return
	}
	pr := &pair{near: conn, far: far, peer: peer, tap: p.tap(peer), ended: make(chan struct{})}
	defer pr.close()
	if !p.add(pr) {
		return
	}
	defer p.forget(pr)
	if peer == client || p.peers > 0 {
		p.shape(pr)
		return
	}
	pass(pr)
}

// tap has the watch, if there is one, see what passes on a client's connection.
func (p *Proxy) tap(peer int) *wiretap {
	p.mu.Lock()
	defer p.mu.Unlock()
	if peer != client {
		return nil
	}
	return p.watch.tap()
}

// admits reports whether a connection may be made.
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

// add makes a connection known, unless a cut came in between.
func (p *Proxy) add(pr *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.admitsLocked(pr.peer) {
		return false
	}
	p.pairs[pr] = true
	return true
}

// forget is called when a connection has ended.
func (p *Proxy) forget(pr *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, pr)
}

// shape carries a client's bytes through the faults.
func (p *Proxy) shape(pr *pair) {
	up := &shaper{proxy: p, pair: pr, src: pr.near, dst: pr.far, seen: pr.tap.sent, queue: make(chan chunk, chunkQueue)}
	down := &shaper{proxy: p, pair: pr, src: pr.far, dst: pr.near, seen: pr.tap.received, queue: make(chan chunk, chunkQueue), delayed: true}
	var wg sync.WaitGroup
	for _, work := range []func(){up.read, up.write, down.read, down.write} {
		wg.Go(work)
	}
	wg.Wait()
}

// pass copies a member's bytes as they are.
func pass(pr *pair) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer pr.close()
		_, _ = io.Copy(pr.far, pr.near)
	})
	_, _ = io.Copy(pr.near, pr.far)
	pr.close()
	wg.Wait()
}
