package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// PathProfiles is the path of the profiles of net/http/pprof.
const PathProfiles = "/debug/pprof/"

// SingleOptions shape the API of the one job of a process.
type SingleOptions struct {
	Address string // host:port; port 0 takes a free one
	Token   string // "" makes a random one
	Log     *slog.Logger
	PProf   bool // serve the profiles of net/http/pprof, too
	// Cert and Key are files, for TLS; "" is without.
	Cert, Key string
	// OpenStatus shows what viewers may see to those who have no token, too.
	OpenStatus        bool
	Version, Revision string
}

// Single serves the API of the one job of a process.
type Single struct {
	*server.Listener
	options SingleOptions
	// farewell bounds the wait for replies at the end of Serve, deadline a reply, except to finalize.
	farewell, deadline time.Duration
}

type single struct {
	*operate.Single
	options *SingleOptions
}

// Listen opens the address. Nothing is answered before Serve.
func Listen(ctx context.Context, o SingleOptions) (*Single, error) {
	l, err := server.Listen(ctx, o.Address, o.Cert, o.Key, o.Log)
	if err != nil {
		return nil, err
	}
	o.Token = cmp.Or(o.Token, rand.Text())
	return &Single{Listener: l, options: o, farewell: 5 * time.Second, deadline: replyTime}, nil
}

// Token is the secret that requests carry.
func (s *Single) Token() string { return s.options.Token }

// Serve answers for a job until ctx ends. Replies under way have a few seconds, so that a client of finalize gets the
// outcome. Then it cancels a finalize under way, and waits for its end.
func (s *Single) Serve(ctx context.Context, j operate.Controller) error {
	ending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	one := &single{operate.NewSingle(ending, j, s.options.Log), &s.options}
	tokens := OneToken("operator", s.options.Token)
	tokens.guesses = nil // no other user of the machine is to shut its owner out; the token is long
	a, err := New(Options{Tokens: tokens, Log: s.options.Log, Loopback: s.Loopback, single: one,
		Version: s.options.Version, Revision: s.options.Revision})
	if err != nil {
		return errors.Join(err, s.Close())
	}
	hs := a.Server()
	hs.ReadHeaderTimeout, hs.ReadTimeout, hs.WriteTimeout = s.deadline, s.deadline, s.deadline
	err = server.Until(ctx, hs, s.farewell, func() error { return hs.Serve(s) })
	giveUp()
	one.Wait()
	return err
}

// singleRoutes are those of a single process alone. Those below /api/v1 are of older versions.
func (a *API) singleRoutes() []route {
	list := []route{
		{http.MethodGet, server.PathHealth, "", func(*call) (any, error) { return server.Health{PID: os.Getpid()}, nil }, 0},
	}
	for _, rt := range a.controlRoutes() {
		if rest, ok := strings.CutPrefix(rt.path, PathJob); ok {
			list = append(list, route{rt.method, Prefix + cmp.Or(rest, "/status"), rt.role, a.old(rt.do), rt.time})
		}
	}
	if a.o.single.options.PProf { // with the token, for profiles tell more than a status does
		list = append(list, route{http.MethodGet, PathProfiles, service.Operator, profile, endless})
	}
	return list
}

// old is a request to the one job, which it does not name.
func (a *API) old(do action) action {
	return func(c *call) (any, error) {
		for _, j := range a.jobs.all(c.caller) {
			c.SetPathValue("name", j.Definition.Name)
		}
		c.old = true
		return do(c)
	}
}

// profile serves net/http/pprof, without its deadline: the client chooses how long a profile takes. The
// command line is left out, because it may hold passwords.
func profile(c *call) (any, error) {
	serve := pprof.Index
	switch strings.TrimPrefix(c.URL.Path, PathProfiles) {
	case "profile":
		serve = pprof.Profile
	case "symbol":
		serve = pprof.Symbol
	case "trace":
		serve = pprof.Trace
	}
	unlimited(c.w)
	serve(c.w, c.WithContext(context.WithValue(c.Context(), http.ServerContextKey, nil)))
	return sent{}, nil
}

// unlimited lifts both deadlines of the connection; when the one for reads passes, the request is canceled.
func unlimited(w http.ResponseWriter) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
}
