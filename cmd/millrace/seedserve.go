package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/seed"
)

func (a *app) seedServeCommand() *cobra.Command {
	var s config.Seed
	cmd := &cobra.Command{
		Use:   "serve --uri URI --dbpath DIR",
		Short: "Serve a member's files to millrace seed pull on other machines",
		Long: `Runs beside the member that is copied and serves its files until it is stopped.
It reads the member's directory and serves nothing that its manifest does not name.
Off loopback it takes a certificate and a token.`,
		Example: `  millrace seed serve --uri mongodb://127.0.0.1:27017 --dbpath /data/db --listen 10.0.0.2:7117 \
    --tls-cert agent.pem --token-file token`,
	}
	return a.configured(cmd, config.CommandSeedServe, &s, func(ctx context.Context, run *session) error { return run.seedServe(ctx, &s) })
}

func (a *app) seedPullCommand() *cobra.Command {
	var s config.Seed
	cmd := &cobra.Command{
		Use:   "pull --from https://HOST:PORT --dbpath DIR [--start -- mongod ...]",
		Short: "Copy a member from millrace seed serve on another machine",
		Example: `  millrace seed pull --from https://10.0.0.2:7117 --tls-ca ca.pem --token-file token --dbpath /data/db \
    --set-uri mongodb://10.0.0.2:27017 --join 10.0.0.9:27017 \
    --start -- mongod --fork --logpath /data/db.log --replSet rs0 --bind_ip 10.0.0.9 --dbpath /data/db`,
		Args: afterDash,
	}
	return a.configured(cmd, config.CommandSeedPull, &s, func(ctx context.Context, run *session) error { return run.seedPull(ctx, &s) })
}

// readToken reads a secret from a file; "" names none.
func readToken(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 {
		return "", mongo.WithHint(fmt.Errorf("the token in %s is too short", name), "make one of 16 characters or more: openssl rand -hex 32")
	}
	return token, nil
}

func (r *session) seedPull(ctx context.Context, s *config.Seed) error {
	token, err := readToken(s.TokenFile)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	client, err := seed.NewClient(seed.ClientOptions{URL: s.From, Token: token, CA: s.TLSCA, Zstd: s.Compress, Log: r.log})
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer client.Close()
	r.log.Info("copying", "from", s.From)
	return r.seed(ctx, s, client)
}

func (r *session) seedServe(ctx context.Context, s *config.Seed) (err error) {
	token, err := readToken(s.TokenFile)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	plan, err := seed.Inspect(ctx, s.SourceOptions)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	plan.Checks.LogWarnings(r.log)
	agent, closeAgent, err := r.openAgent(s, plan)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer func() { err = errors.Join(err, closeAgent()) }()
	handler, err := seed.NewHandler(agent, token)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return beforeWriting(ctx, fmt.Errorf("listen on %s: %w", s.Listen, err))
	}
	r.log.Info("serving", "address", listener.Addr().String(), "tls", s.TLSCert != "", "way", plan.Way, "why", plan.Why,
		"files", plan.Files, "size", size(float64(plan.Bytes)))
	return serveSeed(ctx, s, listener, handler)
}

// serveSeed serves until ctx ends, which is this command's proper end.
func serveSeed(ctx context.Context, s *config.Seed, listener net.Listener, handler http.Handler) error {
	// Requests end with ctx, so that a lock under way is let go.
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		var err error
		if s.TLSCert == "" {
			err = srv.Serve(listener)
		} else {
			err = srv.ServeTLS(listener, s.TLSCert, cmp.Or(s.TLSKey, s.TLSCert))
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve: %w", err)
	})
	g.Go(func() error {
		<-gctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := srv.Shutdown(closing); err != nil {
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}
