package console

import (
	"context"
	"crypto/rand"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/service"
)

type logins struct {
	*Options
	*pages
	sessions *sessions
	// warnings bounds the lines of the log that anybody can cause.
	warnings *rate.Limiter
}

func (l *logins) warn(r *http.Request, what string, err error) {
	if l.warnings.Allow() {
		l.Log.Warn(what, "from", address(r), "error", err)
	}
}

func (l *logins) cookieName() string {
	if l.Secure {
		return "__Host-millrace"
	}
	return "millrace-session"
}

// visitor returns the session of a request, nil if there is none or its token is no longer valid.
func (l *logins) visitor(r *http.Request) *visit {
	cookie, err := r.Cookie(l.cookieName())
	if err != nil {
		return nil
	}
	s := l.sessions.find(cookie.Value)
	if s == nil {
		return nil
	}
	who := s.ask()
	if who == nil {
		l.sessions.end(cookie.Value)
		return nil
	}
	now := *who
	now.From = address(r)
	return &visit{who: &now, session: s}
}

func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// next returns where a login leads: to a page of the console and nowhere else.
func next(page string) string {
	u, err := url.Parse(page)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(page, "/") || strings.HasPrefix(page, "//") ||
		strings.Contains(page, `\`) || strings.HasPrefix(u.Path, "/log") {
		return "/jobs"
	}
	return page
}

func (l *logins) loginPage(w http.ResponseWriter, r *http.Request) {
	_ = l.show(w, "login", frame{Title: "Log in", Data: l.ways(next(r.URL.Query().Get("next")))})
}

func (l *logins) login(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		code := http.StatusRequestEntityTooLarge
		_ = l.say(w, "error", frame{Title: http.StatusText(code)}, said{code, "the form cannot be read", ""})
		return
	}
	to, token := next(r.PostForm.Get("next")), strings.TrimSpace(r.PostForm.Get("token"))
	who, err := l.Enter(token, address(r))
	if err != nil {
		l.warn(r, "a login to the console was refused", err)
		l.loginAgain(w, to, said{http.StatusUnauthorized, "cannot log in: " + err.Error(),
			"ask the people who run the service for a token"})
		return
	}
	l.enter(w, r, func() *service.Caller { return l.Login(token) }, who)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// enter replaces the browser's session. ask is that of the new one.
func (l *logins) enter(w http.ResponseWriter, r *http.Request, ask func() *service.Caller, who *service.Caller) {
	if old, err := r.Cookie(l.cookieName()); err == nil {
		l.sessions.end(old.Value)
	}
	l.setCookie(w, l.sessions.begin(ask, who), int(sessionTime/time.Second))
}

func (l *logins) setCookie(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: l.cookieName(), Value: value, Path: "/", MaxAge: age, HttpOnly: true,
		Secure: l.Secure, SameSite: http.SameSiteStrictMode})
}

func (l *logins) logout(w http.ResponseWriter, r *http.Request, _ *visit) error {
	if cookie, err := r.Cookie(l.cookieName()); err == nil {
		l.sessions.end(cookie.Value)
	}
	l.setCookie(w, "", -1)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
	return nil
}

// Provider is a service where people log in.
type Provider interface {
	// Host returns the provider's host, for people to read.
	Host() string
	// Begin returns the address of the login, and what the browser keeps until End.
	Begin(ctx context.Context, next string) (address, keep string, err error)
	// End returns who has logged in, and the page that they asked for.
	End(ctx context.Context, keep string, back url.Values) (who *service.Caller, next string, err error)
}

const (
	// keepCookie has what a browser keeps during a login at the provider.
	keepCookie = "millrace-login"
	// elsewhereTime bounds such a login.
	elsewhereTime = 10 * time.Minute
	pathElsewhere = "/login/oidc"
)

func (l *logins) elsewhere(w http.ResponseWriter, r *http.Request) {
	address, keep, err := l.Provider.Begin(r.Context(), next(r.URL.Query().Get("next")))
	if err != nil {
		l.warn(r, "nobody can log in at the provider", err)
		l.loginAgain(w, "", said{http.StatusBadGateway, "cannot reach the provider",
			"log in with a token; the service's log says more"})
		return
	}
	l.setKeep(w, keep, int(elsewhereTime/time.Second))
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// setKeep sets a cookie. A strict one would not come back from the provider.
func (l *logins) setKeep(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: keepCookie, Value: value, Path: pathElsewhere, MaxAge: age, HttpOnly: true,
		Secure: l.Secure, SameSite: http.SameSiteLaxMode})
}

// back ends a login at the provider. A redirect would not carry the session's strict cookie, as it began elsewhere:
// the page refreshes itself.
func (l *logins) back(w http.ResponseWriter, r *http.Request) {
	keep := ""
	if cookie, err := r.Cookie(keepCookie); err == nil {
		keep = cookie.Value
	}
	l.setKeep(w, "", -1)
	who, to, err := l.Provider.End(r.Context(), keep, r.URL.Query())
	to = next(to)
	if err != nil {
		l.warn(r, "a login at the provider was refused", err)
		l.loginAgain(w, to, said{http.StatusForbidden, "the login at " + l.Provider.Host() + " failed",
			"try again, or ask the people who run the service: its log says why"})
		return
	}
	l.enter(w, r, func() *service.Caller { return who }, who)
	l.Log.Info("somebody has logged in at the provider", "name", who.Name, "role", who.Role, "from", address(r))
	w.Header().Set("Refresh", "0; url="+to)
	_ = l.show(w, "entered", frame{Title: "Logged in", Data: to})
}

func (l *logins) loginAgain(w http.ResponseWriter, to string, why said) {
	_ = l.say(w, "login", frame{Title: "Log in", Data: l.ways(to)}, why)
}

type ways struct {
	Next, Elsewhere, Host string
}

func (l *logins) ways(to string) ways {
	w := ways{Next: to}
	if l.Provider != nil {
		w.Elsewhere, w.Host = pathElsewhere+"?next="+url.QueryEscape(to), l.Provider.Host()
	}
	return w
}

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
