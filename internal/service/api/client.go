package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/operate"
)

// answerTime is more than the service takes.
const answerTime = 30 * time.Second

// Client talks to the API of a service, or of a sync. It is safe for concurrent use.
type Client struct {
	address, token string
	tls            *tls.Config
	http           *http.Client
}

// NewClient returns a client for the API at address (see server.Endpoint).
func NewClient(address, token string) *Client {
	at, c, t := server.Endpoint(address)
	c.Timeout = answerTime
	return &Client{address: at, token: token, tls: t, http: c}
}

// NewRecordClient returns a client for the sync of a record.
func NewRecordClient(rec server.Record) *Client {
	at, c := rec.Endpoint()
	c.Timeout = answerTime
	return &Client{address: at, token: rec.Token, http: c}
}

// TrustAuthorities makes the client trust the authorities of a file, not the system's; "" changes nothing.
func (c *Client) TrustAuthorities(file string) error { return server.TrustAuthorities(c.tls, file) }

func (c *Client) Close() { c.http.CloseIdleConnections() }

// Refused is a refusal of the service.
type Refused struct {
	Failure
	Status int
}

func (r *Refused) Error() string { return strings.Join(r.Lines(), "\n") }

// Lines returns the text and the problems of a definition.
func (r *Refused) Lines() []string {
	lines := []string{r.Failure.Error}
	for _, p := range r.Problems {
		lines = append(lines, "  "+p.String())
	}
	return lines
}

// Create makes a job; made is false if it exists.
func (c *Client) Create(ctx context.Context, n NewJob) (j Job, made bool, err error) {
	code, err := c.call(ctx, http.MethodPost, PathJobs, n, &j)
	return j, code == http.StatusCreated, err
}

// Jobs returns the jobs by name, filtered by state and search unless they are "".
func (c *Client) Jobs(ctx context.Context, state, search string) ([]Summary, error) {
	all := []Summary{}
	q := query("limit", strconv.Itoa(maxPage), "state", state, "q", search)
	for {
		page, err := Ask[Jobs](ctx, c, http.MethodGet, PathJobs+"?"+q.Encode(), nil)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Jobs...)
		if page.Next == "" {
			return all, nil
		}
		if page.Next <= q.Get("cursor") {
			return nil, fmt.Errorf("the service at %s gives the same page again", c.address)
		}
		q.Set("cursor", page.Next)
	}
}

func (c *Client) Job(ctx context.Context, name string) (Job, error) {
	return Ask[Job](ctx, c, http.MethodGet, At(PathJob, name), nil)
}

// Finalize cuts a job over. A service replies at once, a sync at the end. The job goes on when ctx ends.
func (c *Client) Finalize(ctx context.Context, name string, whenCaughtUp bool) (Job, error) {
	return Ask[Job](ctx, c.endless(), http.MethodPost, At(PathFinalize, name), Finalize{whenCaughtUp})
}

func (c *Client) endless() *Client {
	long, h := *c, *c.http
	h.Timeout = 0
	long.http = &h
	return &long
}

// At fills a path with the name of a job or a worker, and the id of a verification.
func At(path string, names ...string) string {
	for i, name := range names {
		path = strings.Replace(path, []string{"{name}", "{id}"}[i], url.PathEscape(name), 1)
	}
	return path
}

// Ask sends a request for what has no method of Client. Its reply is a T.
func Ask[T any](ctx context.Context, c *Client, method, path string, what any) (reply T, err error) {
	_, err = c.call(ctx, method, path, what, &reply)
	return reply, err
}

// query takes names and values, and leaves out empty ones.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func (c *Client) call(ctx context.Context, method, path string, what, into any) (int, error) {
	res, err := server.Exchange(ctx, c.http,
		server.Request{Method: method, URL: c.address + path, Token: c.token, What: what})
	if err != nil {
		return 0, c.unanswered(err)
	}
	if res.Code >= http.StatusMultipleChoices {
		return res.Code, c.refused(res)
	}
	if err := json.Unmarshal(res.Body, into); err != nil {
		return 0, mongo.WithHint(fmt.Errorf("the reply from %s is not one of millrace: %w", c.address, err),
			"check the address")
	}
	return res.Code, nil
}

func (c *Client) unanswered(err error) error {
	return mongo.WithHint(fmt.Errorf("request to %s: %w", c.address, err),
		cmp.Or(server.TLSHint(err, "the other side"),
			"check that millrace serve runs, or the sync, and that the address is the one that it printed"))
}

func (c *Client) refused(res server.Reply) error {
	if strings.Contains(string(res.Body), "HTTP request to an HTTPS server") {
		return mongo.WithHint(fmt.Errorf("%s listens with TLS", c.address), "write https:// before the address")
	}
	r := &Refused{Status: res.Code}
	if json.Unmarshal(res.Body, &r.Failure) != nil || r.Failure.Error == "" {
		return mongo.WithHint(fmt.Errorf("%s replies %s", c.address, res.Status),
			"check the address: another program may listen there")
	}
	hint := r.Hint
	switch r.Code {
	case CodeNoToken:
		hint = "set MILLRACE_TOKEN to a token of the service, such as that in the file token of its --data-dir, or to that " +
			"of the sync; for a sync of this machine and user that is not needed"
	case "":
		hint = "the process is of an older version: use the millrace command of that version"
	}
	return mongo.WithHint(r, hint)
}

// IsRefusal reports whether the service refused a request, changed nothing, and will refuse it again.
func IsRefusal(err error) bool {
	r, ok := errors.AsType[*Refused](err)
	return ok && r.Status < http.StatusInternalServerError && r.Code != CodeTooMany && r.Code != operate.Failed
}
