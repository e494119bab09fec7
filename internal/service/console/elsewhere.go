package console

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace/millrace/internal/service"
)

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
func (c *console) elsewhere(w http.ResponseWriter, r *http.Request) {
	address, keep, err := c.Provider.Begin(r.Context(), next(r.URL.Query().Get("next")))
	if err != nil {
		c.Log.Error("nobody can log in at the provider", "error", err)
		c.loginAgain(w, http.StatusBadGateway, "", "The provider cannot be reached.", "The service's log says why. A token works, too.")
		return
	}
	c.setKeep(w, keep, int(elsewhereTime/time.Second))
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// setKeep sets a cookie that comes back with the page that the provider leads to: a
// strict one would not.
func (c *console) setKeep(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: keepCookie, Value: value, Path: pathElsewhere, MaxAge: age, HttpOnly: true, Secure: c.Secure, SameSite: http.SameSiteLaxMode})
}

// back logs somebody in who comes from the provider. The session's cookie is strict, and
// is not sent on with a redirect that began elsewhere: the page leads on by itself.
func (c *console) back(w http.ResponseWriter, r *http.Request) {
	keep := ""
	if cookie, err := r.Cookie(keepCookie); err == nil {
		keep = cookie.Value
	}
	c.setKeep(w, "", -1)
	who, to, err := c.Provider.End(r.Context(), keep, r.URL.Query())
	to = next(to)
	if err != nil {
		c.Log.Warn("a login at the provider was refused", "from", address(r), "error", err)
		c.loginAgain(w, http.StatusForbidden, to, "The login at "+c.Provider.Host()+" did not succeed.", "Try again. If it stays so, ask who runs the service: its log says why.")
		return
	}
	c.enter(w, r, func() (*service.Caller, bool) { return who, true }, who)
	c.Log.Info("somebody has logged in at the provider", "name", who.Name, "role", who.Role, "from", address(r))
	w.Header().Set("Refresh", "0; url="+to)
	c.show(w, http.StatusOK, "entered", frame{Title: "Logged in", Data: to})
}

// loginAgain shows the login with what went wrong.
func (c *console) loginAgain(w http.ResponseWriter, code int, to, alert, hint string) {
	c.show(w, code, "login", frame{Title: "Log in", Alert: alert, Hint: hint, Data: c.ways(to)})
}

// ways are how somebody can log in.
type ways struct {
	Next, Elsewhere, Host string
}

func (c *console) ways(to string) ways {
	w := ways{Next: to}
	if c.Provider != nil {
		w.Elsewhere, w.Host = pathElsewhere+"?next="+url.QueryEscape(to), c.Provider.Host()
	}
	return w
}
