// Package server has what servers and clients of an API over HTTP share: TLS, the exchange of JSON, and the
// records of running syncs. The API is in service/api.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
)

// Listener takes the connections of an API.
type Listener struct {
	net.Listener
	// URL is its address, with the real port.
	URL string
	// Loopback means that only this machine can connect.
	Loopback bool
}

// Listen opens an address, with TLS if cert and key are files. Nothing here is faster by HTTP/2.
func Listen(ctx context.Context, address, cert, key string, log *slog.Logger) (*Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("listen for the API: %w", err),
			"choose another address with --listen; port 0 takes a free one")
	}
	out := &Listener{l, "http://" + l.Addr().String(), loopback.Addr(l.Addr())}
	if cert != "" {
		get := certificates(cert, key, log)
		if _, err := get(nil); err != nil {
			return nil, errors.Join(fmt.Errorf("listen for the API: %w", err), l.Close())
		}
		out.URL = "https://" + l.Addr().String()
		out.Listener = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get})
	}
	return out, nil
}

// certificates reads the files for each connection, because they may be renewed, or else keeps the last.
func certificates(cert, key string, log *slog.Logger) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
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

// Extend lifts a request's read deadline, which would cancel it, and sets that of the reply; limit 0 is none.
func Extend(w http.ResponseWriter, limit time.Duration) {
	rc, at := http.NewResponseController(w), time.Time{}
	if limit > 0 {
		at = time.Now().Add(limit)
	}
	_ = errors.Join(rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(at))
}

// SlowWriter gives each piece of a long reply a limit of its own, and sends it at once.
func SlowWriter(w http.ResponseWriter, limit time.Duration) io.Writer { return &slowWriter{w, limit} }

type slowWriter struct {
	http.ResponseWriter
	limit time.Duration
}

func (w *slowWriter) Write(p []byte) (int, error) {
	Extend(w.ResponseWriter, w.limit)
	n, err := w.ResponseWriter.Write(p)
	if err == nil {
		err = http.NewResponseController(w.ResponseWriter).Flush()
	}
	return n, err
}

// Until has hs serve until ctx ends. Replies under way may take as long as the farewell.
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
