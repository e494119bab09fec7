package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

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
	Finalize(context.Context) error
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
	finalize finalizing
	// farewell is defaultFarewell, deadline replyTime, shorter in tests.
	farewell, deadline time.Duration
}

// Listen opens the address. Nothing is answered before Serve; Close is needed
// only if Serve is never called.
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

// Close releases the address of a server that was never served.
func (s *Server) Close() error { return s.listener.Close() }

// Serve answers until ctx ends, then lets replies under way go out for a few
// seconds, so that who asked to finalize hears the outcome. Only then a
// finalize still under way is given up, and its end awaited.
func (s *Server) Serve(ctx context.Context) error {
	finalizeCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	s.finalize.ctx = finalizeCtx
	hs := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: s.deadline,
		ReadTimeout:       s.deadline,
		WriteTimeout:      s.deadline,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(s.listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		err = errors.Join(s.shutdown(hs), <-served)
	}
	giveUp()
	s.finalize.wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *Server) shutdown(hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.farewell)
	defer cancel()
	if err := hs.Shutdown(ctx); err != nil {
		s.log.Debug("control connections cut at the end", "error", err)
		return hs.Close()
	}
	return nil
}

// finalizing runs one finalize for all who ask: it belongs to the server, not
// to the request, so that a client may go away.
type finalizing struct {
	ctx context.Context // of the server, set before the first request

	mu  sync.Mutex
	run *attempt // under way or successful
}

type attempt struct {
	done chan struct{}
	err  error // valid once done is closed
}

// join starts a finalize, or joins the one under way, and waits for its end
// or that of ctx.
func (f *finalizing) join(ctx context.Context, do func(context.Context) error) error {
	f.mu.Lock()
	if f.run == nil {
		f.start(do)
	}
	run := f.run
	f.mu.Unlock()
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start needs f.mu.
func (f *finalizing) start(do func(context.Context) error) {
	run := &attempt{done: make(chan struct{})}
	f.run = run
	go func() {
		defer close(run.done)
		if run.err = do(f.ctx); run.err != nil {
			f.mu.Lock()
			f.run = nil // it may be asked again
			f.mu.Unlock()
		}
	}()
}

// wait returns when no finalize is under way.
func (f *finalizing) wait() {
	f.mu.Lock()
	run := f.run
	f.mu.Unlock()
	if run != nil {
		<-run.done
	}
}
