package api

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
)

const (
	// eventsEvery is the least interval of events of a job.
	eventsEvery = time.Second
	// boardAge bounds the age of sent summaries.
	boardAge = eventsEvery / 2
	// lookAgain is the interval without changes: leases expire silently.
	lookAgain      = 5 * time.Second
	heartbeatEvery = 15 * time.Second
	maxListeners   = 200
	// maxOfOne bounds the listeners of one token or person, who must leave room for others.
	maxOfOne = 40
	// sendTime bounds a write to a listener.
	sendTime = 10 * time.Second
)

type board struct {
	listeners listeners

	mu      sync.Mutex
	at      time.Time
	version uint64 // of the view
	count   uint64
	now     []posted
}

// listeners counts those who listen, also by name.
type listeners struct {
	mu  sync.Mutex
	all int
	by  map[string]int
}

// enter returns an error where too many listen.
func (l *listeners) enter(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all >= maxListeners:
		return refuse(CodeTooMany, "end some of them", "%d listen to events already",
			maxListeners)
	case l.by[name] >= maxOfOne:
		return refuse(CodeTooMany, "end some of them", "%s has %d event streams already",
			name, maxOfOne)
	}
	if l.by == nil {
		l.by = map[string]int{}
	}
	l.all, l.by[name] = l.all+1, l.by[name]+1
	return nil
}

func (l *listeners) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.by[name]--; l.by[name] == 0 {
		delete(l.by, name)
	}
}

// posted is immutable.
type posted struct {
	name     string
	text     []byte
	redacted []byte // for viewers
	n        uint64 // grows when text changes
}

func (b *board) look(view View) (now []posted, fresh bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, version := view.Changed() // before the look, which may see more
	if age := time.Since(b.at); age < boardAge || version == b.version && age < lookAgain {
		return b.now, version == b.version, nil
	}
	before := make(map[string]posted, len(b.now))
	for _, p := range b.now {
		before[p.name] = p
	}
	var next []posted
	for _, j := range view.Jobs() {
		redacted := j.Redact()
		all, some := summary(&j), summary(&redacted)
		text, err := encode(all)
		p := posted{name: j.Definition.Name, text: text, redacted: text}
		if err == nil && (some.Error != all.Error || some.Unmet != all.Unmet) {
			p.redacted, err = encode(some)
		}
		if err != nil {
			return nil, false, err
		}
		if was, ok := before[p.name]; ok && bytes.Equal(was.text, text) {
			p = was
		} else {
			b.count++
			p.n = b.count
		}
		next = append(next, p)
	}
	b.now, b.at, b.version = next, time.Now(), version
	return next, true, nil
}

type news struct {
	view  View
	board board
	ended <-chan struct{}
}

type listener struct {
	*call
	rc   *http.ResponseController
	sent map[string]uint64 // posted.n by job
	// changed is closed at a change after the last look. fresh is false if one came before.
	changed <-chan struct{}
	fresh   bool
}

// events sends changes of jobs until the listener leaves, its token ends, or the server ends.
func (n *news) events(c *call) (any, error) {
	name := c.caller.Name
	if err := n.board.listeners.enter(name); err != nil {
		c.w.Header().Set("Retry-After", "60")
		return nil, err
	}
	defer n.board.listeners.leave(name)
	l := &listener{call: c, rc: http.NewResponseController(c.w), sent: map[string]uint64{}}
	server.Extend(c.w, sendTime)
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("X-Accel-Buffering", "no")
	// There is no one to report a failed write to.
	if n.tell(l, true) == nil {
		n.follow(l)
	}
	return sent{}, nil
}

func (n *news) follow(l *listener) {
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	for n.sleep(l, heartbeat.C) == nil && n.tell(l, false) == nil {
	}
}

func (n *news) sleep(l *listener, heartbeat <-chan time.Time) error {
	pause, again := time.NewTimer(eventsEvery), time.NewTimer(lookAgain)
	defer pause.Stop()
	defer again.Stop()
	var changed <-chan struct{} // nil during the pause
	for {
		select {
		case <-pause.C:
			if !l.fresh {
				return nil
			}
			changed = l.changed
		case <-changed:
			return nil
		case <-again.C:
			return nil
		case <-heartbeat:
			if err := n.beat(l); err != nil {
				return err
			}
		case <-l.Context().Done():
			return l.Context().Err()
		case <-n.ended:
			return http.ErrServerClosed
		}
	}
}

// beat keeps the connection alive, and ends it if the token has ended or changed.
func (n *news) beat(l *listener) error {
	now := l.again()
	if now == nil || now.Name != l.caller.Name || now.Role != l.caller.Role || !slices.Equal(now.Jobs, l.caller.Jobs) {
		return ErrWrongToken
	}
	return errors.Join(l.send([]byte(": heartbeat\n\n")), l.rc.Flush())
}

// tell sends what is new: all of it in one event, or one event per job.
func (n *news) tell(l *listener, all bool) error {
	l.changed, _ = n.view.Changed()
	jobs, fresh, err := n.board.look(n.view)
	if l.fresh = fresh; err != nil {
		return err
	}
	now := make(map[string]uint64, len(jobs))
	var texts [][]byte
	for _, p := range jobs {
		if !l.caller.Sees(p.name) {
			continue
		}
		if now[p.name] = p.n; l.sent[p.name] == p.n {
			continue
		}
		if l.caller.Role.May(service.Operator) {
			texts = append(texts, p.text)
		} else {
			texts = append(texts, p.redacted)
		}
	}
	sent := l.sent
	if l.sent = now; all {
		return l.snapshot(texts)
	}
	for _, text := range texts {
		if err := l.send([]byte("event: job\ndata: "), text, []byte("\n\n")); err != nil {
			return err
		}
	}
	for name := range sent {
		if _, there := now[name]; there {
			continue
		}
		text, err := encode(Removed{name})
		if err != nil {
			return err
		}
		if err := l.send([]byte("event: removed\ndata: "), text, []byte("\n\n")); err != nil {
			return err
		}
	}
	return l.rc.Flush()
}

func (l *listener) snapshot(texts [][]byte) error {
	parts := [][]byte{[]byte("event: snapshot\ndata: {\"jobs\":[")}
	for i, text := range texts {
		if i > 0 {
			parts = append(parts, []byte(","))
		}
		parts = append(parts, text)
	}
	return errors.Join(l.send(append(parts, []byte("]}\n\n"))...), l.rc.Flush())
}

// send gives up a listener that does not read.
func (l *listener) send(parts ...[]byte) error {
	for _, p := range parts {
		if err := l.rc.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
			return err
		}
		if _, err := l.w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
