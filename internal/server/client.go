package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// The paths of the API of a sync, as this client has them.
const (
	PathStatus   = "/api/v1/status"
	PathPause    = "/api/v1/pause"
	PathResume   = "/api/v1/resume"
	PathLimits   = "/api/v1/limits"
	PathLetters  = "/api/v1/deadletters/retry"
	PathFinalize = "/api/v1/finalize"
	PathHealth   = "/healthz"
)

const replyTime = 10 * time.Second

// Failure is the body of every reply that is not a success.
type Failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	// Code is that of a job.Refusal, and does not change with the text.
	Code string `json:"code,omitempty"`
}

// Finalize is the body of a request to finalize; none is the zero value.
type Finalize struct {
	WhenCaughtUp bool `json:"whenCaughtUp"`
}

// Health is the body of /healthz: who answers, without a look at the job.
type Health struct {
	PID int `json:"pid"`
}

// maxReply bounds what a client takes as a reply: the status of a job with a
// hundred thousand collections fits.
const maxReply = 64 << 20

// Client talks to the control API of a running sync. It is safe for
// concurrent use.
type Client struct {
	address, token string
	tls            *tls.Config
	http           *http.Client
}

// NewClient returns a client for the API at address (see Endpoint). The token may be
// empty where none is asked for.
func NewClient(address, token string) *Client {
	url, c, t := Endpoint(address)
	return &Client{address: url, token: token, tls: t, http: c}
}

// Endpoint is the URL of an API at address: host:port, behind http:// or https://. What
// has none of these is http on this machine, and else https, for the token goes to
// whoever answers. With it goes an HTTP client, and its TLS settings.
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
	return strings.TrimSuffix(address, "/"), &http.Client{Transport: transport, CheckRedirect: stay}, transport.TLSClientConfig
}

// CheckAddress says whether an address can be one of an API (see Endpoint). The error quotes
// nothing of it, for it may be a connection string with a password, and has a hint.
func CheckAddress(address string) error {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && !strings.ContainsAny(address, "@?#") {
		return nil
	}
	return mongo.WithHint(errors.New("the address of the API cannot be used"), "write it as host:port, http://host:port or https://host:port")
}

// TrustAuthorities has the client trust the certificate authorities of a file, and
// not the system's; "" names none.
func (c *Client) TrustAuthorities(file string) error { return TrustAuthorities(c.tls, file) }

// TrustAuthorities has TLS trust the certificate authorities of a file, and not the
// system's; "" names none.
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

// trustOnly has the client trust the certificate that a file begins with, whatever
// its names and its dates, and no other.
func (c *Client) trustOnly(file string) {
	c.tls.InsecureSkipVerify = true // what follows is stricter
	c.tls.VerifyConnection = func(s tls.ConnectionState) error {
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

// Close releases idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks how the job stands.
func (c *Client) Status(ctx context.Context) (job.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTime)
	defer cancel()
	return c.job(ctx, http.MethodGet, PathStatus)
}

// Pause stops the job's work until Resume and returns its status.
func (c *Client) Pause(ctx context.Context) (job.Status, error) {
	return c.job(ctx, http.MethodPost, PathPause)
}

// Resume lets a paused job go on and returns its status.
func (c *Client) Resume(ctx context.Context) (job.Status, error) {
	return c.job(ctx, http.MethodPost, PathResume)
}

// RetryLetters has open dead letters tried again and returns the job's status.
func (c *Client) RetryLetters(ctx context.Context) (job.Status, error) {
	return c.job(ctx, http.MethodPost, PathLetters)
}

// Limits are new rates, per second, 0 for unlimited, and new loads; what is
// nil stays what it is.
type Limits struct {
	Docs   *int64     `json:"docsPerSecond,omitempty"`
	Bytes  *int64     `json:"bytesPerSecond,omitempty"`
	Source *pace.Load `json:"sourceLoad,omitempty"`
	Target *pace.Load `json:"targetLoad,omitempty"`
}

// SetLimits changes how fast the job works and what it asks of both sides, and returns its status.
func (c *Client) SetLimits(ctx context.Context, l Limits) (s job.Status, err error) {
	err = c.call(ctx, http.MethodPatch, PathLimits, l, &s)
	return s, err
}

// Finalize asks for the cut-over and returns the final status. It waits as
// long as that takes; when ctx ends first, the job finalizes nevertheless.
func (c *Client) Finalize(ctx context.Context, whenCaughtUp bool) (s job.Status, err error) {
	err = c.call(ctx, http.MethodPost, PathFinalize, Finalize{whenCaughtUp}, &s)
	return s, err
}

// CancelFinalize takes the wish to finalize back and returns the job's status.
func (c *Client) CancelFinalize(ctx context.Context) (job.Status, error) {
	return c.job(ctx, http.MethodDelete, PathFinalize)
}

// Health asks who answers at the address.
func (c *Client) Health(ctx context.Context) (h Health, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err = c.call(ctx, http.MethodGet, PathHealth, nil, &h)
	return h, err
}

func (c *Client) job(ctx context.Context, method, path string) (s job.Status, err error) {
	err = c.call(ctx, method, path, nil, &s)
	return s, err
}

// call sends what as the body, nothing if it is nil.
func (c *Client) call(ctx context.Context, method, path string, what, into any) error {
	res, err := Exchange(ctx, c.http, Request{Method: method, URL: c.address + path, Token: c.token, What: what})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("control request to %s: %w", c.address, err), cmp.Or(TLSHint(err, "the sync"), "check that the sync still runs and that the address is the one it printed"))
	}
	if res.Code != http.StatusOK {
		return c.failure(res.Status, res.Body)
	}
	if err := json.Unmarshal(res.Body, into); err != nil {
		return mongo.WithHint(fmt.Errorf("control reply from %s is not one of millrace: %w", c.address, err), "check the address")
	}
	return nil
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

// Exchange sends a request and reads the reply, whatever its code.
func Exchange(ctx context.Context, c *http.Client, r Request) (reply Reply, err error) {
	var sent io.Reader
	if r.What != nil {
		text, err := json.Marshal(r.What)
		if err != nil {
			return reply, err
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, sent)
	if err != nil {
		return reply, err
	}
	if r.What != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	res, err := c.Do(req)
	if err != nil {
		return reply, bare(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return reply, fmt.Errorf("read the reply: %w", err)
	}
	return Reply{res.StatusCode, res.Status, body}, nil
}

// TLSHint is what to do about a request to somebody, such as "the sync", that had no
// reply because of TLS; "" where that is not why.
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

// bare drops the method and URL that the HTTP client puts before an error.
func bare(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

func (c *Client) failure(status string, body []byte) error {
	if strings.Contains(string(body), "HTTP request to an HTTPS server") {
		return mongo.WithHint(fmt.Errorf("the sync at %s listens with TLS", c.address), "write https:// before the address")
	}
	var f Failure
	if json.Unmarshal(body, &f) != nil || f.Error == "" {
		f.Error = status + " " + string(bytes.TrimSpace(body[:min(len(body), 200)]))
	}
	return mongo.WithHint(fmt.Errorf("the sync at %s: %w", c.address, &job.Refusal{Code: f.Code, Text: f.Error}), f.Hint)
}
