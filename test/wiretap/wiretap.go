// Package wiretap follows what a proxy of the lab sees its clients exchange with a server.
package wiretap

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/workshop/lab"
)

// Exchange is a request of a client and the server's answer, as a proxy saw them
// pass.
type Exchange struct {
	Conn           int           // of which connection, counted from 1
	What           string        // the command and the collection that it names
	Began, Ended   time.Duration // when request and answer were let out, since the watch began
	Sent, Received int           // bytes, as they went over the network
}

// String is one line of a list.
func (e Exchange) String() string {
	return fmt.Sprintf("%6d ms %6d ms  connection %-3d %8d B sent %8d B received  %s", e.Began.Milliseconds(),
		e.Ended.Milliseconds(), e.Conn, e.Sent, e.Received, e.What)
}

// Watch is what a proxy saw its clients exchange with the server. Connections on
// which a driver only looks after the server are left out.
type Watch struct {
	began time.Time

	mu        sync.Mutex
	conns     int
	exchanges []*Exchange
	chores    map[int]bool // connections on which nothing but greetings passed
}

// New begins a watch of the connections that clients make from now on. Another one takes its place.
func New(p *lab.Proxy) *Watch {
	w := &Watch{began: time.Now(), chores: map[int]bool{}}
	p.Tap(func() (sent, received func([]byte)) {
		t := w.tap()
		return t.sent, t.received
	})
	return w
}

// Exchanges are those that have been answered, in the order in which they began.
func (w *Watch) Exchanges() (all []Exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.exchanges {
		if e.Ended > 0 && !w.chores[e.Conn] {
			all = append(all, *e)
		}
	}
	slices.SortStableFunc(all, func(a, b Exchange) int { return cmp.Compare(a.Began, b.Began) })
	return all
}

// InTurn picks as many exchanges as can be found of which each began after the
// one before had ended: over a link where nothing but the round trip takes time
// their number is how many round trips a client took.
func InTurn(all []Exchange) (chain []Exchange) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Exchange) int { return cmp.Compare(a.Ended, b.Ended) })
	for _, e := range all {
		if len(chain) == 0 || e.Began >= chain[len(chain)-1].Ended {
			chain = append(chain, e)
		}
	}
	return chain
}

// wiretap follows both directions of one connection.
type wiretap struct {
	*Watch
	conn int
	// requests and answers are read by one goroutine each.
	requests, answers messages
	open              map[uint32]*Exchange // by the request's number; under mu
}

func (w *Watch) tap() *wiretap {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns++
	w.chores[w.conns] = true
	return &wiretap{Watch: w, conn: w.conns, open: map[uint32]*Exchange{}}
}

// sent takes bytes that go to the server.
func (t *wiretap) sent(b []byte) {
	t.requests.take(b, func(head []byte, size int) {
		e := &Exchange{Conn: t.conn, What: command(head), Began: time.Since(t.began), Sent: size}
		t.mu.Lock()
		defer t.mu.Unlock()
		if !greeting(e.What) {
			t.chores[t.conn] = false
		}
		t.open[binary.LittleEndian.Uint32(head[4:])] = e
		t.exchanges = append(t.exchanges, e)
	})
}

// received takes bytes that the client gets now.
func (t *wiretap) received(b []byte) {
	t.answers.take(b, func(head []byte, size int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if e := t.open[binary.LittleEndian.Uint32(head[8:])]; e != nil {
			e.Ended, e.Received = time.Since(t.began), size
			delete(t.open, binary.LittleEndian.Uint32(head[8:]))
		}
	})
}

// Of a message at most so much is looked at.
const headBytes = 512

// messages cuts a stream of bytes into wire messages.
type messages struct {
	head []byte // the begin of the message under way
	size int    // of it, 0 while that is not known
	seen int    // bytes of it so far
}

func (m *messages) take(b []byte, each func(head []byte, size int)) {
	for len(b) > 0 {
		n := len(b)
		if m.size == 0 {
			n = min(n, 4-m.seen)
		} else {
			n = min(n, m.size-m.seen)
		}
		m.head = append(m.head, b[:min(n, headBytes-len(m.head))]...)
		m.seen += n
		b = b[n:]
		if m.seen == 4 && m.size == 0 {
			m.size = max(int(binary.LittleEndian.Uint32(m.head)), 16)
		}
		if m.size > 0 && m.seen == m.size {
			each(m.head, m.size)
			*m = messages{head: m.head[:0]}
		}
	}
}

// Opcodes of the wire protocol.
const (
	opQuery      = 2004
	opCompressed = 2012
	opMsg        = 2013
)

// command is the first field of a request, and its value if that is a text.
func command(head []byte) string {
	const body = 16 + 4 + 1 + 4 // header, flags, kind of section, length of the document
	switch op := binary.LittleEndian.Uint32(head[12:]); {
	case op == opQuery:
		return "hello"
	case op == opCompressed:
		return "compressed"
	case op != opMsg || len(head) <= body:
		return fmt.Sprintf("opcode %d", op)
	}
	name, rest, _ := bytes.Cut(head[body+1:], []byte{0})
	if head[body] != 2 || len(rest) < 4 {
		return string(name)
	}
	value, _, _ := bytes.Cut(rest[4:], []byte{0})
	return string(name) + " " + string(value)
}

func greeting(what string) bool {
	return strings.EqualFold(what, "hello") || strings.EqualFold(what, "isMaster")
}
