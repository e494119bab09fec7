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

// PathProfiles is the path of net/http/pprof.
const PathProfiles = "/debug/pprof/"

// SingleOptions shape the API of a single process.
type SingleOptions struct {
	Address   string // host:port; port 0 takes a free one
	Token     string // "" makes a random one
	Log       *slog.Logger
	PProf     bool // serve net/http/pprof, too
	Cert, Key string
	// OpenStatus lets anyone read what viewers may.
	OpenStatus        bool
	Version, Revision string
}

// Single serves the API of the one job of a process.
type Single struct {
	*server.Listener
	options SingleOptions
	// farewell bounds the wait for replies at the end of Serve, deadline every reply except to finalize.
	farewell, deadline time.Duration
}

// Listen opens the address. Serve answers.
func Listen(ctx context.Context, o SingleOptions) (*Single, error) {
	l, err := server.Listen(ctx, o.Address, o.Cert, o.Key, o.Log)
	if err != nil {
		return nil, err
	}
	o.Token = cmp.Or(o.Token, rand.Text())
	return &Single{Listener: l, options: o, farewell: 5 * time.Second, deadline: replyTime}, nil
}

// Token returns the secret of requests.
func (s *Single) Token() string { return s.options.Token }

// Serve answers for a job until ctx ends. Replies then get farewell, so that a client of finalize gets the
// outcome. After that it cancels a finalize, and waits for its end.
func (s *Single) Serve(ctx context.Context, j operate.Controller) error {
	ending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	one := operate.NewSingle(ending, j, s.options.Log)
	tokens := OneToken("operator", s.options.Token)
	tokens.guesses = nil // other users of the machine must not lock the owner out, and the token is long
	a, err := New(Options{Tokens: tokens, Log: s.options.Log, Loopback: s.Loopback, single: one,
		openStatus: s.options.OpenStatus, pprof: s.options.PProf, Version: s.options.Version, Revision: s.options.Revision})
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

func (a *API) singleRoutes() []route {
	list := []route{
		{http.MethodGet, server.PathHealth, "", func(*call) (any, error) { return server.Health{PID: os.Getpid()}, nil }, 0},
	}
	if a.o.pprof { // with the token: profiles reveal more than a status
		list = append(list, route{http.MethodGet, PathProfiles, service.Operator, profile, endless})
	}
	return list
}

// profile has no deadline: the client chooses the length. It hides the command line, which may hold passwords.
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
	server.Extend(c.w, 0)
	serve(c.w, c.WithContext(context.WithValue(c.Context(), http.ServerContextKey, nil)))
	return sent{}, nil
}
