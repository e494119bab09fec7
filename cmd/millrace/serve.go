package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/alert"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/service/console"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/oidc"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/spans"
	"github.com/millrace/millrace/internal/service/worker"
)

func (r *session) serve(ctx context.Context, s *config.Serve) error {
	if s.DataDir == "" {
		dir, err := server.StateDir(r.LookupEnv)
		if err != nil {
			return cli.WithCode(cli.ExitUsage, err)
		}
		s.DataDir = filepath.Join(dir, "service")
	}
	l, err := server.Listen(ctx, s.Listen, s.TLSCert, s.TLSKey, r.log)
	if err != nil {
		return cli.WithCode(cli.ExitFailure, err)
	}
	defer func() { _ = l.Close() }() // for whatever fails before it serves
	if err := os.MkdirAll(s.DataDir, 0o700); err != nil {
		return cli.WithCode(cli.ExitUsage, fmt.Errorf("make --data-dir: %w", err))
	}
	traces, err := r.traces(ctx, &s.Work)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	defer traces.Close()
	store, closeStore, err := r.store(ctx, s)
	if err != nil {
		return r.notBegun(ctx, err)
	}
	defer closeStore()
	view := store.NewView()
	alerts, err := r.alerts(s, store, view)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return view.Run(gctx) })
	g.Go(func() error { return store.KeepFormat(gctx) })
	g.Go(func() error { return alerts.Run(gctx) })
	if !s.NoWorker {
		g.Go(func() error { return r.work(gctx, &s.Work, store, view, traces) })
	}
	desk := &operate.Desk{Hub: store, View: view, Now: time.Now}
	g.Go(func() error { return r.serveAPI(gctx, s, l, desk, traces) })
	return r.ended(ctx, g.Wait())
}

func (r *session) alerts(s *config.Serve, store *hub.Hub, view *hub.View) (*alert.Keeper, error) {
	settings := alert.Defaults()
	if s.Alerts != "" {
		var err error
		if settings, err = alert.Open(s.Alerts, s.Work.Access(r.LookupEnv).Secret); err != nil {
			return nil, err
		}
	}
	return alert.New(alert.Options{Hub: store, View: view, Settings: settings, Log: r.log}), nil
}

// store opens what keeps the service: a NATS server of its own, or a cluster.
func (r *session) store(ctx context.Context, s *config.Serve) (*hub.Hub, func(), error) {
	if s.URI != "" {
		h, err := r.cluster(ctx, &s.NATS)
		if err != nil {
			return nil, nil, err
		}
		return h, h.Close, nil
	}
	o := hub.EmbedOptions{Dir: filepath.Join(s.DataDir, "nats"), Log: r.log}
	if s.NATSListen != "" {
		var err error
		if o.Token, err = secret(filepath.Join(s.DataDir, "nats-token")); err != nil {
			return nil, nil, err
		}
		var port string
		o.Host, port, _ = net.SplitHostPort(s.NATSListen) // checked
		if o.Port, _ = strconv.Atoi(port); o.Port == 0 {
			o.Port = -1 // NATS takes a free one then
		}
		if s.TLSCert != "" {
			pair, err := tls.LoadX509KeyPair(s.TLSCert, s.TLSKey)
			if err != nil {
				return nil, nil, fmt.Errorf("read --listen-tls-cert: %w", err)
			}
			o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
		}
	}
	e, err := hub.Embed(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	h, err := hub.Open(ctx, hub.Options{Embedded: e, Lease: s.Lease, Log: r.log})
	if err != nil {
		e.Close()
		return nil, nil, err
	}
	if at := e.Address(); at != "" {
		r.log.Info("workers of other machines reach NATS", "nats", at, "tokenFile", filepath.Join(s.DataDir, "nats-token"))
	}
	return h, func() { h.Close(); e.Close() }, nil
}

func (r *session) cluster(ctx context.Context, n *config.NATS) (*hub.Hub, error) {
	o := hub.Options{URI: n.URI, Creds: n.Creds, Replicas: n.Replicas, Lease: n.Lease, Log: r.log}
	if n.TokenFile != "" {
		raw, err := os.ReadFile(n.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read --nats-token-file: %w", err)
		}
		o.Token = strings.TrimSpace(string(raw))
	}
	return hub.Open(ctx, o)
}

// secret is what a file holds for its owner alone; a new one where there is none.
func secret(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(raw))) >= 16 {
		return strings.TrimSpace(string(raw)), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the secret in %s: %w", path, err)
	}
	text := rand.Text()
	if err := outfile.Replace(path,
		func(f *os.File) error { _, err := f.WriteString(text + "\n"); return err }); err != nil {
		return "", fmt.Errorf("write a secret to %s: %w", path, err)
	}
	return text, nil
}

// work runs jobs in this process, with its guardian, until ctx ends.
func (r *session) work(ctx context.Context, w *config.Work, store *hub.Hub, view *hub.View, traces *spans.Spans) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start the worker's guardian: %w", err)
	}
	guardian := worker.Guardian{Command: []string{self, "guardian", "--limit", store.Lease().String()},
		Limit: store.Lease(), Log: r.log}
	r.log.Info("worker runs", "name", w.Name, "labels", w.Labels)
	// The guardian is there until all is let go.
	guarded, end := context.WithCancel(context.WithoutCancel(ctx))
	g, gctx := errgroup.WithContext(guarded)
	g.Go(func() error { return guardian.Run(gctx) })
	g.Go(func() error { defer end(); return r.newWorker(w, store, view, traces).Run(ctx) })
	return g.Wait()
}

func guardWorkerCommand() *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{Use: "guardian", Short: "Kill a worker that hangs", Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			return cli.WithCode(cli.ExitFailure, worker.Guard(os.Stdin, limit))
		}}
	cmd.Flags().DurationVar(&limit, "limit", 0, "how long the worker may say nothing")
	return cmd
}

func (r *session) traces(ctx context.Context, w *config.Work) (*spans.Spans, error) {
	return spans.Open(ctx, spans.Options{Endpoint: w.OTLPEndpoint, LookupEnv: r.LookupEnv, Instance: w.Name,
		Version: cli.BuildInfo().Version, Log: r.log})
}

func (r *session) newWorker(w *config.Work, store *hub.Hub, view *hub.View, traces *spans.Spans) *worker.Worker {
	o := worker.Options{Name: w.Name, Version: cli.BuildInfo().Version, Labels: w.Labels, MaxJobs: w.MaxJobs,
		SpoolDir: w.SpoolDir, SpoolBytes: w.SpoolBytes, Hub: store, View: view, Access: *w.Access(r.LookupEnv), Spans: traces,
		Log: r.log}
	if o.SpoolDir == "" {
		if dir, err := server.StateDir(r.LookupEnv); err == nil {
			o.SpoolDir = filepath.Join(dir, "spool")
		}
	}
	return worker.New(o)
}

func (r *session) worker(ctx context.Context, s *config.Worker) error {
	traces, err := r.traces(ctx, &s.Work)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	defer traces.Close()
	store, err := r.cluster(ctx, &s.NATS)
	if err != nil {
		return r.notBegun(ctx, err)
	}
	defer store.Close()
	view := store.NewView()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return view.Run(gctx) })
	g.Go(func() error { return store.KeepFormat(gctx) })
	g.Go(func() error { return r.work(gctx, &s.Work, store, view, traces) })
	return r.ended(ctx, g.Wait())
}

// ended is nil if a signal ended the service.
func (r *session) ended(ctx context.Context, err error) error {
	if signal, ok := errors.AsType[cli.Stopped](context.Cause(ctx)); ok {
		r.log.Info(signal.Error() + "; jobs are at their checkpoints")
		return nil
	}
	return cli.WithCode(cli.ExitFailure, err)
}

// notBegun is ended for what keeps the service from starting.
func (r *session) notBegun(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return r.ended(ctx, err)
	}
	return cli.WithCode(cli.ExitUsage, err)
}

const farewell = 5 * time.Second

// serveAPI answers those who connect to l until ctx ends, and closes l.
func (r *session) serveAPI(ctx context.Context, s *config.Serve, l *server.Listener, desk *operate.Desk,
	traces *spans.Spans) error {
	tokens, err := r.tokens(s)
	if err != nil {
		return err
	}
	provider, err := r.provider(s)
	if err != nil {
		return err
	}
	build := cli.BuildInfo()
	co := console.Options{Desk: desk, Login: tokens.Whose, Enter: tokens.Enter, Log: r.log, Secure: s.TLSCert != ""}
	ao := api.Options{Desk: desk, Tokens: tokens, Log: r.log, Loopback: l.Loopback, Ready: desk.Hub.Ready,
		Version: build.Version, Revision: build.Revision, Proxies: s.Proxies}
	if traces != nil {
		ao.Trace = traces.Request
	}
	if provider != nil {
		co.Provider, ao.Elsewhere = provider, provider.Whose
	}
	ao.Pages = console.New(co)
	a, err := api.New(ao)
	if err != nil {
		return err
	}
	r.log.Info("service runs", "console", l.URL+"/", "tokens", cmp.Or(s.Tokens, tokenFile(s)))
	hs := a.Server()
	return server.Until(ctx, hs, farewell, func() error { return hs.Serve(l) })
}

// provider is where people log in besides, nil for nowhere.
func (r *session) provider(s *config.Serve) (*oidc.Provider, error) {
	if s.OIDC == "" {
		return nil, nil //nolint:nilnil // there is none, and nothing is wrong
	}
	settings, err := oidc.Open(s.OIDC, s.Access(r.LookupEnv).Secret)
	if err != nil {
		return nil, cli.WithCode(cli.ExitUsage, err)
	}
	return oidc.New(settings, nil), nil
}

func tokenFile(s *config.Serve) string { return filepath.Join(s.DataDir, "token") }

// tokens are those of the file, or one that is made for the operator of the machine.
func (r *session) tokens(s *config.Serve) (*api.Tokens, error) {
	if s.Tokens != "" {
		return api.OpenTokens(s.Tokens, r.log)
	}
	token, err := secret(tokenFile(s))
	if err != nil {
		return nil, err
	}
	return api.OneToken("operator", token), nil
}
