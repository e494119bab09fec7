package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
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
	RetryLetters(context.Context) error
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
	// Cert and Key are files, for TLS; "" is without.
	Cert, Key string
	// OpenStatus shows the status to those who have no token, too.
	OpenStatus bool
}

// Server is the control API of one job.
type Server struct {
	options  Options
	job      Controller
	log      *slog.Logger
	token    string
	loopback bool
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
	s := &Server{options: o, job: o.Job, log: o.Log, token: cmp.Or(o.Token, rand.Text()), listener: l, farewell: defaultFarewell, deadline: replyTime}
	s.loopback = loopback.Addr(l.Addr())
	if o.Cert != "" {
		get := Certificates(o.Cert, o.Key, o.Log)
		if _, err := get(nil); err != nil {
			return nil, errors.Join(fmt.Errorf("listen for control: %w", err), l.Close())
		}
		// HTTP/2 is left out: nothing here is faster by it.
		s.listener = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get})
	}
	return s, nil
}

// Certificates reads the files for each connection, so that they may be renewed
// meanwhile. While they cannot be used, the last that could be is.
func Certificates(cert, key string, log *slog.Logger) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	var last atomic.Pointer[tls.Certificate]
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		now, err := tls.LoadX509KeyPair(cert, key)
		if err == nil {
			last.Store(&now)
		} else if log.Warn("the certificate of the control API cannot be read", "error", err); last.Load() == nil {
			return nil, err
		}
		return last.Load(), nil
	}
}

// URL is the address that is listened on, with its real port.
func (s *Server) URL() string {
	if s.options.Cert != "" {
		return "https://" + s.listener.Addr().String()
	}
	return "http://" + s.listener.Addr().String()
}

// Token is the secret that requests carry.
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
