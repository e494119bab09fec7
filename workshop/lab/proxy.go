package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// client is what ownerOf says of a connection that no member made.
const client = -1

// Proxy stands before one member and disturbs its connections on demand. The set knows its members by their
// proxies' addresses, as drivers take these from its configuration. So that a fault hits clients alone, the proxy
// asks the kernel (Linux) who made a connection and passes on those of members, but for Options.PeerLatency and
// [Cluster.Isolate]. On other systems all connections count as clients'.
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
	tap      func() (sent, received func([]byte))
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

// Divert forwards new connections to another address, which stands between the proxy and the member.
func (p *Proxy) Divert(addr string) { p.locked(func() { p.upstream = addr }) }

// Latency delays each answer to clients by d, plus or minus a part of jitter, on open connections too; 0 ends it.
func (p *Proxy) Latency(d, jitter time.Duration) {
	p.spoil(func(f *faults) { f.latency, f.jitter = d, jitter })
}

// Bandwidth limits each connection and direction, open ones too, to kbps times 1000 bytes a second; 0 ends it.
func (p *Proxy) Bandwidth(kbps int) { p.spoil(func(f *faults) { f.rate = kbps * 1000 }) }

// Link limits all connections together, in each direction, to kbps times 1000 bytes a second; 0 ends it.
func (p *Proxy) Link(kbps int) {
	p.spoil(func(f *faults) {
		f.up, f.down = nil, nil
		if kbps > 0 {
			f.up, f.down = &link{rate: kbps * 1000}, &link{rate: kbps * 1000}
		}
	})
}

// Stall delays all bytes while connections stand, as a network without a route does, until Restore.
func (p *Proxy) Stall() { p.spoil(func(f *faults) { f.stalled = true }) }

// Cut drops the clients' connections and refuses new ones until Restore.
func (p *Proxy) Cut() {
	p.locked(func() { p.cut = true })
	p.Reset()
}

// Reset drops the clients' current connections; they may connect again.
func (p *Proxy) Reset() { p.drop(func(peer int) bool { return peer == client }) }

// Restore ends Cut, Stall, Latency, Bandwidth and Link.
func (p *Proxy) Restore() {
	p.locked(func() { p.cut = false })
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
	p.locked(func() { p.cutPeers[member] = yes })
	if yes {
		p.drop(func(peer int) bool { return peer == member })
	}
}

func (p *Proxy) locked(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

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
	p.locked(func() { p.closed = true })
	_ = p.listener.Close()
	p.drop(func(int) bool { return true })
	p.wg.Wait()
}

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
	var to string
	p.locked(func() { to = p.upstream })
	far, err := net.Dial("tcp", to)
	if err != nil {
		linger0(conn) // as a server does that is down
		return
	}
	pr := &pair{near: conn, far: far, peer: peer, ended: make(chan struct{})}
	pr.sent, pr.received = p.taps(peer)
	defer pr.close()
	if !p.add(pr) {
		return
	}
	defer p.locked(func() { delete(p.pairs, pr) })
	if peer == client || p.peers > 0 {
		p.shape(pr)
		return
	}
	pass(pr)
}

// Tap gives two functions, made for each new connection of a client, the bytes to the server and to the client.
func (p *Proxy) Tap(tap func() (sent, received func([]byte))) { p.locked(func() { p.tap = tap }) }

func (p *Proxy) taps(peer int) (sent, received func([]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if peer == client && p.tap != nil {
		return p.tap()
	}
	nothing := func([]byte) {}
	return nothing, nothing
}

// admits reports whether a connection may be made.
func (p *Proxy) admits(peer int) (yes bool) {
	p.locked(func() { yes = p.admitsLocked(peer) })
	return yes
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

func (p *Proxy) shape(pr *pair) {
	up := &shaper{proxy: p, pair: pr, src: pr.near, dst: pr.far, seen: pr.sent, queue: make(chan chunk, chunkQueue)}
	down := &shaper{proxy: p, pair: pr, src: pr.far, dst: pr.near, seen: pr.received, queue: make(chan chunk, chunkQueue),
		delayed: true}
	var wg sync.WaitGroup
	for _, work := range []func(){up.read, up.write, down.read, down.write} {
		wg.Go(work)
	}
	wg.Wait()
}

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

// faults are what clients' connections suffer. A value never changes: another replaces it, and changed is closed.
type faults struct {
	latency  time.Duration
	jitter   time.Duration
	rate     int   // bytes a second of a connection and direction, 0 for no limit
	up, down *link // up and down are what all connections share, to the member and from it; nil for no limit.
	stalled  bool
	changed  chan struct{}
}

// pair is a connection to the proxy and the one it made to the server.
type pair struct {
	near, far net.Conn
	peer      int
	sent      func([]byte) // sees what is let out to the server
	received  func([]byte) // and to the client
	once      sync.Once
	ended     chan struct{} // closed by close
}

// close ends both, after what was written; it may be called again.
func (pr *pair) close() {
	pr.once.Do(func() {
		close(pr.ended)
		_ = pr.near.Close()
		_ = pr.far.Close()
	})
}

// reset ends both as a crash does: bytes not yet sent are lost.
func (pr *pair) reset() {
	linger0(pr.near)
	linger0(pr.far)
	pr.close()
}

// linger0 makes the later Close drop the connection.
func linger0(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

const (
	chunkSize  = 64 << 10 // how much is read at once, chunkQueue how many chunks wait for their time: 8 MB.
	chunkQueue = 128
	// shortWait is the longest wait that uses alarm, which is not interrupted: the runtime's timers are coarse.
	shortWait = 5 * time.Millisecond
	pieceTime = 20 * time.Millisecond // how much of a limited bandwidth is used up at a time.
)

// chunk is some bytes under way.
type chunk struct {
	buf  []byte // as it came from the pool
	n    int
	read time.Time
	luck float64 // which part of the jitter it gets, from -1 to 1
}

type shaper struct {
	proxy   *Proxy
	pair    *pair
	src     net.Conn
	dst     net.Conn
	delayed bool         // the direction that latency applies to
	seen    func([]byte) // called with what is sent on
	queue   chan chunk
	alarm   *alarm // for short waits; made when it is first needed
}

func (s *shaper) read() {
	defer close(s.queue)
	for {
		buf := *s.proxy.buffers.Get().(*[]byte)
		n, err := s.src.Read(buf)
		if n > 0 {
			select {
			case s.queue <- chunk{buf: buf, n: n, read: time.Now(), luck: 2*rand.Float64() - 1}:
			case <-s.pair.ended:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// write lets the bytes out, each in its time, and then ends the connection.
func (s *shaper) write() {
	defer s.pair.close()
	defer func() {
		if s.alarm != nil {
			s.alarm.close()
		}
	}()
	for c := range s.queue {
		if !s.deliver(c) {
			return
		}
		s.proxy.buffers.Put(&c.buf)
	}
}

// faults are those of the connection: a member's has but its latency.
func (s *shaper) faults() *faults {
	if s.pair.peer != client {
		return &faults{latency: s.proxy.peers}
	}
	return s.proxy.faults.Load()
}

// deliver writes one chunk; false means that the connection has ended.
func (s *shaper) deliver(c chunk) bool {
	due := func(f *faults) time.Time {
		if !s.delayed {
			return c.read
		}
		return c.read.Add(f.latency + time.Duration(c.luck*float64(f.jitter)))
	}
	if !s.wait(due) {
		return false
	}
	for data := c.buf[:c.n]; len(data) > 0; {
		n := len(data)
		if rate := s.faults().rate; rate > 0 {
			n = min(n, max(1, rate*int(pieceTime/time.Millisecond)/1000))
		}
		begin := time.Now()
		s.seen(data[:n])
		if _, err := s.dst.Write(data[:n]); err != nil {
			return false
		}
		data = data[n:]
		passed := s.share(n)
		if !s.wait(func(f *faults) time.Time { return later(begin.Add(transferTime(n, f.rate)), passed) }) {
			return false
		}
	}
	return true
}

// share takes n bytes of what all connections share, and returns when they will have passed.
func (s *shaper) share(n int) time.Time {
	f := s.faults()
	if s.delayed {
		return f.down.take(n)
	}
	return f.up.take(n)
}

// link is a bandwidth that several connections share.
type link struct {
	rate int // bytes a second

	mu   sync.Mutex
	free time.Time // from when on it has nothing to carry
}

// take adds n bytes to what is carried and returns when they will have passed. A nil link carries all at once.
func (l *link) take(n int) time.Time {
	if l == nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = later(l.free, time.Now()).Add(transferTime(n, l.rate))
	return l.free
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// transferTime is how long n bytes take at a rate.
func transferTime(n, rate int) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// wait waits until a time that depends on the faults, and while stalled; false when the connection has ended.
func (s *shaper) wait(until func(*faults) time.Time) bool {
	for {
		f := s.faults()
		left := time.Until(until(f))
		if left <= 0 && !f.stalled {
			return true
		}
		if left < shortWait && !f.stalled {
			if s.nap(left) != nil {
				return false
			}
			continue
		}
		var due <-chan time.Time // never, while stalled
		if !f.stalled {
			due = time.After(left)
		}
		select {
		case <-due:
		case <-f.changed:
		case <-s.pair.ended:
			return false
		}
	}
}

func (s *shaper) nap(d time.Duration) (err error) {
	if s.alarm == nil {
		if s.alarm, err = newAlarm(); err != nil {
			return err
		}
	}
	return s.alarm.wait(d)
}

// startProxies puts a proxy or what else the options want before each member.
func (c *Cluster) startProxies(ctx context.Context) error {
	for i, port := range c.layout.Proxies {
		if err := c.startProxy(ctx, c.members[i], port); err != nil {
			return err
		}
	}
	return nil
}

// startProxy puts before a member what the options want, known by a port.
func (c *Cluster) startProxy(ctx context.Context, m *Member, port int) (err error) {
	upstream := m.Host()
	if c.opts.Front != nil {
		own := 0 // a free one behind a proxy
		if !c.opts.Proxy {
			own = port
		}
		m.front, err = c.opts.Front(ctx, hostPort(own), upstream)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = errPortTaken
		}
		if err != nil {
			m.front = nil
			return err
		}
		upstream = m.front.Host()
	}
	if c.opts.Proxy {
		m.proxy, err = newProxy(port, upstream, c.ownerOf, c.opts.PeerLatency)
	}
	return err
}

// closeFront ends what stands before a member.
func (m *Member) closeFront() error {
	if m.proxy != nil {
		m.proxy.close()
	}
	if m.front == nil {
		return nil
	}
	return Wrap(m.front.Close(), "lab: end what stands before member %d", m.Index)
}

// ownerOf reports which member made a connection to a proxy.
func (c *Cluster) ownerOf(conn net.Conn) int {
	var pids []int
	for _, m := range c.members {
		pids = append(pids, m.Pid())
	}
	return connectionOwner(conn, pids)
}

// Isolate cuts a member off from the others, not from clients. What a primary writes then will roll back.
func (c *Cluster) Isolate(i int) error { return c.isolate(i, true) }

// CanIsolate reports whether the maker of a connection is known. wine's server makes those of all its programs.
func (c *Cluster) CanIsolate() bool { return c.opts.Proxy && !c.byWine() }

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(i int) error { return c.isolate(i, false) }

func (c *Cluster) isolate(i int, yes bool) error {
	if !c.opts.Proxy {
		return fmt.Errorf("lab: cluster %s has no proxies; start it with Options.Proxy", c.Name())
	}
	if !c.CanIsolate() {
		return fmt.Errorf("lab: cannot tell members of cluster %s apart by their connections: wine runs them",
			c.Name())
	}
	for _, m := range c.members {
		if m.Index == i {
			continue
		}
		m.proxy.refuse(i, yes)
		c.members[i].proxy.refuse(m.Index, yes)
	}
	return nil
}
