// Package api serves operate over HTTP: JSON, server-sent events and metrics, with tokens of roles. It decides nothing.
package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
)

const (
	// maxBody bounds a request's body. Settings as a text in JSON fit.
	maxBody   = 1 << 20
	maxHeader = 16 << 10
	// replyTime bounds a request and its reply, except for events.
	replyTime = 20 * time.Second
	// storeTime is less than replyTime, so that errors are replied.
	storeTime = 10 * time.Second
)

// Control has the operations that services (operate.Desk) and single processes (operate.Single) share.
type Control interface {
	Job(c *service.Caller, name string) (*service.Job, error)
	After(c *service.Caller, name string, n int, match func(*service.Job) bool) []service.Job
	Pause(ctx context.Context, c *service.Caller, name string) (*service.Job, error)
	Resume(ctx context.Context, c *service.Caller, name string) (*service.Job, error)
	Finalize(ctx context.Context, c *service.Caller, name string, whenCaughtUp bool) (*service.Job, error)
	CancelFinalize(ctx context.Context, c *service.Caller, name string) (*service.Job, error)
	Limit(ctx context.Context, c *service.Caller, name string, l server.Limits) (*service.Job, error)
	RetryLetters(ctx context.Context, c *service.Caller, name, id string) (*service.LettersRetried, error)
}

// View is the source of events: hub.View of a service, operate.Single of a process.
type View interface {
	Jobs() []service.Job
	Changed() (changed <-chan struct{}, version uint64)
}

type Options struct {
	// Desk has the jobs of a service. If it is nil, single has the job of this process.
	Desk   *operate.Desk
	Tokens *Tokens
	// Elsewhere returns the caller of an OpenID Connect token; nil accepts none.
	Elsewhere func(ctx context.Context, token string) *service.Caller
	Log       *slog.Logger
	// Loopback means that only this machine can connect. The API then refuses other host names.
	Loopback bool
	// Proxies are the networks of proxies, whose X-Forwarded-For header names the client.
	Proxies []netip.Prefix
	// Ready returns an error if the service cannot work.
	Ready             func(context.Context) error
	Version, Revision string
	// Trace makes spans of requests of a route; nil makes none.
	Trace func(method, route string, next http.Handler) http.Handler
	// Pages serves all other paths; nil serves none.
	Pages http.Handler

	// of a sync
	single            *operate.Single
	openStatus, pprof bool
}

// API is the HTTP handler. End ends its events.
type API struct {
	http.Handler
	o       Options
	jobs    jobs
	news    news
	openapi []byte
	end     func()
}

func New(o Options) (*API, error) {
	ended := make(chan struct{})
	a := &API{o: o, jobs: jobs{o.Desk, o.Desk}, end: sync.OnceFunc(func() { close(ended) })}
	if a.news = (news{ended: ended}); o.Desk != nil {
		a.news.view = o.Desk.View
	} else {
		a.jobs.Control, a.news.view = o.single, o.single
	}
	var err error
	if a.openapi, err = document(); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, rt := range a.routes() {
		handler := a.serve(rt)
		if o.Trace != nil && rt.role != "" { // probes make no spans
			handler = o.Trace(rt.method, rt.path, handler)
		}
		mux.Handle(rt.method+" "+rt.path, handler)
		methods[rt.path] = append(methods[rt.path], rt.method)
	}
	for at, list := range methods {
		mux.Handle(at, a.wrongMethod(list))
	}
	list := PathOpenAPI
	if o.Desk == nil {
		list = PathJobs
	}
	unknown := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, refuse(operate.NotFound, "see "+list, "there is no such path"))
	})
	mux.Handle("/api/", unknown)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if o.Pages == nil {
			unknown(w, r)
			return
		}
		w.Header().Del("Cache-Control") // Pages sets its own
		o.Pages.ServeHTTP(w, r)
	})
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, refuse(CodeForeign, "use the millrace command",
			"a web page of another origin may not do this"))
	}))
	a.Handler = a.local(origin.Handler(a.clean(mux, unknown)))
	return a, nil
}

// End ends the events, so that a server can end.
func (a *API) End() { a.end() }

// Server returns a server with limits of time and size. Its shutdown ends the events.
func (a *API) Server() *http.Server {
	s := &http.Server{
		Handler: forwarded(a.o.Proxies, a), ReadHeaderTimeout: replyTime, ReadTimeout: replyTime,
		WriteTimeout:   replyTime + 5*time.Second, // so that a body that arrives too slowly gets a reply
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(a.o.Log.Handler(), slog.LevelDebug),
	}
	s.RegisterOnShutdown(a.End)
	return s
}

// local refuses requests to a loopback server under a foreign name (DNS rebinding).
func (a *API) local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		if a.o.Loopback && !loopback.Host(r.Host) {
			a.fail(w, r, refuse(CodeForeign, "use the host and port that was printed at the start",
				"this address is for this machine only"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// clean refuses paths that the mux would answer with a redirect.
func (a *API) clean(next, unknown http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.Path, "/") ||
			path.Clean(r.URL.Path) != strings.TrimSuffix(r.URL.Path, "/") && r.URL.Path != "/" {
			unknown.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// route is an operation of the API. Without a role anybody may call it.
type route struct {
	method, path string
	role         service.Role
	do           action
	time         time.Duration // 0 is storeTime; endless has none
}

// action returns the body of the reply, or sent if it has replied.
type action func(*call) (any, error)

func taking[T any](do func(*call, T) (any, error), optional bool, form string) action {
	return func(c *call) (any, error) {
		var body T
		if err := c.body(&body, optional, form); err != nil {
			return nil, err
		}
		return do(c, body)
	}
}

func asking(do action, known ...string) action {
	return func(c *call) (_ any, err error) {
		if c.q, err = c.query(known...); err != nil {
			return nil, err
		}
		if c.page.Limit, err = limit(c.q); err == nil {
			c.page.Before, err = before(c.q)
		}
		if err != nil {
			return nil, err
		}
		return do(c)
	}
}

type sent struct{}

const endless time.Duration = -1

type call struct {
	*http.Request
	w      http.ResponseWriter
	code   int
	caller *service.Caller
	again  func() *service.Caller // nil if the token is no longer valid

	q    url.Values
	page service.Page
}

func (a *API) wrongMethod(has []string) http.Handler {
	if slices.Contains(has, http.MethodGet) {
		has = append(has, http.MethodHead)
	}
	slices.Sort(has)
	allow := strings.Join(has, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		a.fail(w, r, refuse(CodeMethod, "it has "+allow, "this path has no such method"))
	})
}

func (a *API) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rt.time != endless {
			ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(rt.time, storeTime))
			defer cancel()
			r = r.WithContext(ctx)
		}
		c := &call{Request: r, w: w, code: http.StatusOK}
		if rt.role != "" {
			if err := a.enter(c, rt.role); err != nil {
				a.fail(w, r, err)
				return
			}
		}
		body, err := rt.do(c)
		if err != nil {
			a.fail(w, r, err)
		} else if body != (sent{}) {
			reply(w, c.code, body)
		}
	})
}

func (a *API) enter(c *call, needed service.Role) error {
	from, _, err := net.SplitHostPort(c.RemoteAddr)
	if err != nil {
		from = c.RemoteAddr
	}
	kind, token, _ := strings.Cut(c.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") {
		token = ""
	}
	c.caller, c.again, err = a.whose(c.Context(), token, from)
	if a.o.openStatus && needed == service.Viewer && err != nil {
		c.caller = &service.Caller{Name: "anybody", Role: service.Viewer, From: from}
		c.again, err = func() *service.Caller { return c.caller }, nil
	}
	switch {
	case errors.Is(err, ErrTooMany):
		c.w.Header().Set("Retry-After", "10")
		return refuse(CodeTooMany, "wait a little", "%s", err)
	case err != nil:
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		hint := "send Authorization: Bearer and a token of the service; millrace takes it from MILLRACE_TOKEN"
		if a.o.Desk == nil {
			hint = "run the command as the user and on the machine of the sync, or set MILLRACE_TOKEN to the sync's token"
		}
		return refuse(CodeNoToken, hint, "%s", err)
	case !c.caller.Role.May(needed):
		return refuse(operate.Forbidden, "ask for a token of the role "+string(needed),
			"the role %s may not do this", c.caller.Role)
	case a.o.Desk == nil:
		return nil
	}
	select {
	case <-a.o.Desk.View.Loaded():
	default:
		c.w.Header().Set("Retry-After", "1")
		return refuse(CodeUnavailable, "try again in a moment",
			"the service starts: it has not read its store yet")
	}
	return nil
}

func (a *API) whose(ctx context.Context, token, from string) (who *service.Caller, again func() *service.Caller,
	err error) {
	if a.o.Elsewhere != nil && strings.Count(token, ".") == 2 { // a JSON web token
		again = func() *service.Caller { return a.o.Elsewhere(ctx, token) }
		if who = again(); who != nil {
			who.From = from
			return who, again, nil
		}
	}
	who, err = a.o.Tokens.Enter(token, from)
	return who, func() *service.Caller { return a.o.Tokens.Whose(token) }, err
}

func (a *API) livez(*call) (any, error) { return map[string]string{"status": "ok"}, nil }

func (a *API) readyz(c *call) (any, error) {
	err := errors.New("the store has not been read yet")
	select {
	case <-a.o.Desk.View.Loaded():
		err = a.o.Ready(c.Context())
	default:
	}
	if err != nil {
		a.o.Log.Warn("not ready", "error", err, "hint", mongo.HintOf(err))
		if errors.Is(err, hub.ErrUnwritable) {
			return nil, unwritable()
		}
		return nil, refuse(CodeUnavailable, "the service's log says why",
			"the service is not ready")
	}
	return map[string]string{"status": "ok"}, nil
}
