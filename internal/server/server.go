// Package server has what servers and clients of an API over HTTP share: TLS, the exchange of JSON, and the
// records of running syncs. The API is in service/api.
package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
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
	l = &bounded{Listener: l, taken: make(chan struct{}, maxConnections()), closed: make(chan struct{})}
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

// maxConnections bounds the connections of a server, so that peers without a token leave files and memory to jobs.
func maxConnections() int {
	const most = 1000
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return most
	}
	return int(min(most, max(uint64(files.Cur)/4, 1))) //nolint:unconvert,gosec // of other types on other systems
}

// bounded has up to maxConnections at once. Others wait to be accepted.
type bounded struct {
	net.Listener
	taken  chan struct{} // has one for each connection
	closed chan struct{}
	once   sync.Once // closes closed
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.taken <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.taken
		return nil, err
	}
	return &boundedConn{Conn: c, leave: sync.OnceFunc(func() { <-b.taken })}, nil
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
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

// PathHealth is where a sync says who it is.
const PathHealth = "/healthz"

// Health is the body of /healthz: who answers, without a look at the job.
type Health struct {
	PID int `json:"pid"`
}

// maxReply bounds a reply: the status of a job with a hundred thousand collections fits.
const maxReply = 64 << 20

// Endpoint returns the URL of an API at address, with an HTTP client and its TLS settings. Without http:// or
// https:// it is http on this machine, else https, because the token goes to whoever answers.
func Endpoint(address string) (string, *http.Client, *tls.Config) {
	switch {
	case strings.Contains(address, "://"):
	case loopback.Host(address):
		address = "http://" + address
	default:
		address = "https://" + address
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     30 * time.Second,
	}
	// The API redirects nobody; a token must not follow where something else points.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return strings.TrimSuffix(address, "/"), &http.Client{Transport: transport, CheckRedirect: stay},
		transport.TLSClientConfig
}

// CheckAddress checks an address for Endpoint. The error does not quote it: it may hold a password.
func CheckAddress(address string) error {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		!strings.ContainsAny(address, "@?#") {
		return nil
	}
	return mongo.WithHint(errors.New("the address of the API cannot be used"),
		"write it as host:port, http://host:port or https://host:port")
}

// TrustAuthorities has TLS trust the authorities of a file instead of the system's; "" changes nothing.
func TrustAuthorities(t *tls.Config, file string) error {
	if file == "" {
		return nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the certificate authority: %w", err)
	}
	t.RootCAs = x509.NewCertPool()
	if !t.RootCAs.AppendCertsFromPEM(raw) {
		return fmt.Errorf("%s holds no certificate in PEM form", file)
	}
	return nil
}

// trustOnly has TLS trust the certificate that a file begins with, whatever its names and dates.
func trustOnly(t *tls.Config, file string) {
	t.InsecureSkipVerify = true // what follows is stricter
	t.VerifyConnection = func(s tls.ConnectionState) error {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the certificate of the sync: %w", err)
		}
		for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == "CERTIFICATE" {
				if bytes.Equal(block.Bytes, s.PeerCertificates[0].Raw) {
					return nil
				}
				break
			}
		}
		return fmt.Errorf("who answers has not the certificate that %s begins with", file)
	}
}

// Limits are new rates per second, 0 for unlimited, and new loads; nil changes nothing.
type Limits struct {
	Docs   *int64     `json:"docsPerSecond,omitempty"`
	Bytes  *int64     `json:"bytesPerSecond,omitempty"`
	Source *pace.Load `json:"sourceLoad,omitempty"`
	Target *pace.Load `json:"targetLoad,omitempty"`
}

// Request is one of an API that takes JSON.
type Request struct {
	Method, URL string
	Token       string // "" sends none
	What        any    // the body; nil is none
}

// Reply is what an API replies.
type Reply struct {
	Code   int
	Status string // the code in words
	Body   []byte
}

func Send(ctx context.Context, c *http.Client, r Request) (*http.Response, error) {
	var sent io.Reader
	if r.What != nil {
		text, err := json.Marshal(r.What)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, sent)
	if err != nil {
		return nil, err
	}
	if r.What != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	res, err := c.Do(req)
	if inner := errors.Unwrap(err); inner != nil { // without the method and the URL
		err = inner
	}
	return res, err
}

// Exchange sends a request and reads the reply, whatever its code.
func Exchange(ctx context.Context, c *http.Client, r Request) (reply Reply, err error) {
	res, err := Send(ctx, c, r)
	if err != nil {
		return reply, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return reply, fmt.Errorf("read the reply: %w", err)
	}
	return Reply{res.StatusCode, res.Status, body}, nil
}

// TLSHint returns what to do if TLS is why who, such as "the sync", did not reply; else "".
func TLSHint(err error, who string) string {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return "name the authority of " + who + "'s certificate with --ca-file, and the host as the certificate does"
	case errors.Is(err, http.ErrSchemeMismatch):
		return who + " listens without TLS: write http:// before the address"
	}
	return ""
}
