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

const (
	PathVerifications  = PathJob + "/verifications"
	PathVerification   = PathVerifications + "/{id}"
	PathVerifySchedule = PathJob + "/verify-schedule"
	PathRepair         = PathVerification + "/repair"
)

// NewVerification is the body that requests a verification.
type NewVerification struct {
	// ID makes the request repeatable; "" is generated.
	ID string `json:"id,omitempty"`
	service.VerifyOptions
}

// NewRepair is the body that requests a repair.
type NewRepair struct {
	// ID is as in NewVerification.
	ID string `json:"id,omitempty"`
	operate.RepairWhat
}

// Verification is a verification of a job, with its findings once it has a result.
type Verification struct {
	ID         string                 `json:"id"`
	State      service.VerifyState    `json:"state"`
	Options    service.VerifyOptions  `json:"options"`
	Scheduled  bool                   `json:"scheduled"`
	CreatedAt  time.Time              `json:"createdAt"`
	CreatedBy  string                 `json:"createdBy"`
	CanceledBy string                 `json:"canceledBy"`
	Worker     string                 `json:"worker"`
	Attempt    int                    `json:"attempt"`
	StartedAt  *time.Time             `json:"startedAt"`
	EndedAt    *time.Time             `json:"endedAt"`
	Progress   service.VerifyProgress `json:"progress"`
	// Helpers are other workers that read parts, or have done so.
	Helpers []service.VerifyHelper `json:"helpers,omitempty"`
	// Differences counts documents, SchemaDifferences collections, options, indexes and views.
	Differences       int64  `json:"differences"`
	SchemaDifferences int64  `json:"schemaDifferences"`
	Waits             string `json:"waits"`
	Error             string `json:"error"`
	Hint              string `json:"hint"`

	Repair *service.Repair `json:"repair,omitempty"`

	Findings *service.Findings `json:"findings,omitempty"`
}

// Verifications are those of a job, the newest first. Schedule is nil for none.
type Verifications struct {
	Verifications []Verification          `json:"verifications"`
	Schedule      *service.VerifySchedule `json:"schedule"`
}

func verificationOf(v *service.Verification) Verification {
	w := &v.Request
	out := Verification{ID: w.ID, State: v.State(), Options: w.Options, Scheduled: w.Scheduled, CreatedAt: w.CreatedAt,
		CreatedBy: w.CreatedBy, CanceledBy: w.CanceledBy,
		Repair: v.Repair()}
	if r := v.Report; r != nil {
		out.Worker, out.Attempt, out.StartedAt, out.EndedAt, out.Progress = r.Worker, r.Attempt, &r.StartedAt, r.EndedAt,
			r.Progress
		out.Helpers = r.Helpers
		out.Differences, out.SchemaDifferences, out.Waits, out.Error, out.Hint = r.Progress.Differences, r.Schema, r.Waits,
			r.Error, r.Hint
	}
	return out
}

func (d desk) verify(c *call, n NewVerification) (any, error) {
	return c.toVerify(d.Verify(c.Context(), c.caller, c.PathValue("name"), n.ID, n.VerifyOptions))
}

func (d desk) repair(c *call, n NewRepair) (any, error) {
	return c.toVerify(d.Repair(c.Context(), c.caller, c.PathValue("name"), n.ID, n.RepairWhat.In(c.PathValue("id"))))
}

// toVerify replies with 201 if the verification was made.
func (c *call) toVerify(v *service.Verification, made bool, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if made {
		c.code = http.StatusCreated
		c.w.Header().Set("Location", At(PathVerification, v.Request.Job, v.Request.ID))
	}
	return verificationOf(v), nil
}

func (d desk) verifications(c *call) (any, error) {
	name := c.PathValue("name")
	list, err := d.Verifications(c.caller, name)
	if err != nil {
		return nil, err
	}
	j, err := d.Job(c.caller, name)
	if err != nil {
		return nil, err
	}
	out := Verifications{Verifications: make([]Verification, 0, len(list)), Schedule: j.Definition.Desired.Verify}
	for i := range list {
		out.Verifications = append(out.Verifications, verificationOf(&list[i]))
	}
	return out, nil
}

func (d desk) verification(c *call) (any, error) {
	one, found, err := d.Verification(c.Context(), c.caller, c.PathValue("name"), c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	out := verificationOf(one)
	out.Findings = found
	return out, nil
}

func (d desk) cancel(c *call) (any, error) {
	one, err := d.CancelVerification(c.Context(), c.caller, c.PathValue("name"), c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return verificationOf(one), nil
}

func (d desk) schedule(c *call, s service.VerifySchedule) (any, error) {
	return d.scheduled(&s)(c)
}

func (d desk) scheduled(s *service.VerifySchedule) action {
	return change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
		return d.ScheduleVerifications(ctx, who, name, s)
	})
}

// Verify requests a verification; made is false if the id exists.
func (c *Client) Verify(ctx context.Context, name string, n NewVerification) (v Verification, made bool, err error) {
	code, err := c.call(ctx, http.MethodPost, At(PathVerifications, name), n, &v)
	return v, code == http.StatusCreated, err
}

// Repair requests a repair of documents that a verification found; made is false for a repeated request.
func (c *Client) Repair(ctx context.Context, name, of string, n NewRepair) (v Verification, made bool, err error) {
	code, err := c.call(ctx, http.MethodPost, At(PathRepair, name, of), n, &v)
	return v, code == http.StatusCreated, err
}

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
