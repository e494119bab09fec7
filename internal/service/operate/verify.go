package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"reflect"
	"strings"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/transform"
)

// Verify requests a verification of a job that follows. For an equal request with the id made is false. An empty
// id is generated.
func (d *Desk) Verify(ctx context.Context, c *service.Caller, name, id string,
	o service.VerifyOptions) (v *service.Verification, made bool, err error) {
	q := request{caller: c, needed: service.Operator, what: "verify", job: name}
	if id, err = d.askedAs(ctx, q, id); err != nil {
		return nil, false, err
	}
	if err := checkVerify(&o); err != nil {
		return nil, false, refuse(Invalid, "", "%s", err)
	}
	j := d.View.Job(name)
	if j == nil {
		return nil, false, missing(name)
	}
	if was := d.View.Verification(name, id); was != nil {
		return d.again(ctx, q, was, o)
	}
	if err := verifiable(d.View, j); err != nil {
		return nil, false, d.refused(ctx, q, err)
	}
	w := service.VerifyWish{ID: id, Job: name, UID: j.Definition.UID, Options: o, CreatedAt: d.Now().UTC(),
		CreatedBy: c.Name}
	switch err := d.Hub.Verifications.Create(ctx, &w); {
	case errors.Is(err, hub.ErrExists): // a concurrent request, or an earlier job's
		was, err := d.Hub.Verifications.Requested(ctx, name, id)
		if err != nil {
			return nil, false, err
		}
		if was.UID != w.UID {
			return nil, false,
				d.refused(ctx, q, refuse(Exists, "choose another id", "an earlier job %q has a verification %q", name, id))
		}
		return d.again(ctx, q, &service.Verification{Wish: *was}, o)
	case err != nil:
		return nil, false, err
	}
	return d.requested(ctx, c, w, "verify "+id)
}

func (d *Desk) requested(ctx context.Context, c *service.Caller, w service.VerifyWish,
	what string) (*service.Verification, bool, error) {
	err := d.note(ctx, c, service.Change{What: what, Job: w.Job})
	await(ctx, d.View, func() bool { return d.View.Verification(w.Job, w.ID) != nil })
	return &service.Verification{Wish: w}, true, err
}

func (d *Desk) again(ctx context.Context, q request, was *service.Verification,
	o service.VerifyOptions) (*service.Verification, bool, error) {
	if was.Wish.Repair != nil || !reflect.DeepEqual(was.Wish.Options, o) {
		return nil, false, d.refused(ctx, q, taken(was.Wish.ID))
	}
	return was, false, nil
}

// askedAs checks the role and the id. It generates an empty id.
func (d *Desk) askedAs(ctx context.Context, q request, id string) (string, error) {
	if err := d.enter(ctx, q); err != nil {
		return "", err
	}
	id = cmp.Or(id, rand.Text())
	if err := service.CheckVerifyID(id); err != nil {
		return "", refuse(Invalid, "choose another id, or leave it out", "%s", err)
	}
	return id, nil
}

func taken(id string) error {
	return refuse(Exists, "choose another id", "there is another verification %q already", id)
}

func checkVerify(o *service.VerifyOptions) error {
	if len(o.Include) == 0 {
		o.Include = nil
	}
	if err := o.Check(); err != nil {
		return err
	}
	_, err := transform.New(transform.Config{Include: o.Include})
	return err
}

// verifiable refuses jobs whose target is not consistent yet, and those with an open verification.
func verifiable(view *hub.View, j *service.Job) error {
	name := j.Definition.Name
	for _, v := range view.Verifications(name) {
		if v.Open() {
			return refuse(Conflict, "wait for it, or cancel it", "verification %q of job %q is %s already", v.Wish.ID, name,
				v.State())
		}
	}
	if s := j.Status(); j.State() == service.Finished || s != nil &&
		(s.Phase == job.PhaseFollowing || s.Phase == job.PhaseFinalizing || s.Phase == job.PhaseFinalized) {
		return nil
	}
	return refuse(Conflict, "wait until it follows",
		"job %q has not brought its target to a state of the source yet: everything would differ", name)
}

// Verifications returns those of a job, the newest first.
func (d *Desk) Verifications(c *service.Caller, name string) ([]service.Verification, error) {
	if _, err := d.Job(c, name); err != nil {
		return nil, err
	}
	return redacted(c, d.View.Verifications(name), service.Verification.Redact), nil
}

// Verification returns a verification with its findings, nil before its end, to viewers without values.
func (d *Desk) Verification(ctx context.Context, c *service.Caller, name, id string) (*service.Verification,
	*service.Findings, error) {
	if _, err := d.Job(c, name); err != nil {
		return nil, nil, err
	}
	v := d.View.Verification(name, id)
	if v == nil {
		return nil, nil, missingVerification(name, id)
	}
	if !c.Role.May(service.Operator) {
		*v = v.Redact()
	}
	if s := v.State(); s != service.VerifySame && s != service.VerifyDifferent {
		return v, nil, nil
	}
	f, err := d.Hub.Verifications.Findings(ctx, name, id)
	if errors.Is(err, hub.ErrNotFound) {
		return v, nil, nil
	}
	if err == nil && !c.Role.May(service.Operator) {
		f.WithValues = false
		for i := range f.Differences {
			one := &f.Differences[i]
			one.Source, one.Target, one.Cut = "", "", false
		}
		for i := range f.Repaired {
			f.Repaired[i].Why = ""
		}
	}
	return v, f, err
}

func missingVerification(name, id string) error {
	return refuse(NotFound, "see the list of verifications", "job %q has no verification %q", name,
		strings.ToValidUTF8(id[:min(len(id), 64)], ""))
}

// CancelVerification cancels a verification that has not ended.
func (d *Desk) CancelVerification(ctx context.Context, c *service.Caller, name, id string) (*service.Verification,
	error) {
	q := request{caller: c, needed: service.Operator, what: "cancel verification", job: name}
	if err := d.enter(ctx, q); err != nil {
		return nil, err
	}
	if d.View.Job(name) == nil {
		return nil, missing(name)
	}
	v := d.View.Verification(name, id)
	switch {
	case v == nil:
		return nil, missingVerification(name, id)
	case v.State() == service.VerifyCanceled:
		return v, nil
	case !v.Open():
		return nil, d.refused(ctx, q, refuse(Conflict, "", "verification %q has ended: %s", id, v.State()))
	}
	if err := d.changing(ctx, q); err != nil {
		return nil, err
	}
	w, err := d.Hub.Verifications.Cancel(ctx, name, id, c.Name)
	if errors.Is(err, hub.ErrNotFound) {
		return nil, missingVerification(name, id)
	}
	if err != nil {
		return nil, err
	}
	err = d.note(ctx, c, service.Change{What: q.what + " " + id, Job: name})
	await(ctx, d.View, func() bool {
		now := d.View.Verification(name, id)
		return now == nil || now.Wish.CanceledBy != ""
	})
	v.Wish = *w
	return v, err
}

// ScheduleVerifications sets the schedule of a job's verifications; nil removes it.
func (d *Desk) ScheduleVerifications(ctx context.Context, c *service.Caller, name string,
	s *service.VerifySchedule) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "verify schedule", job: name},
		func(_ *service.Job, w *service.Wish) error {
			if s != nil {
				if err := s.Check(); err != nil {
					return refuse(Invalid, "", "%s", err)
				}
			}
			w.Verify = s
			return nil
		})
}
