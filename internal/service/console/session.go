package console

import (
	"crypto/rand"
	"maps"
	"slices"
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
	// ask is called at each request. It returns the present role, nil when the session has ended.
	ask   func() *service.Caller
	form  string // the token of the session's forms
	began time.Time
}

// sessions end with the process.
type sessions struct {
	now func() time.Time

	mu   sync.Mutex
	byID map[string]*session
}

func (s *sessions) begin(ask func() *service.Caller, c *service.Caller) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byID, func(_ string, one *session) bool { return s.ended(one) })
	s.makeRoom(maxOfOne, func(name string) bool { return name == c.Name })
	s.makeRoom(maxSessions, func(string) bool { return true })
	id := rand.Text()
	s.byID[id] = &session{ask: ask, name: c.Name, form: rand.Text(), began: s.now()}
	return id
}

func (s *sessions) ended(one *session) bool { return s.now().Sub(one.began) >= sessionTime }

// makeRoom ends the oldest of some sessions if there are most.
func (s *sessions) makeRoom(most int, of func(name string) bool) {
	ids := slices.Collect(maps.Keys(s.byID))
	ids = slices.DeleteFunc(ids, func(id string) bool { return !of(s.byID[id].name) })
	if len(ids) >= most {
		delete(s.byID, slices.MinFunc(ids, func(a, b string) int { return s.byID[a].began.Compare(s.byID[b].began) }))
	}
}

// find returns the session of an id, nil if there is none or it has ended.
func (s *sessions) find(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byID[id]
	if one == nil || s.ended(one) {
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
