package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/service/console"
	"github.com/millrace/millrace/internal/service/oidc"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/spans"
)

// farewell is how long replies under way may take when the service ends.
const farewell = 5 * time.Second

// listen takes the address of the API.
func listen(ctx context.Context, s *config.Serve) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return nil, cli.WithCode(cli.ExitFailure, mongo.WithHint(fmt.Errorf("listen for the API: %w", err), "choose another address with --listen; port 0 takes a free one"))
	}
	return l, nil
}

// serveAPI answers those who connect to l until ctx ends, and closes l.
func (r *session) serveAPI(ctx context.Context, s *config.Serve, l net.Listener, desk *operate.Desk, traces *spans.Spans) error {
	tokens, err := r.tokens(s)
	if err != nil {
		return err
	}
	provider, err := r.provider(s)
	if err != nil {
		return err
	}
	build, local := cli.BuildInfo(), loopback.Addr(l.Addr())
	login := func(token string) (*service.Caller, bool) { c := tokens.Whose(token); return c, c != nil }
	co := console.Options{Desk: desk, Login: login, Enter: tokens.Enter, Log: r.log, Secure: s.TLSCert != "", Loopback: local}
	ao := api.Options{Desk: desk, Tokens: tokens, Log: r.log, Loopback: local, Ready: desk.Hub.Ready, Version: build.Version, Revision: build.Revision}
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
	url := "http://" + l.Addr().String()
	if s.TLSCert != "" {
		url = "https://" + l.Addr().String()
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: server.Certificates(s.TLSCert, s.TLSKey, r.log)})
	}
	r.log.Info("service runs", "console", url+"/", "tokens", cmp.Or(s.Tokens, tokenFile(s)))
	hs := a.Server()
	return server.Until(ctx, hs, farewell, func() error { return hs.Serve(l) })
}

// provider is where people log in besides, nil for nowhere.
func (r *session) provider(s *config.Serve) (*oidc.Provider, error) {
	if s.OIDC == "" {
		return nil, nil //nolint:nilnil // there is none, and nothing is wrong
	}
	settings, err := oidc.Open(s.OIDC, s.Resolver(r.LookupEnv))
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
