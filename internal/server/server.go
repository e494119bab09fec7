package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

const (
	// maxBody bounds a request's body; no request needs one.
	maxBody = 64 << 10
	// maxHeader bounds a request's header.
	maxHeader = 16 << 10
	// replyTime is how long a reply may take, except that of finalize.
	replyTime = 10 * time.Second
	// defaultFarewell is how long Serve waits for replies under way at its end.
	defaultFarewell = 5 * time.Second
)

// Controller is what the server controls: a job. Its methods are called from
// several goroutines at once.
type Controller interface {
	Status() job.Status
	Pause(context.Context) error
	Resume(context.Context) error
	SetLimits(context.Context, pace.Rates) error
	SetLoads(context.Context, pace.Loads) error
	// Finalize returns when the job is finalized, or says why it is not.
	Finalize(ctx context.Context, whenCaughtUp bool) error
	CancelFinalize(context.Context) error
}

// Options shape a server.
type Options struct {
	Address string // host:port; port 0 takes a free one
	Token   string // "" makes a random one
	Job     Controller
	Log     *slog.Logger
	PProf   bool // serve the profiles of net/http/pprof, too
}

// Server is the control API of one job.
type Server struct {
	job      Controller
	log      *slog.Logger
	token    string
	loopback bool
	pprof    bool
	listener net.Listener
	// finalizes is one for all who ask for the same: it belongs to the server, not
	// to the request, so that a client may go away.
	finalizes singleflight.Group
	// farewell is defaultFarewell, deadline replyTime, shorter in tests.
	farewell, deadline time.Duration
}

// Listen opens the address. Nothing is answered before Serve.
func Listen(ctx context.Context, o Options) (*Server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("listen for control: %w", err), "choose another address with --listen; port 0 takes a free one")
	}
	s := &Server{job: o.Job, log: o.Log, token: o.Token, pprof: o.PProf, listener: l, farewell: defaultFarewell, deadline: replyTime}
	if s.token == "" {
		s.token = rand.Text()
	}
	s.loopback = loopback.Addr(l.Addr())
	return s, nil
}

// Addr is the address that is listened on, with its real port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Token is the secret that changing requests carry.
func (s *Server) Token() string { return s.token }

// Loopback reports whether only this machine can reach the server.
func (s *Server) Loopback() bool { return s.loopback }

// Serve answers until ctx ends, then lets replies under way go out for a few
// seconds, so that who asked to finalize hears the outcome. Only then a
// finalize still under way is given up, and its end awaited.
func (s *Server) Serve(ctx context.Context) error {
	ending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	hs := &http.Server{
		Handler:           s.handler(ending),
		ReadHeaderTimeout: s.deadline,
		ReadTimeout:       s.deadline,
		WriteTimeout:      s.deadline,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	err := Until(ctx, hs, s.farewell, func() error { return hs.Serve(s.listener) })
	giveUp()
	for _, wish := range []bool{false, true} { // waits for those under way
		_, _, _ = s.finalizes.Do(strconv.FormatBool(wish), func() (any, error) { return nil, nil })
	}
	return err
}

// Until has hs serve until ctx ends, and then lets replies under way go out, as
// long as the farewell lasts.
func Until(ctx context.Context, hs *http.Server, farewell time.Duration, serve func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if hs.Shutdown(ending) != nil {
		_ = hs.Close() // cuts them
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
