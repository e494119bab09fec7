package api

import (
	"context"
	"net/http"
	"time"

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
