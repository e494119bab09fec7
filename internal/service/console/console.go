// Package console is the web console of the service: pages that the server renders, with style sheets and scripts.
// The desk decides what a visitor may do. This package runs nothing, and stores only sessions.
package console

import (
	"context"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
)

//go:embed pages assets
var files embed.FS //nolint:gochecknoglobals // that is how files are embedded

const (
	// maxWarnings of refused logins are logged at once, then one a second.
	maxWarnings = 20

	policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action " +
		"'self'; frame-ancestors 'none'; base-uri 'none'"
)

// Options configure a console.
type Options struct {
	Desk *operate.Desk
	// Login returns who has a token, nil for nobody.
	Login func(token string) *service.Caller
	// Enter is Login for a client's address. It counts wrong tokens; its error says why the login is refused.
	Enter func(token, from string) (*service.Caller, error)
	// Provider lets people log in without a token; nil for none.
	Provider Provider
	Log      *slog.Logger
	// Secure says that all clients use TLS.
	Secure bool
	// Now is time.Now if nil.
	Now func() time.Time
}

type console struct {
	Options
	*pages
	logins *logins
}

// New returns the handler of the console: /, /login, /logout, /jobs, /new, /workers, /alerts, /audit and /assets/.
// The API serves it, and refuses requests under foreign names and from other origins.
func New(o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	p := newPages(o.Log)
	l := &logins{Options: &o, pages: p, sessions: &sessions{now: o.Now, byID: map[string]*session{}},
		warnings: rate.NewLimiter(rate.Every(time.Second), maxWarnings)}
	c := &console{Options: o, pages: p, logins: l}
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
	mux.HandleFunc("GET /login", l.loginPage)
	mux.HandleFunc("POST /login", l.login)
	if o.Provider != nil {
		mux.HandleFunc("GET "+pathElsewhere, l.elsewhere)
		mux.HandleFunc("GET "+pathElsewhere+"/back", l.back)
	}
	mux.HandleFunc("GET /{$}",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/jobs", http.StatusSeeOther) })
	for at, serve := range map[string]handler{
		"GET /jobs":                                  c.jobs,
		"GET /jobs/{name}":                           c.job,
		"GET /jobs/{name}/{sure}":                    c.sure,
		"POST /jobs/{name}/{act}":                    c.act,
		"GET /jobs/{name}/reverse":                   c.reverse,
		"POST /jobs/{name}/reverse":                  c.makeReversed,
		"GET /jobs/{name}/verification":              plain(c.showVerifications),
		"POST /jobs/{name}/verification":             c.verify,
		"POST /jobs/{name}/verify-schedule":          c.verifySchedule,
		"GET /jobs/{name}/verification/{id}":         plain(c.showVerification),
		"POST /jobs/{name}/verification/{id}/cancel": c.cancelVerification,
		"POST /jobs/{name}/verification/{id}/repair": c.repair,
		"GET /jobs/{name}/deadletters":               plain(c.showLetters),
		"GET /jobs/{name}/deadletters/letter":        plain(c.showLetter),
		"POST /jobs/{name}/deadletters/retry":        c.retryLetters,
		"POST /jobs/{name}/deadletters/export":       c.exportLetters,
		"GET /new":                                   c.newPage,
		"POST /new":                                  c.create,
		"POST /new/draft":                            c.shape,
		"GET /workers":                               c.workers,
		"POST /workers/{name}/drain":                 c.drain(true),
		"POST /workers/{name}/undrain":               c.drain(false),
		"GET /alerts":                                c.alerts,
		"GET /audit":                                 c.audit,
		"POST /logout":                               l.logout,
		"/": func(http.ResponseWriter, *http.Request, *visit) error {
			return said{http.StatusNotFound, "there is no such page", "see the list of jobs"}
		},
	} {
		mux.HandleFunc(at, c.with(serve))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		// With no-referrer, browsers send the origin of forms as null, which is refused
		// where they send no Sec-Fetch-Site.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		mux.ServeHTTP(w, r)
	})
}

type visit struct {
	who     *service.Caller
	session *session
}

// handler serves a request with a session. Its error is shown as a page.
type handler func(http.ResponseWriter, *http.Request, *visit) error

// plain serves a page without a message.
func plain(show func(http.ResponseWriter, *http.Request, *visit, said) error) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visit) error { return show(w, r, v, fine()) }
}

// with serves requests with a session, and leads others to the login. A form must carry the token of its session.
func (c *console) with(serve handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := c.logins.visitor(r)
		if v == nil && r.Method == http.MethodGet && r.Header.Get("X-Live") == "" {
			http.Redirect(w, r, "/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return
		}
		err := c.ready(r, v)
		if err == nil {
			err = serve(w, r, v)
		}
		if err != nil {
			why := c.refusal(err)
			_ = c.say(w, "error", c.page(v, "", http.StatusText(why.code), nil), why)
		}
	}
}

func (c *console) ready(r *http.Request, v *visit) error {
	if v == nil {
		return said{http.StatusUnauthorized, "the session has ended", "log in, and try again"}
	}
	select {
	case <-c.Desk.View.Loaded():
	default:
		return said{http.StatusServiceUnavailable, "the service is reading its store", "reload the page in a moment"}
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	if err := r.ParseForm(); err != nil {
		return said{http.StatusRequestEntityTooLarge, "the form cannot be read: " + err.Error(),
			fmt.Sprintf("settings have up to %d bytes", service.MaxSettings)}
	}
	if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("form")), []byte(v.session.form)) != 1 {
		return said{http.StatusForbidden, "the form is not from this session", "open the page again, and send it from there"}
	}
	return nil
}

type frame struct {
	Title, Page  string
	Who          *service.Caller
	Form         string
	Admin        bool
	Alert, Hint  string
	Notice, Live string // Live is the address of the page's newer state
	Data         any
}

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

func lead(w http.ResponseWriter, r *http.Request, to string) error {
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

func (c *console) refusal(err error) said {
	if why, ok := errors.AsType[said](err); ok {
		return why
	}
	e, ok := errors.AsType[*operate.Error](err)
	if !ok {
		c.Log.Error("a request of the console failed", "error", err)
		if c.Desk.Hub.Trouble() != nil {
			return said{http.StatusServiceUnavailable, hub.ErrUnwritable.Error(), hub.UnwritableHint}
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return said{http.StatusServiceUnavailable, "the store of the service does not answer",
				"try again; the log says more"}
		}
		return said{http.StatusInternalServerError, "the service could not do this", "try again; the log says why"}
	}
	codes := map[operate.Code]int{operate.NotFound: 404, operate.Exists: 409, operate.Conflict: 409, operate.Invalid: 422,
		operate.Forbidden: 403, operate.TooMany: 429}
	return said{codes[e.Code], e.Text, e.Hint}
}

func moment(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`, t.Format(time.RFC3339),
		t.Format("2006-01-02 15:04:05"))) //nolint:gosec // digits alone
}
