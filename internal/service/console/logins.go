package console

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// logins let people in, by a token or by a provider.
type logins struct {
	*Options
	pages    *pages
	sessions *sessions
}

func (l *logins) cookieName() string {
	if l.Secure {
		return "__Host-millrace"
	}
	return "millrace-session"
}

// visitor is who is logged in, whose token is good still; nil is nobody.
func (l *logins) visitor(r *http.Request) *visit {
	cookie, err := r.Cookie(l.cookieName())
	if err != nil {
		return nil
	}
	s := l.sessions.find(cookie.Value)
	if s == nil {
		return nil
	}
	who, ok := s.ask()
	if !ok {
		l.sessions.end(cookie.Value)
		return nil
	}
	now := *who
	now.From = address(r)
	return &visit{who: &now, session: s}
}

// address is the client's.
func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// next is where a login leads: to a page of the console and nowhere else.
func next(wish string) string {
	u, err := url.Parse(wish)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(wish, "/") || strings.HasPrefix(wish, "//") ||
		strings.Contains(wish, `\`) || strings.HasPrefix(u.Path, "/log") {
		return "/jobs"
	}
	return wish
}

func (l *logins) loginPage(w http.ResponseWriter, r *http.Request) {
	l.pages.show(w, http.StatusOK, "login", frame{Title: "Log in", Data: l.ways(next(r.URL.Query().Get("next")))})
}

func (l *logins) login(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		l.pages.fail(w, said{http.StatusRequestEntityTooLarge, "the form cannot be read", ""})
		return
	}
	to, token := next(r.PostForm.Get("next")), strings.TrimSpace(r.PostForm.Get("token"))
	who, err := l.Enter(token, address(r))
	if err != nil {
		l.Log.Warn("a login to the console was refused", "from", address(r), "error", err)
		l.loginAgain(w, http.StatusUnauthorized, to, "This is not possible: "+err.Error()+".",
			"Ask who runs the service for a token.")
		return
	}
	l.enter(w, r, func() (*service.Caller, bool) { return l.Login(token) }, who)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// enter begins the session of somebody in place of the one before; ask says whether they
// may go on, and as who.
func (l *logins) enter(w http.ResponseWriter, r *http.Request, ask func() (*service.Caller, bool),
	who *service.Caller) {
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

// Provider is where people may log in instead of giving a token.
type Provider interface {
	// Host is the provider's, for people to read.
	Host() string
	// Begin is the address at which somebody logs in, and what their browser keeps until End.
	Begin(ctx context.Context, next string) (address, keep string, err error)
	// End is who has come back, and to which page they want.
	End(ctx context.Context, keep string, back url.Values) (who *service.Caller, next string, err error)
}

const (
	// keepCookie has what a browser keeps while somebody logs in elsewhere.
	keepCookie = "millrace-login"
	// elsewhereTime is how long that may take.
	elsewhereTime = 10 * time.Minute
	pathElsewhere = "/login/oidc"
)

// elsewhere sends somebody to the provider.
func (l *logins) elsewhere(w http.ResponseWriter, r *http.Request) {
	address, keep, err := l.Provider.Begin(r.Context(), next(r.URL.Query().Get("next")))
	if err != nil {
		l.Log.Error("nobody can log in at the provider", "error", err)
		l.loginAgain(w, http.StatusBadGateway, "", "The provider cannot be reached.",
			"The service's log says why. A token works, too.")
		return
	}
	l.setKeep(w, keep, int(elsewhereTime/time.Second))
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// setKeep sets a cookie that comes back with the page that the provider leads to: a
// strict one would not.
func (l *logins) setKeep(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: keepCookie, Value: value, Path: pathElsewhere, MaxAge: age, HttpOnly: true,
		Secure: l.Secure, SameSite: http.SameSiteLaxMode})
}

// back logs somebody in who comes from the provider. The session's cookie is strict, and
// is not sent on with a redirect that began elsewhere: the page leads on by itself.
func (l *logins) back(w http.ResponseWriter, r *http.Request) {
	keep := ""
	if cookie, err := r.Cookie(keepCookie); err == nil {
		keep = cookie.Value
	}
	l.setKeep(w, "", -1)
	who, to, err := l.Provider.End(r.Context(), keep, r.URL.Query())
	to = next(to)
	if err != nil {
		l.Log.Warn("a login at the provider was refused", "from", address(r), "error", err)
		l.loginAgain(w, http.StatusForbidden, to, "The login at "+l.Provider.Host()+" did not succeed.",
			"Try again. If it stays so, ask who runs the service: its log says why.")
		return
	}
	l.enter(w, r, func() (*service.Caller, bool) { return who, true }, who)
	l.Log.Info("somebody has logged in at the provider", "name", who.Name, "role", who.Role, "from", address(r))
	w.Header().Set("Refresh", "0; url="+to)
	l.pages.show(w, http.StatusOK, "entered", frame{Title: "Logged in", Data: to})
}

// loginAgain shows the login with what went wrong.
func (l *logins) loginAgain(w http.ResponseWriter, code int, to, alert, hint string) {
	l.pages.show(w, code, "login", frame{Title: "Log in", Alert: alert, Hint: hint, Data: l.ways(to)})
}

// ways are how somebody can log in.
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
