package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

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
