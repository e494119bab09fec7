package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/hub"
)

// front is what API and console stand on.
type front struct {
	store    *hub.Hub
	view     *hub.View
	token    string // of everything, where no file has others
	loopback bool   // only this machine reaches them
}

// farewell is how long replies under way may take when the service ends.
const farewell = 5 * time.Second

// serveAPI answers until ctx ends.
func (r *session) serveAPI(ctx context.Context, s *config.Serve, f *front) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return mongo.WithHint(fmt.Errorf("listen for the API: %w", err), "choose another address with --listen; port 0 takes a free one")
	}
	f.loopback = loopback.Addr(l.Addr())
	scheme := "http"
	if s.TLSCert != "" {
		scheme, l = "https", tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: server.Certificates(s.TLSCert, s.TLSKey, r.log)})
	}
	handler, err := r.frontHandler(s, f)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	hs := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)}
	r.log.Info("service runs", "console", scheme+"://"+l.Addr().String()+"/")
	return server.Until(ctx, hs, farewell, func() error { return hs.Serve(l) })
}
