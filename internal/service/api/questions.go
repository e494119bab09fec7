package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// Ids have slashes, so they are in the query.
const (
	PathLetters       = PathJob + "/deadletters"
	PathLetter        = PathLetters + "/letter"
	PathLettersExport = PathLetters + "/export"
	PathLettersRetry  = PathLetters + "/retry"
)

const (
	// lettersTime is more than a worker takes, and less than replyTime.
	lettersTime = 19 * time.Second
	// MediaLines is the type of an export.
	MediaLines = "application/x-ndjson"
)

// RetryLetters selects the dead letter to retry; "" is all.
type RetryLetters struct {
	ID string `json:"id"`
}

func (d desk) letters(c *call) (any, error) {
	return d.Letters(c.Context(), c.caller, c.PathValue("name"),
		service.LetterFilter{NS: c.q.Get("ns"), State: c.q.Get("state"), After: c.q.Get("cursor"), Limit: c.page.Limit})
}

func (d desk) letter(c *call) (any, error) {
	return d.Letter(c.Context(), c.caller, c.PathValue("name"), c.q.Get("id"))
}

// exportLetters streams lines. An error after the first breaks the connection.
func (d desk) exportLetters(c *call) (any, error) {
	server.Extend(c.w, 2*lettersTime)
	begun := false
	filter := service.LetterFilter{NS: c.q.Get("ns"), State: c.q.Get("state")}
	err := d.ExportLetters(c.Context(), c.caller, c.PathValue("name"), filter, func() io.Writer {
		begun = true
		c.w.Header().Set("Content-Type", MediaLines)
		return server.SlowWriter(c.w, 2*lettersTime)
	})
	if err != nil && begun {
		d.log.Warn("an export of dead letters is broken off", "job", c.PathValue("name"), "error", mongo.Brief(err))
		panic(http.ErrAbortHandler)
	}
	return sent{}, err
}

func (j jobs) retryLetters(c *call, body RetryLetters) (any, error) {
	out, err := j.RetryLetters(c.Context(), c.caller, c.PathValue("name"), body.ID)
	if err != nil {
		return nil, err
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

// Letters returns a page of a job's dead letters.
func (c *Client) Letters(ctx context.Context, name string, f service.LetterFilter) (service.Letters, error) {
	return Ask[service.Letters](ctx, c, http.MethodGet, At(PathLetters, name)+lettersQuery(f), nil)
}

// ExportLetters writes a job's dead letters to to: canonical extended JSON, one per line.
func (c *Client) ExportLetters(ctx context.Context, name string, f service.LetterFilter, to io.Writer) error {
	res, err := server.Send(ctx, c.endless().http, server.Request{Method: http.MethodGet,
		URL: c.address + At(PathLettersExport, name) + lettersQuery(f), Token: c.token})
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

// The paths of drafts, which are jobs that do not exist yet.
const (
	PathDrafts        = Prefix + "/drafts"
	PathInspectDraft  = PathDrafts + "/inspect"
	PathPrecheckDraft = PathDrafts + "/precheck"
	PathSampleDraft   = PathDrafts + "/sample"
)

const (
	// draftTime is more than a worker takes.
	draftTime   = time.Minute
	draftPage   = 200
	draftSample = 5
)

// InspectDraft asks for collections of a draft's source.
type InspectDraft struct {
	Draft
	After  string `json:"after,omitempty"`
	Search string `json:"search,omitempty"`
	// Limit nil is draftPage.
	Limit *int `json:"limit,omitempty"`
}

// SampleDraft asks for documents before and after the rules.
type SampleDraft struct {
	Draft
	NS        string `json:"ns"`
	Documents int    `json:"documents,omitempty"`
}

const draftForm = `{"name": "orders", "settings": {"source": "env:SOURCE", "target": "env:TARGET"}}`

type drafted interface {
	definition() (service.Definition, error)
}

// drafting reads a draft, and extends the deadlines.
func drafting[T drafted](do func(*call, service.Definition, T) (any, error), form string) action {
	return taking(func(c *call, body T) (any, error) {
		if _, err := c.query(); err != nil {
			return nil, err
		}
		of, err := body.definition()
		if err != nil {
			return nil, err
		}
		server.Extend(c.w, draftTime+replyTime) // a worker has draftTime to reply
		return do(c, of, body)
	}, false, form)
}

func (d desk) inspect(c *call, of service.Definition, body InspectDraft) (any, error) {
	n := *cmp.Or(body.Limit, new(draftPage))
	if n < 0 || n > maxPage {
		return nil, invalid("", "limit is %d: want 0 to %d", n, maxPage)
	}
	return d.InspectDraft(c.Context(), c.caller, of,
		service.InspectAsk{After: body.After, Search: body.Search, Limit: n})
}

func (d desk) precheck(c *call, of service.Definition, _ Draft) (any, error) {
	return d.PrecheckDraft(c.Context(), c.caller, of)
}

func (d desk) sample(c *call, of service.Definition, body SampleDraft) (any, error) {
	if body.Documents < 0 || body.Documents > maxPage {
		return nil, invalid("", "documents is %d: want 1 to %d", body.Documents, maxPage)
	}
	return d.SampleDraft(c.Context(), c.caller, of,
		service.SampleAsk{NS: body.NS, Docs: cmp.Or(body.Documents, draftSample)})
}

// Reversal is a job that leads another one back. Job is null of a dry run.
type Reversal struct {
	operate.Reversal
	Job *Job `json:"job"`
}

func (d desk) reverse(c *call, ask operate.Reverse) (any, error) {
	if _, err := c.query(); err != nil {
		return nil, err
	}
	server.Extend(c.w, draftTime+replyTime)
	r, made, err := d.Reverse(c.Context(), c.caller, c.PathValue("name"), ask)
	if err != nil {
		return nil, err
	}
	out := Reversal{Reversal: *r}
	if r.Job != nil {
		out.Job = new(JobOf(r.Job))
	}
	if made {
		c.code = http.StatusCreated
		c.w.Header().Set("Location", At(PathJob, r.Name))
	}
	return out, nil
}
