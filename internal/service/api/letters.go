package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
)

// The paths of dead letters. Their ids have slashes, and stand in the query.
const (
	PathLetters       = PathJob + "/deadletters"
	PathLetter        = PathLetters + "/letter"
	PathLettersExport = PathLetters + "/export"
	PathLettersRetry  = PathLetters + "/retry"
)

const (
	// lettersTime is how long a worker may take to answer: more than it tries, and less
	// than replyTime.
	lettersTime = 19 * time.Second
	lettersPage = 100
	// MediaLines is the type of an export.
	MediaLines = "application/x-ndjson"
)

func (a *API) letterRoutes() []route {
	return []route{
		{http.MethodGet, PathLetters, service.Viewer, a.letters, 0},
		{http.MethodGet, PathLetter, service.Operator, a.letter, 0},
		{http.MethodGet, PathLettersExport, service.Operator, a.exportLetters, endless},
	}
}

// RetryLetters is the body of a request to try dead letters again; none is all of them.
type RetryLetters struct {
	ID string `json:"id"`
}

func ofJob(path, name string) string {
	return strings.Replace(path, "{name}", url.PathEscape(name), 1)
}

func (a *API) letters(c *call) (any, error) {
	q, err := c.query("ns", "state", "limit", "cursor")
	if err != nil {
		return nil, err
	}
	n := lettersPage
	if q.Has("limit") {
		if n, err = limit(q); err != nil {
			return nil, err
		}
	}
	return a.o.Desk.Letters(c.Context(), c.caller, c.PathValue("name"), service.LetterFilter{NS: q.Get("ns"), State: q.Get("state"), After: q.Get("cursor"), Limit: n})
}

func (a *API) letter(c *call) (any, error) {
	q, err := c.query("id")
	if err != nil {
		return nil, err
	}
	return a.o.Desk.Letter(c.Context(), c.caller, c.PathValue("name"), q.Get("id"))
}

// exportLetters sends lines as they come. Once it has begun, an error can be told by
// breaking off alone.
func (a *API) exportLetters(c *call) (any, error) {
	q, err := c.query("ns", "state")
	if err != nil {
		return nil, err
	}
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // where it passes, the request is canceled
	_ = rc.SetWriteDeadline(time.Now().Add(2 * lettersTime))
	begun := false
	err = a.o.Desk.ExportLetters(c.Context(), c.caller, c.PathValue("name"), service.LetterFilter{NS: q.Get("ns"), State: q.Get("state")}, func() io.Writer {
		begun = true
		c.w.Header().Set("Content-Type", MediaLines)
		return &slowWriter{c.w, rc}
	})
	if err != nil && begun {
		a.o.Log.Warn("an export of dead letters is broken off", "job", c.PathValue("name"), "error", mongo.Brief(err))
		panic(http.ErrAbortHandler)
	}
	return sent{}, err
}

// slowWriter gives each piece time of its own.
type slowWriter struct {
	io.Writer
	rc *http.ResponseController
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if err := w.rc.SetWriteDeadline(time.Now().Add(2 * lettersTime)); err != nil {
		return 0, err
	}
	n, err := w.Writer.Write(p)
	if err == nil {
		err = w.rc.Flush() // an export that breaks off has begun for the client, too
	}
	return n, err
}

func (a *API) retryLetters(c *call) (any, error) {
	var body RetryLetters
	if err := c.body(&body, true, `{"id": "…"}, or nothing for all`); err != nil {
		return nil, err
	}
	out, err := a.jobs.RetryLetters(c.Context(), c.caller, c.PathValue("name"), body.ID)
	if err != nil {
		return nil, err
	}
	if c.old {
		return a.show(c)
	}
	if !out.Done {
		c.code = http.StatusAccepted
	}
	return out, nil
}

func lettersQuery(f service.LetterFilter) string {
	q := url.Values{}
	for key, value := range map[string]string{"ns": f.NS, "state": f.State, "cursor": f.After} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return "?" + q.Encode()
}

// Letters are a page of a job's dead letters.
func (c *Client) Letters(ctx context.Context, name string, f service.LetterFilter) (l service.Letters, err error) {
	_, err = c.call(ctx, http.MethodGet, ofJob(PathLetters, name)+lettersQuery(f), nil, &l)
	return l, err
}

// Letter is one with its document.
func (c *Client) Letter(ctx context.Context, name, id string) (l service.WholeLetter, err error) {
	_, err = c.call(ctx, http.MethodGet, ofJob(PathLetter, name)+"?id="+url.QueryEscape(id), nil, &l)
	return l, err
}

// RetryLetters has a job's open dead letters tried once more; id "" is all of them.
func (c *Client) RetryLetters(ctx context.Context, name, id string) (r service.LettersRetried, err error) {
	_, err = c.call(ctx, http.MethodPost, ofJob(PathLettersRetry, name), RetryLetters{id}, &r)
	return r, err
}

// ExportLetters copies the export of a job's dead letters: canonical extended JSON, one
// a line.
func (c *Client) ExportLetters(ctx context.Context, name string, f service.LetterFilter, to io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address+ofJob(PathLettersExport, name)+lettersQuery(f), nil)
	if err != nil {
		return fmt.Errorf("export dead letters: %w", err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.endless().http.Do(req)
	if err != nil {
		return c.unanswered(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
		return errors.Join(err, c.refused(server.Reply{Code: res.StatusCode, Status: res.Status, Body: raw}))
	}
	if _, err := io.Copy(to, res.Body); err != nil {
		return mongo.WithHint(fmt.Errorf("the export of dead letters has broken off: %w", err), "export again; the service's log may say why")
	}
	return nil
}
