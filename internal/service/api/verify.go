package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// The paths of verifications.
const (
	PathVerifications  = PathJob + "/verifications"
	PathVerification   = PathVerifications + "/{id}"
	PathVerifySchedule = PathJob + "/verify-schedule"
)

func (a *API) verifyRoutes() []route {
	return []route{
		{http.MethodPost, PathVerifications, service.Operator, a.verify, 0},
		{http.MethodGet, PathVerifications, service.Viewer, a.verifications, 0},
		{http.MethodGet, PathVerification, service.Viewer, a.verification, 0},
		{http.MethodDelete, PathVerification, service.Operator, a.cancelVerification, 0},
		{http.MethodPost, PathRepair, service.Operator, a.repair, 0},
		{http.MethodPut, PathVerifySchedule, service.Operator, a.verifySchedule, 0},
		{http.MethodDelete, PathVerifySchedule, service.Operator, a.change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
			return a.o.Desk.ScheduleVerifications(ctx, who, name, nil)
		}), 0},
	}
}

// NewVerification is the body that asks for a verification.
type NewVerification struct {
	// ID makes that the same request once more is the same verification; "" is one that
	// the service makes up.
	ID string `json:"id,omitempty"`
	service.VerifyOptions
}

// Verification is one of a job's. Findings are there when it has ended with a result.
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
	// Helpers are other workers that read parts, or have.
	Helpers []service.VerifyHelper `json:"helpers,omitempty"`
	// Differences are documents, SchemaDifferences those of collections, options, indexes
	// and views.
	Differences       int64  `json:"differences"`
	SchemaDifferences int64  `json:"schemaDifferences"`
	Waits             string `json:"waits"`
	Error             string `json:"error"`
	Hint              string `json:"hint"`

	Repair *service.Repair `json:"repair,omitempty"`

	Findings *service.Findings `json:"findings,omitempty"`
}

// Verifications are those of a job, the newest first, and their schedule, nil for none.
type Verifications struct {
	Verifications []Verification          `json:"verifications"`
	Schedule      *service.VerifySchedule `json:"schedule"`
}

func verificationOf(v *service.Verification) Verification {
	w := &v.Wish
	out := Verification{ID: w.ID, State: v.State(), Options: w.Options, Scheduled: w.Scheduled, CreatedAt: w.CreatedAt, CreatedBy: w.CreatedBy, CanceledBy: w.CanceledBy,
		Repair: v.Repair()}
	if r := v.Report; r != nil {
		out.Worker, out.Attempt, out.StartedAt, out.EndedAt, out.Progress = r.Worker, r.Attempt, &r.StartedAt, r.EndedAt, r.Progress
		out.Helpers = r.Helpers
		out.Differences, out.SchemaDifferences, out.Waits, out.Error, out.Hint = r.Progress.Differences, r.Schema, r.Waits, r.Error, r.Hint
	}
	return out
}

func (a *API) verify(c *call) (any, error) {
	var n NewVerification
	if err := c.body(&n, true, `{"id": "first", "samplePercent": 5, "include": ["shop.*"]}, or nothing`); err != nil {
		return nil, err
	}
	v, made, err := a.o.Desk.Verify(c.Context(), c.caller, c.PathValue("name"), n.ID, n.VerifyOptions)
	if err != nil {
		return nil, err
	}
	return c.toVerify(v, made), nil
}

// toVerify replies to who has asked for a verification; made is false where it was there.
func (c *call) toVerify(v *service.Verification, made bool) Verification {
	if made {
		c.code = http.StatusCreated
		c.w.Header().Set("Location", PathJobs+"/"+url.PathEscape(v.Wish.Job)+"/verifications/"+url.PathEscape(v.Wish.ID))
	}
	return verificationOf(v)
}

func (a *API) verifications(c *call) (any, error) {
	name := c.PathValue("name")
	list, err := a.o.Desk.Verifications(c.caller, name)
	if err != nil {
		return nil, err
	}
	j, err := a.o.Desk.Job(c.caller, name)
	if err != nil {
		return nil, err
	}
	out := Verifications{Verifications: make([]Verification, 0, len(list)), Schedule: j.Definition.Wish.Verify}
	for i := range list {
		out.Verifications = append(out.Verifications, verificationOf(&list[i]))
	}
	return out, nil
}

func (a *API) verification(c *call) (any, error) {
	v, found, err := a.o.Desk.Verification(c.Context(), c.caller, c.PathValue("name"), c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	out := verificationOf(v)
	out.Findings = found
	return out, nil
}

func (a *API) cancelVerification(c *call) (any, error) {
	v, err := a.o.Desk.CancelVerification(c.Context(), c.caller, c.PathValue("name"), c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return verificationOf(v), nil
}

func (a *API) verifySchedule(c *call) (any, error) {
	var s service.VerifySchedule
	if err := c.body(&s, false, `{"everyHours": 24, "samplePercent": 5, "bytesPerSecond": 10000000}`); err != nil {
		return nil, err
	}
	return a.change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
		return a.o.Desk.ScheduleVerifications(ctx, who, name, &s)
	})(c)
}

// Verify asks for a verification of a job; made is false where one of its id is there
// already.
func (c *Client) Verify(ctx context.Context, name string, n NewVerification) (v Verification, made bool, err error) {
	code, err := c.call(ctx, http.MethodPost, ofJob(PathVerifications, name), n, &v)
	return v, code == http.StatusCreated, err
}

// Verifications are those of a job, the newest first.
func (c *Client) Verifications(ctx context.Context, name string) (v Verifications, err error) {
	_, err = c.call(ctx, http.MethodGet, ofJob(PathVerifications, name), nil, &v)
	return v, err
}

// Verification is one of a job's with what it has found.
func (c *Client) Verification(ctx context.Context, name, id string) (v Verification, err error) {
	_, err = c.call(ctx, http.MethodGet, ofJob(PathVerifications, name)+"/"+url.PathEscape(id), nil, &v)
	return v, err
}

// CancelVerification calls one off.
func (c *Client) CancelVerification(ctx context.Context, name, id string) (v Verification, err error) {
	_, err = c.call(ctx, http.MethodDelete, ofJob(PathVerifications, name)+"/"+url.PathEscape(id), nil, &v)
	return v, err
}

// ScheduleVerifications has a job be verified again and again; nil has it not.
func (c *Client) ScheduleVerifications(ctx context.Context, name string, s *service.VerifySchedule) (Job, error) {
	if s == nil {
		return c.job(ctx, http.MethodDelete, PathVerifySchedule, name, nil)
	}
	return c.job(ctx, http.MethodPut, PathVerifySchedule, name, s)
}
