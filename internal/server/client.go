package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// maxReply bounds what a client takes as a reply: the status of a job with a
// hundred thousand collections fits.
const maxReply = 64 << 20

// Client talks to the control API of a running sync. It is safe for
// concurrent use.
type Client struct {
	address, token string
	http           *http.Client
}

// NewClient returns a client for the API at address. token may be empty where
// none is asked for.
func NewClient(address, token string) *Client {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     30 * time.Second,
	}
	return &Client{address: address, token: token, http: &http.Client{Transport: transport}}
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
	var sent io.Reader
	if what != nil {
		text, err := json.Marshal(what)
		if err != nil {
			return fmt.Errorf("control request to %s: %w", c.address, err)
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.address+path, sent)
	if err != nil {
		return fmt.Errorf("control request to %s: %w", c.address, err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return mongo.WithHint(fmt.Errorf("control request to %s: %w", c.address, bare(err)),
			"check that the sync still runs and that the address is the one it printed")
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return fmt.Errorf("control reply from %s: %w", c.address, err)
	}
	if res.StatusCode != http.StatusOK {
		return c.failure(res.Status, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return mongo.WithHint(fmt.Errorf("control reply from %s is not one of millrace: %w", c.address, err), "check the address")
	}
	return nil
}

// bare drops the method and URL that the HTTP client puts before an error.
func bare(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

func (c *Client) failure(status string, body []byte) error {
	var f Failure
	if json.Unmarshal(body, &f) != nil || f.Error == "" {
		f.Error = status + " " + string(bytes.TrimSpace(body[:min(len(body), 200)]))
	}
	return mongo.WithHint(fmt.Errorf("the sync at %s: %w", c.address, &job.Refusal{Code: f.Code, Text: f.Error}), f.Hint)
}
