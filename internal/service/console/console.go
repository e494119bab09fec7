package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
)

//go:embed pages assets
var files embed.FS //nolint:gochecknoglobals // that is how files are embedded

const (
	// maxBody bounds a form. Settings are written with up to three bytes for one.
	maxBody = 3*service.MaxSettings + 64<<10
	policy  = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

// Options shape a console.
type Options struct {
	Desk *operate.Desk
	// Login says who has a token.
	Login func(token string) (*service.Caller, bool)
	// Enter is Login for somebody who comes from an address; it counts wrong tokens, and
	// says why nobody may enter.
	Enter func(token, from string) (*service.Caller, error)
	// Provider is where people may log in elsewhere; nil is nowhere.
	Provider Provider
	Log      *slog.Logger
	// Secure says that clients come by TLS alone.
	Secure bool
	// Loopback says that only this machine reaches the server; other names are refused.
	Loopback bool
	// Now is time.Now, another one in tests.
	Now func() time.Time
}

// console serves the pages.
type console struct {
	Options
	sessions *sessions
	pages    map[string]*template.Template
	stamp    string // of the assets, so that a browser keeps none of another version
}

// New makes the handler of the console. It serves /, /login, /logout, /jobs, /new,
// /workers, /alerts, /audit and /assets/.
func New(o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &console{Options: o, sessions: &sessions{now: o.Now, byID: map[string]*session{}}}
	c.stamp = stamp()
	c.pages = c.parse()
	mux := http.NewServeMux()
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		panic(err) // the name is one of ours
	}
	serve := http.StripPrefix("/assets/", http.FileServerFS(assets))
	mux.HandleFunc("GET /assets/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=86400")
		serve.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /login", c.loginPage)
	mux.HandleFunc("POST /login", c.login)
	if o.Provider != nil {
		mux.HandleFunc("GET "+pathElsewhere, c.elsewhere)
		mux.HandleFunc("GET "+pathElsewhere+"/back", c.back)
	}
	mux.HandleFunc("POST /logout", c.with(c.logout))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/jobs", http.StatusSeeOther) })
	mux.HandleFunc("GET /jobs", c.with(c.jobs))
	mux.HandleFunc("GET /jobs/{name}", c.with(c.job))
	mux.HandleFunc("GET /jobs/{name}/{sure}", c.with(c.sure))
	mux.HandleFunc("POST /jobs/{name}/{act}", c.with(c.act))
	mux.HandleFunc("GET /jobs/{name}/verification", c.with(c.verifications))
	mux.HandleFunc("POST /jobs/{name}/verification", c.with(c.verify))
	mux.HandleFunc("POST /jobs/{name}/verify-schedule", c.with(c.verifySchedule))
	mux.HandleFunc("GET /jobs/{name}/verification/{id}", c.with(c.verification))
	mux.HandleFunc("POST /jobs/{name}/verification/{id}/cancel", c.with(c.cancelVerification))
	mux.HandleFunc("POST /jobs/{name}/verification/{id}/repair", c.with(c.repair))
	mux.HandleFunc("GET /jobs/{name}/deadletters", c.with(c.letters))
	mux.HandleFunc("GET /jobs/{name}/deadletters/letter", c.with(c.letter))
	mux.HandleFunc("POST /jobs/{name}/deadletters/retry", c.with(c.retryLetters))
	mux.HandleFunc("POST /jobs/{name}/deadletters/export", c.with(c.exportLetters))
	mux.HandleFunc("GET /new", c.with(c.newPage))
	mux.HandleFunc("POST /new", c.with(c.create))
	mux.HandleFunc("POST /new/draft", c.with(c.shape))
	mux.HandleFunc("GET /workers", c.with(c.workers))
	mux.HandleFunc("POST /workers/{name}/drain", c.with(c.drain(true)))
	mux.HandleFunc("POST /workers/{name}/undrain", c.with(c.drain(false)))
	mux.HandleFunc("GET /alerts", c.with(c.alerts))
	mux.HandleFunc("GET /audit", c.with(c.audit))
	mux.HandleFunc("/", c.with(func(w http.ResponseWriter, r *http.Request, v *visit) {
		c.fail(w, v, http.StatusNotFound, "there is no such page", "")
	}))
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c.fail(w, nil, http.StatusForbidden, "a page of another origin may not do this", "open the console in a tab of its own")
	}))
	return c.guard(origin.Handler(mux))
}

// stamp is a digest of the assets.
func stamp() string {
	h := sha256.New()
	for _, name := range []string{"console.css", "console.js"} {
		raw, _ := files.ReadFile("assets/" + name)
		h.Write(raw)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func (c *console) parse() map[string]*template.Template {
	pages := map[string]*template.Template{}
	names, err := fs.Glob(files, "pages/*.html")
	if err != nil {
		panic(err) // the pattern is one of ours
	}
	funcs := template.FuncMap{"foreign": foreign, "lines": lines, "short": short, "coded": coded, "moment": moment, "stamp": func() string { return c.stamp }}
	for _, n := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(n, "pages/"), ".html")
		if name != "frame" {
			pages[name] = template.Must(template.New("frame.html").Funcs(funcs).ParseFS(files, "pages/frame.html", n))
		}
	}
	return pages
}

// guard sets what is true of all answers, and refuses a loopback server's foreign names:
// a page whose name was made to point here would pass as this machine.
func (c *console) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		// With no-referrer, browsers send the origin of forms as null, which is refused
		// where they send no Sec-Fetch-Site.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if c.Loopback && !loopback.Host(r.Host) {
			c.fail(w, nil, http.StatusForbidden, "this address is for this machine only", "use the host and port that the service printed")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// visit is a request of somebody who is logged in.
type visit struct {
	who     *service.Caller
	session *session
}

// with has a request served for who is logged in; others come to the login. A form has
// to carry the session's word.
func (c *console) with(serve func(http.ResponseWriter, *http.Request, *visit)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := c.visitor(r)
		if v == nil {
			if r.Method == http.MethodGet && r.Header.Get("X-Live") == "" {
				http.Redirect(w, r, "/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
				return
			}
			c.fail(w, nil, http.StatusUnauthorized, "you are not logged in any more", "log in, and do it again")
			return
		}
		select {
		case <-c.Desk.View.Loaded():
		default:
			c.fail(w, v, http.StatusServiceUnavailable, "the service is reading its store", "reload the page in a moment")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if err := r.ParseForm(); err != nil {
				c.fail(w, v, http.StatusRequestEntityTooLarge, "the form cannot be read: "+err.Error(), fmt.Sprintf("settings have up to %d bytes", service.MaxSettings))
				return
			}
			if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("form")), []byte(v.session.form)) != 1 {
				c.fail(w, v, http.StatusForbidden, "the form is not of this session", "open the page again, and send it from there")
				return
			}
		}
		serve(w, r, v)
	}
}

func (c *console) cookieName() string {
	if c.Secure {
		return "__Host-millrace"
	}
	return "millrace-session"
}

// visitor is who is logged in, whose token is good still; nil is nobody.
func (c *console) visitor(r *http.Request) *visit {
	cookie, err := r.Cookie(c.cookieName())
	if err != nil {
		return nil
	}
	s := c.sessions.find(cookie.Value)
	if s == nil {
		return nil
	}
	who, ok := s.ask()
	if !ok {
		c.sessions.end(cookie.Value)
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
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(wish, "/") || strings.HasPrefix(wish, "//") || strings.Contains(wish, `\`) || strings.HasPrefix(u.Path, "/log") {
		return "/jobs"
	}
	return wish
}

func (c *console) loginPage(w http.ResponseWriter, r *http.Request) {
	c.show(w, http.StatusOK, "login", frame{Title: "Log in", Data: c.ways(next(r.URL.Query().Get("next")))})
}

func (c *console) login(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.fail(w, nil, http.StatusRequestEntityTooLarge, "the form cannot be read", "")
		return
	}
	to, token := next(r.PostForm.Get("next")), strings.TrimSpace(r.PostForm.Get("token"))
	who, err := c.Enter(token, address(r))
	if err != nil {
		c.Log.Warn("a login to the console was refused", "from", address(r), "error", err)
		c.loginAgain(w, http.StatusUnauthorized, to, "This is not possible: "+err.Error()+".", "Ask who runs the service for a token.")
		return
	}
	c.enter(w, r, func() (*service.Caller, bool) { return c.Login(token) }, who)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// enter begins the session of somebody in place of the one before; ask says whether they
// may go on, and as who.
func (c *console) enter(w http.ResponseWriter, r *http.Request, ask func() (*service.Caller, bool), who *service.Caller) {
	if old, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.end(old.Value)
	}
	c.setCookie(w, c.sessions.begin(ask, who), int(sessionTime/time.Second))
}

func (c *console) setCookie(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: c.cookieName(), Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: c.Secure, SameSite: http.SameSiteStrictMode})
}

func (c *console) logout(w http.ResponseWriter, r *http.Request, _ *visit) {
	if cookie, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.end(cookie.Value)
	}
	c.setCookie(w, "", -1)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// frame is what all pages show.
type frame struct {
	Title, Page  string
	Who          *service.Caller
	Form         string
	Admin        bool
	Alert, Hint  string
	Notice, Live string // Live is the address of the page's newer state
	Data         any
}

// page is the frame of a page for a visitor.
func (c *console) page(v *visit, page, title string, data any) frame {
	f := frame{Title: title, Page: page, Data: data}
	if v != nil {
		f.Who, f.Form, f.Admin = v.who, v.session.form, v.who.Role.May(service.Admin)
		if c.Desk.Hub.Trouble() != nil { // what the page shows may be old
			f.Alert, f.Hint = hub.ErrUnwritable.Error(), hub.UnwritableHint
		}
	}
	return f
}

// show writes a page, whole or not at all.
func (c *console) show(w http.ResponseWriter, code int, name string, f frame) {
	var b bytes.Buffer
	if err := c.pages[name].Execute(&b, f); err != nil {
		c.Log.Error("a page of the console cannot be written", "page", name, "error", err)
		http.Error(w, "the page cannot be written; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

func (c *console) fail(w http.ResponseWriter, v *visit, code int, text, hint string) {
	f := c.page(v, "", http.StatusText(code), nil)
	f.Alert, f.Hint = text, hint
	c.show(w, code, "error", f)
}

// refusal is the status, text and hint of an error.
func (c *console) refusal(err error) (code int, text, hint string) {
	e, ok := errors.AsType[*operate.Error](err)
	if !ok {
		c.Log.Error("a request of the console failed", "error", err)
		if c.Desk.Hub.Trouble() != nil {
			return http.StatusServiceUnavailable, hub.ErrUnwritable.Error(), hub.UnwritableHint
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return http.StatusServiceUnavailable, "the store of the service does not answer", "try again; the log says more"
		}
		return http.StatusInternalServerError, "the service could not do this", "try again; the log says why"
	}
	codes := map[operate.Code]int{operate.NotFound: 404, operate.Exists: 409, operate.Conflict: 409, operate.Invalid: 422, operate.Forbidden: 403}
	return codes[e.Code], e.Text, e.Hint
}

// moment is a time as pages show it.
func moment(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`, t.Format(time.RFC3339), t.Format("2006-01-02 15:04:05"))) //nolint:gosec // digits alone
}
