package api

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/service"
)

const (
	// eventsEvery is how often at most a job is told of.
	eventsEvery = time.Second
	// lookAgain is when jobs are looked at though nothing was heard: a lease ends by itself.
	lookAgain = 5 * time.Second
	// heartbeatEvery is how often something is sent though there is nothing to tell.
	heartbeatEvery = 15 * time.Second
	// maxListeners bounds those who listen to events.
	maxListeners = 200
	// sendTime is how long a listener may take to take what is sent.
	sendTime = 10 * time.Second
)

// board is what all listeners are told from: the summaries, written once for all. A
// listener remembers which writing of each job it was told, and nothing else.
type board struct {
	listeners atomic.Int64

	mu    sync.Mutex
	at    time.Time
	count uint64
	now   []posted
}

// posted is a summary as it is sent. What it holds is not changed.
type posted struct {
	name string
	text []byte
	n    uint64 // another one each time that the text is another
}

// look is the board as it stands, written anew if it is older than eventsEvery.
func (b *board) look(jobs func() []service.Job) ([]posted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) < eventsEvery/2 {
		return b.now, nil
	}
	before := make(map[string]posted, len(b.now))
	for _, p := range b.now {
		before[p.name] = p
	}
	var next []posted
	for _, j := range jobs() {
		text, err := encode(summary(&j))
		if err != nil {
			return nil, err
		}
		p := posted{name: j.Definition.Name, text: text}
		if was, ok := before[p.name]; ok && bytes.Equal(was.text, text) {
			p = was
		} else {
			b.count++
			p.n = b.count
		}
		next = append(next, p)
	}
	b.now, b.at = next, time.Now()
	return next, nil
}

// listener is one who listens.
type listener struct {
	*call
	rc   *http.ResponseController
	told map[string]uint64 // which writing of each job
}

// events tells of jobs until the listener goes, the token is no more, or the server ends.
func (a *API) events(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	defer a.board.listeners.Add(-1)
	if a.board.listeners.Add(1) > maxListeners {
		c.w.Header().Set("Retry-After", "60")
		return refuse(http.StatusTooManyRequests, CodeTooMany, "end some of them", "%d listen to events already", maxListeners)
	}
	l := &listener{call: c, rc: http.NewResponseController(c.w), told: map[string]uint64{}}
	_ = l.rc.SetReadDeadline(time.Time{}) // where it passes, the request is canceled
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("X-Accel-Buffering", "no")
	// A write that fails has nobody to tell it to.
	if a.tell(l, true) == nil {
		a.follow(l)
	}
	return nil
}

func (a *API) follow(l *listener) {
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	for {
		changed, _ := a.o.Desk.View.Changed()
		pause := time.NewTimer(eventsEvery)
		again := time.NewTimer(lookAgain)
		var err error
		select {
		case <-pause.C: // what happens meanwhile is told together
			select {
			case <-changed:
			case <-again.C:
			case <-heartbeat.C:
				err = a.beat(l)
			case <-l.Context().Done():
				return
			case <-a.ended:
				return
			}
		case <-l.Context().Done():
			return
		case <-a.ended:
			return
		}
		pause.Stop()
		again.Stop()
		if err != nil || a.tell(l, false) != nil {
			return
		}
	}
}

// beat shows that the connection lives, and ends it where the token is another's by now.
func (a *API) beat(l *listener) error {
	now := a.o.Tokens.Whose(l.token)
	if now == nil || now.Name != l.caller.Name || now.Role != l.caller.Role || !slices.Equal(now.Jobs, l.caller.Jobs) {
		return ErrWrongToken
	}
	return l.send([]byte(": heartbeat\n\n"))
}

// tell sends what is new to the listener: all of it in one event, or an event each.
func (a *API) tell(l *listener, all bool) error {
	jobs, err := a.board.look(a.o.Desk.View.Jobs)
	if err != nil {
		return err
	}
	gone := make(map[string]bool, len(l.told))
	for name := range l.told {
		gone[name] = true
	}
	var texts [][]byte
	for _, p := range jobs {
		if !l.caller.Sees(p.name) {
			continue
		}
		delete(gone, p.name)
		if l.told[p.name] != p.n {
			l.told[p.name] = p.n
			texts = append(texts, p.text)
		}
	}
	if all {
		return l.snapshot(texts)
	}
	for _, text := range texts {
		if err := l.send([]byte("event: job\ndata: "), text, []byte("\n\n")); err != nil {
			return err
		}
	}
	for name := range gone {
		delete(l.told, name)
		text, err := encode(Removed{name})
		if err != nil {
			return err
		}
		if err := l.send([]byte("event: removed\ndata: "), text, []byte("\n\n")); err != nil {
			return err
		}
	}
	return l.flush()
}

func (l *listener) snapshot(texts [][]byte) error {
	if err := l.send([]byte("event: snapshot\ndata: {\"jobs\":[")); err != nil {
		return err
	}
	for i, text := range texts {
		comma := []byte(",")
		if i == 0 {
			comma = nil
		}
		if err := l.send(comma, text); err != nil {
			return err
		}
	}
	return errors.Join(l.send([]byte("]}\n\n")), l.flush())
}

// send writes to the listener alone: one that does not read is given up after a while.
func (l *listener) send(parts ...[]byte) error {
	if err := l.rc.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := l.w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func (l *listener) flush() error { return l.rc.Flush() }
