package console

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/service"
)

const (
	// sessionTime is how long a login lasts.
	sessionTime = 12 * time.Hour
	// maxSessions bounds the sessions, maxOfOne those of one token. A new one ends the oldest.
	maxSessions = 1000
	maxOfOne    = 20
)

type session struct {
	name string
	// ask is called at each request. It returns the present role, or that the session has ended.
	ask   func() (*service.Caller, bool)
	form  string // the token of the session's forms
	began time.Time
}

// sessions end with the process.
type sessions struct {
	now func() time.Time

	mu   sync.Mutex
	byID map[string]*session
}

func (s *sessions) begin(ask func() (*service.Caller, bool), c *service.Caller) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tidy()
	if s.count(c.Name) >= maxOfOne {
		s.dropOldest(c.Name)
	}
	if len(s.byID) >= maxSessions {
		s.dropOldest("")
	}
	id := rand.Text()
	s.byID[id] = &session{ask: ask, name: c.Name, form: rand.Text(), began: s.now()}
	return id
}

func (s *sessions) tidy() {
	for id, one := range s.byID {
		if s.now().Sub(one.began) >= sessionTime {
			delete(s.byID, id)
		}
	}
}

func (s *sessions) count(name string) (n int) {
	for _, one := range s.byID {
		if one.name == name {
			n++
		}
	}
	return n
}

// dropOldest ends the oldest session of a name, or of all for "".
func (s *sessions) dropOldest(name string) {
	oldest := ""
	for id, one := range s.byID {
		if (name == "" || one.name == name) && (oldest == "" || one.began.Before(s.byID[oldest].began)) {
			oldest = id
		}
	}
	delete(s.byID, oldest)
}

// find returns the session of an id, nil if there is none or it has ended.
func (s *sessions) find(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byID[id]
	if one == nil || s.now().Sub(one.began) >= sessionTime {
		delete(s.byID, id)
		return nil
	}
	return one
}

func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}
