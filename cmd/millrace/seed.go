package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/transform"
)

// afterDash accepts arguments after -- only.
func afterDash(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// seedGuardCommand is the guardian of a lock, which reads its orders from standard input.
func seedGuardCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "guard",
		Short:  "Hold the lock of a member",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// To tell a parent that is gone must not end the guardian: the member would stay locked.
			signal.Ignore(syscall.SIGPIPE)
			return seed.Guard(cmd.Context(), os.Stdin, a.Stdout)
		},
	}
}

// seedPrivateCommand is the guardian of a private mongod, which ends with its standard
// input. Its exit code is that of the mongod.
func seedPrivateCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "private -- mongod ...",
		Short:  "Run a mongod until this process is not wanted any more",
		Hidden: true,
		Args:   afterDash,
		RunE: func(_ *cobra.Command, args []string) error {
			code, err := seed.Private(os.Stdin, args)
			switch {
			case err != nil:
				return cli.WithCode(cli.ExitFailure, err)
			case code != cli.ExitOK:
				return cli.WithCode(code, fmt.Errorf("mongod ended with code %d", code))
			}
			return nil
		},
	}
}

func (r *session) openAgent(s *config.Seed, plan *seed.Plan) (agent *seed.Agent, err error) {
	plan.Checks.LogWarnings(r.log)
	o := s.ServeOptions
	if o.Guard, err = guardian("guard"); err != nil {
		return nil, err
	}
	o.Log = r.log
	return seed.OpenAgent(plan, o)
}

func guardian(args ...string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to start a guardian: %w", err)
	}
	return append([]string{self, "seed"}, args...), nil
}

func (r *session) seedLocal(ctx context.Context, s *config.Seed) (err error) {
	plan, err := seed.Inspect(ctx, s.SourceOptions)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	s.Member.SetURI = cmp.Or(s.Member.SetURI, s.URI)
	if s.DryRun {
		seed.CheckMember(ctx, plan, s.Options)
		return cmp.Or(r.Tell(s.Output, plan, textOf("seed plan", plan)), checksFailed(plan.Checks))
	}
	agent, err := r.openAgent(s, plan)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	r.log.Info("copying", "way", plan.Way, "why", plan.Why, "files", plan.Files, "bytes", bytesOf(plan.Bytes))
	return r.seed(ctx, s, agent)
}

func (r *session) seed(ctx context.Context, s *config.Seed, src seed.Source) (err error) {
	o := s.Options
	if o.Member.Guardian, err = guardian("private", "--"); err != nil {
		return beforeWriting(ctx, err)
	}
	o.Pull.Stats, o.Pull.Log = &seed.Stats{}, r.log
	rep, text := seedReport{Version: cli.BuildInfo().Version}, ""
	err = during(ctx, func() (err error) { rep.Result, err = seed.Run(ctx, src, o); return err },
		func(ctx context.Context) { r.watchSeed(ctx, s.ProgressInterval, o.Pull.Stats.Stats) })
	switch {
	case err == nil:
		text = seededText(s, rep.Result)
	case context.Cause(ctx) != nil:
		err = mongo.WithHint(fmt.Errorf("%w before the copy was complete", context.Cause(ctx)),
			"run the same command to complete it")
	}
	return errors.Join(err, r.Tell(s.Output, rep, text))
}

type seedReport struct {
	Version string       `json:"version"`
	Result  *seed.Result `json:"result"`
}

func seededText(s *config.Seed, r *seed.Result) string {
	return textOf("seeded", struct {
		Settings *config.Seed
		Result   *seed.Result
	}{s, r})
}

func (r *session) watchSeed(ctx context.Context, interval time.Duration, stats func() seed.Snapshot) {
	began := time.Now()
	r.watch(ctx, interval, func() {
		st := stats()
		out := []any{"phase", st.Phase, "bytes", bytesOf(st.Done), "bytesTotal", bytesOf(st.Total)}
		if eta := seedETA(st); eta >= 0 {
			out = append(out, "etaSeconds", rounded(eta))
		}
		r.log.Info("progress", out...)
	}, func(columns, _ int) []string { return seedView(stats(), time.Since(began), columns) })
}

// seedETA is how long the phase will take yet, in seconds; -1 is not known.
func seedETA(s seed.Snapshot) float64 {
	if s.Done <= 0 || s.Total <= 0 || s.PhaseSeconds <= 0 {
		return -1
	}
	return max(float64(s.Total-s.Done), 0) * s.PhaseSeconds / float64(s.Done)
}

func seedView(s seed.Snapshot, elapsed time.Duration, columns int) []string {
	v := viewer(columns)
	return v.lines("view of seed", struct {
		viewer
		seed.Snapshot

		Elapsed, ETASeconds float64
	}{v, s, elapsed.Seconds(), seedETA(s)})
}

func (a *app) seedTokenFile(address string) (string, error) {
	registry, err := server.NewRegistry(a.LookupEnv)
	return seed.TokenFile(registry.Dir, address), err
}

// findSeedToken returns the file with the token of an agent: the one that was given, or that of an agent of this user.
func (a *app) findSeedToken(file, address string) (name string, err error) {
	if name = file; name == "" {
		u, err := url.Parse(address)
		if err != nil {
			return "", err
		}
		if name, err = a.seedTokenFile(u.Host); err != nil {
			return "", err
		}
	}
	if _, err = seed.ReadToken(name); errors.Is(err, fs.ErrNotExist) && file == "" {
		err = mongo.WithHint(errors.New("no agent of this user serves at "+address),
			"start it, or give the token of another user's with --token-file")
	}
	return name, err
}

func (r *session) seedPull(ctx context.Context, s *config.Seed) error {
	token, err := r.findSeedToken(s.TokenFile, s.From)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	client, err := seed.NewClient(seed.ClientOptions{URL: s.From, TokenFile: token, CA: s.TLSCA, Zstd: s.Compress,
		Log: r.log})
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer client.Close()
	r.log.Info("copying", "from", s.From)
	return r.seed(ctx, s, client)
}

func (r *session) seedServe(ctx context.Context, s *config.Seed) (err error) {
	plan, err := seed.Inspect(ctx, s.SourceOptions)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	agent, err := r.openAgent(s, plan)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	return r.listenSeed(ctx, s, func(token string, local bool) (http.Handler, error) {
		return seed.NewHandler(agent, token, local)
	}, "way", plan.Way, "why", plan.Why, "files", plan.Files, "bytes", bytesOf(plan.Bytes))
}

// seedAgent makes a member of a new set, as the orders of a sync say, until the sync is finalized.
func (r *session) seedAgent(ctx context.Context, s *config.Seed) (err error) {
	private, err := guardian("private", "--")
	if err != nil {
		return beforeWriting(ctx, err)
	}
	host, err := seed.NewHost(ctx, seed.HostOptions{DBPath: s.Pull.DBPath, Command: s.Member.Command,
		Mongod: s.Member.Mongod, Guardian: private, Own: s.Own, Workers: s.Pull.Workers, Log: r.log,
		Peer: func(address string) (*seed.Client, error) {
			token, err := r.findSeedToken(s.TokenFile, address)
			if err != nil {
				return nil, err
			}
			return seed.NewClient(seed.ClientOptions{URL: address, TokenFile: token, CA: s.TLSCA, Zstd: s.Compress, Log: r.log,
				RetryFor: 15 * time.Second}) // then the host tries again
		},
		Keep: func(include, exclude []string) (func(string) bool, error) {
			rules, err := transform.New(transform.Config{Include: include, Exclude: exclude})
			if err != nil {
				return nil, err
			}
			return rules.Match, nil
		}})
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	ctx, end := context.WithCancel(ctx)
	defer end()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer end() // it has finished
		return host.Run(gctx)
	})
	g.Go(func() error {
		return r.listenSeed(gctx, s, func(token string, local bool) (http.Handler, error) {
			return seed.NewHostHandler(host, token, local)
		}, "member", s.Own.Host, "stage", host.State().Stage)
	})
	if err = g.Wait(); errors.Is(err, context.Canceled) {
		err = nil // to end it is proper
	}
	return err
}

// listenSeed serves a handler until ctx ends, which is these commands' proper end.
func (r *session) listenSeed(ctx context.Context, s *config.Seed, handle func(token string, local bool) (http.Handler,
	error), shown ...any) (err error) {
	var token string
	if s.TokenFile != "" {
		if token, err = seed.ReadToken(s.TokenFile); err != nil {
			return beforeWriting(ctx, err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return beforeWriting(ctx, fmt.Errorf("listen on %s: %w", s.Listen, err))
	}
	defer listener.Close()
	tokenFile := s.TokenFile
	if tokenFile == "" {
		var remove func() error
		if tokenFile, err = r.seedTokenFile(listener.Addr().String()); err == nil {
			token, remove, err = seed.WriteToken(tokenFile)
		}
		if err != nil {
			return beforeWriting(ctx, err)
		}
		defer func() { err = errors.Join(err, remove()) }()
	}
	handler, err := handle(token, loopback.Addr(listener.Addr()))
	if err != nil {
		return err
	}
	r.log.Info("serving", append([]any{"address", listener.Addr().String(), "tokenFile", tokenFile,
		"tls", s.TLSCert != ""}, shown...)...)
	return r.serveSeed(ctx, s, listener, handler)
}

// serveSeed serves until ctx ends, which is this command's proper end.
func (r *session) serveSeed(ctx context.Context, s *config.Seed, listener net.Listener, handler http.Handler) error {
	// Requests end with ctx, so that a lock under way is let go.
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, BaseContext: func(net.Listener) context.Context { return ctx },
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)}
	err := server.Until(ctx, srv, 10*time.Second, func() error {
		if s.TLSCert == "" {
			return srv.Serve(listener)
		}
		return srv.ServeTLS(listener, s.TLSCert, cmp.Or(s.TLSKey, s.TLSCert))
	})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
