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
	// lettersTime bounds the answer of a worker: more than it tries, and less than replyTime.
	lettersTime = 19 * time.Second
	// MediaLines is the type of an export.
	MediaLines = "application/x-ndjson"
)

// RetryLetters is the body of a request to try dead letters again; none is all of them.
type RetryLetters struct {
	ID string `json:"id"`
}

func ofJob(path, name string) string {
	return strings.Replace(path, "{name}", url.PathEscape(name), 1)
}

func (d desk) letters(c *call) (any, error) {
	return d.Letters(c.Context(), c.caller, c.PathValue("name"),
		service.LetterFilter{NS: c.q.Get("ns"), State: c.q.Get("state"), After: c.q.Get("cursor"), Limit: c.limit})
}

func (d desk) letter(c *call) (any, error) {
	return d.Letter(c.Context(), c.caller, c.PathValue("name"), c.q.Get("id"))
}

// exportLetters sends lines as they come. An error after the first breaks the connection.
func (d desk) exportLetters(c *call) (any, error) {
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // where it passes, the request is canceled
	_ = rc.SetWriteDeadline(time.Now().Add(2 * lettersTime))
	begun := false
	filter := service.LetterFilter{NS: c.q.Get("ns"), State: c.q.Get("state")}
	err := d.ExportLetters(c.Context(), c.caller, c.PathValue("name"), filter, func() io.Writer {
		begun = true
		c.w.Header().Set("Content-Type", MediaLines)
		return &slowWriter{c.w, rc}
	})
	if err != nil && begun {
		d.log.Warn("an export of dead letters is broken off", "job", c.PathValue("name"), "error", mongo.Brief(err))
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

func (j jobs) retryLetters(c *call, body RetryLetters) (any, error) {
	out, err := j.RetryLetters(c.Context(), c.caller, c.PathValue("name"), body.ID)
	if err != nil {
		return nil, err
	}
	if c.old {
		return j.show(c)
	}
	if !out.Done {
		c.code = http.StatusAccepted
	}
	return out, nil
}

func lettersQuery(f service.LetterFilter) string {
	q := query("ns", f.NS, "state", f.State, "cursor", f.After)
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return "?" + q.Encode()
}

// Letters are a page of a job's dead letters.
func (c *Client) Letters(ctx context.Context, name string, f service.LetterFilter) (service.Letters, error) {
	return ask[service.Letters](ctx, c, http.MethodGet, ofJob(PathLetters, name)+lettersQuery(f), nil)
}

// Letter is one with its document.
func (c *Client) Letter(ctx context.Context, name, id string) (service.WholeLetter, error) {
	return ask[service.WholeLetter](ctx, c, http.MethodGet, ofJob(PathLetter, name)+"?id="+url.QueryEscape(id), nil)
}

// RetryLetters has a job's open dead letters tried once more; id "" is all of them.
func (c *Client) RetryLetters(ctx context.Context, name, id string) (service.LettersRetried, error) {
	return ask[service.LettersRetried](ctx, c, http.MethodPost, ofJob(PathLettersRetry, name), RetryLetters{id})
}

// ExportLetters copies the export of a job's dead letters: canonical extended JSON, one a line.
func (c *Client) ExportLetters(ctx context.Context, name string, f service.LetterFilter, to io.Writer) error {
	res, err := server.Send(ctx, c.endless().http, server.Request{Method: http.MethodGet,
		URL: c.address + ofJob(PathLettersExport, name) + lettersQuery(f), Token: c.token})
	if err != nil {
		return c.unanswered(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
		return errors.Join(err, c.refused(server.Reply{Code: res.StatusCode, Status: res.Status, Body: raw}))
	}
	if _, err := io.Copy(to, res.Body); err != nil {
		return mongo.WithHint(fmt.Errorf("the export of dead letters has broken off: %w", err),
			"export again; the service's log may say why")
	}
	return nil
}
