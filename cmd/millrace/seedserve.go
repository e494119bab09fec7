package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/internal/server"
)

func (a *app) seedServeCommand() *cobra.Command {
	var s config.Seed
	cmd := &cobra.Command{
		Use:   "serve --uri URI --dbpath DIR",
		Short: "Serve a member's files to millrace seed pull on other machines",
		Long: `Runs beside the member that is copied and serves its files until it is stopped.
It reads the member's directory and serves nothing that its manifest does not name.
Every request needs its token. On loopback it makes one, which millrace seed pull of the
same user finds; off loopback it takes a certificate and a token.`,
		Example: `  millrace seed serve --uri mongodb://127.0.0.1:27017 --dbpath /data/db --listen 10.0.0.2:7117 \
    --tls-cert agent.pem --token-file token`,
		Args: cobra.NoArgs,
	}
	s.Bind(cmd.Flags(), config.CommandSeedServe)
	return a.configured(cmd, config.CommandSeedServe, s.Validate,
		func(ctx context.Context, o config.Origins, _ []string) error { return a.seedServe(ctx, &s, o) })
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
	s.Bind(cmd.Flags(), config.CommandSeedPull)
	return a.configured(cmd, config.CommandSeedPull, s.Validate,
		func(ctx context.Context, o config.Origins, args []string) error { return a.seedPull(ctx, &s, o, args) })
}

// seedTokenFile is the file with the token of an agent on loopback that was
// given none.
func (a *app) seedTokenFile(address string) (string, error) {
	registry, err := server.NewRegistry(a.lookupEnv)
	return seed.TokenFile(registry.Dir, address), err
}

// findSeedToken names the file with the token of an agent.
func (a *app) findSeedToken(s *config.Seed) (name string, err error) {
	if name = s.TokenFile; name == "" {
		u, err := url.Parse(s.From)
		if err != nil {
			return "", err
		}
		if name, err = a.seedTokenFile(u.Host); err != nil {
			return "", err
		}
	}
	if _, err = seed.ReadToken(name); errors.Is(err, fs.ErrNotExist) && s.TokenFile == "" {
		err = mongo.WithHint(errors.New("no agent of this user serves at "+s.From), "start millrace seed serve, or give the token of another user's with --token-file")
	}
	return name, err
}

func (a *app) seedPull(ctx context.Context, s *config.Seed, origins config.Origins, command []string) error {
	screen := a.screen()
	log := newLog(a.logTo(screen), s.Common)
	warnSecrets(log, origins, map[string]string{"set-uri": s.SetURI})
	token, err := a.findSeedToken(s)
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	client, err := seed.NewClient(seed.ClientOptions{URL: s.From, TokenFile: token, CA: s.TLSCA, Zstd: s.Compress, Log: log})
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	defer client.Close()
	log.Info("copying", "from", s.From)
	return a.seed(ctx, s, client, command, screen, log)
}

func (a *app) seedServe(ctx context.Context, s *config.Seed, origins config.Origins) (err error) {
	log := newLog(a.stderr, s.Common)
	warnSecrets(log, origins, map[string]string{"uri": s.SourceURI})
	var token string
	if s.TokenFile != "" {
		if token, err = seed.ReadToken(s.TokenFile); err != nil {
			return a.beforeWriting(ctx, err)
		}
	}
	plan, err := seed.Inspect(ctx, seedSource(s))
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	plan.Checks.LogWarnings(log)
	agent, closeAgent, err := openSeedAgent(s, plan, log)
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	defer func() { err = errors.Join(err, closeAgent()) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return a.beforeWriting(ctx, fmt.Errorf("listen on %s: %w", s.Listen, err))
	}
	defer listener.Close()
	tokenFile := s.TokenFile
	if tokenFile == "" {
		var remove func() error
		if tokenFile, err = a.seedTokenFile(listener.Addr().String()); err == nil {
			token, remove, err = seed.WriteToken(tokenFile)
		}
		if err != nil {
			return a.beforeWriting(ctx, err)
		}
		defer func() { err = errors.Join(err, remove()) }()
	}
	handler, err := seed.NewHandler(agent, token, loopback.Addr(listener.Addr()))
	if err != nil {
		return err
	}
	log.Info("serving", "address", listener.Addr().String(), "tokenFile", tokenFile, "tls", s.TLSCert != "", "way", plan.Way, "why", plan.Why,
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
			key := s.TLSKey
			if key == "" {
				key = s.TLSCert
			}
			err = srv.ServeTLS(listener, s.TLSCert, key)
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
