package lab

import (
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// faults are what a proxy does to its clients' connections at the moment. A
// value is never changed: another takes its place, and changed is closed.
type faults struct {
	latency time.Duration
	jitter  time.Duration
	rate    int // bytes a second of a connection and direction, 0 for no limit
	// up and down are what all connections share, to the member and from it; nil
	// for no limit.
	up, down *link
	stalled  bool
	changed  chan struct{}
}

// pair is a connection to the proxy and the one it made to the server.
type pair struct {
	near, far net.Conn
	peer      int
	tap       *wiretap // nil when nobody watches
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
	// chunkSize is how much is read at once, and chunkQueue how many of those
	// may be under way: 8 MB, for bytes must wait somewhere for their time.
	chunkSize  = 64 << 10
	chunkQueue = 128
	// shortWait is up to when the runtime's timers are too coarse, and nobody
	// minds that a wait is not interrupted.
	shortWait = 5 * time.Millisecond
	// pieceTime is how much of a limited bandwidth is used up at a time.
	pieceTime = 20 * time.Millisecond
)

// chunk is some bytes under way.
type chunk struct {
	buf  []byte // as it came from the pool
	n    int
	read time.Time
	luck float64 // which part of the jitter it gets, from -1 to 1
}

// shaper carries one direction of a client's connection.
type shaper struct {
	proxy   *Proxy
	pair    *pair
	src     net.Conn
	dst     net.Conn
	delayed bool         // the direction that latency applies to
	seen    func([]byte) // is told of what is let out
	queue   chan chunk
	alarm   *alarm // for short waits; made when it is first needed
}

// read takes bytes in until the source ends.
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

// share takes n bytes of what all connections share, and returns when they will
// have passed.
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

// take adds n bytes to what is carried and returns when they will have passed. A
// nil link carries all at once.
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

// wait waits until a time that depends on the faults, and until nothing is
// stalled; it thinks again when the faults change. False means that the
// connection has ended.
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

// nap waits for a short time.
func (s *shaper) nap(d time.Duration) (err error) {
	if s.alarm == nil {
		if s.alarm, err = newAlarm(); err != nil {
			return err
		}
	}
	return s.alarm.wait(d)
}
