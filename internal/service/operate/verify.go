package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
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
	if err := d.changing(ctx, q); err != nil {
		return nil, false, err
	}
	w := service.VerifyRequest{ID: id, Job: name, UID: j.Definition.UID, Options: o, CreatedAt: d.Now().UTC(),
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
		return d.again(ctx, q, &service.Verification{Request: *was}, o)
	case err != nil:
		return nil, false, err
	}
	return d.requested(ctx, c, w, "verify "+id)
}

func (d *Desk) requested(ctx context.Context, c *service.Caller, w service.VerifyRequest,
	what string) (*service.Verification, bool, error) {
	err := d.note(ctx, c, service.Change{What: what, Job: w.Job})
	await(ctx, d.View, func() bool { return d.View.Verification(w.Job, w.ID) != nil })
	return &service.Verification{Request: w}, true, err
}

func (d *Desk) again(ctx context.Context, q request, was *service.Verification,
	o service.VerifyOptions) (*service.Verification, bool, error) {
	if was.Request.Repair != nil || !reflect.DeepEqual(was.Request.Options, o) {
		return nil, false, d.refused(ctx, q, taken(was.Request.ID))
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
			return refuse(Conflict, "wait for it, or cancel it", "verification %q of job %q is %s already", v.Request.ID, name,
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
		return now == nil || now.Request.CanceledBy != ""
	})
	v.Request = *w
	return v, err
}

// ScheduleVerifications sets the schedule of a job's verifications; nil removes it.
func (d *Desk) ScheduleVerifications(ctx context.Context, c *service.Caller, name string,
	s *service.VerifySchedule) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "verify schedule", job: name},
		func(_ *service.Job, w *service.Desired) error {
			if s != nil {
				if err := s.Check(); err != nil {
					return refuse(Invalid, "", "%s", err)
				}
			}
			w.Verify = s
			return nil
		})
}

// RepairWhat chooses documents of those that a verification has found different.
type RepairWhat struct {
	// Of is the verification.
	Of string `json:"-"`
	// All are those that are listed and can be named; else Documents are.
	All       bool             `json:"all,omitempty"`
	Documents []RepairDocument `json:"documents,omitempty"`
}

// In returns the choice for a verification.
func (w RepairWhat) In(of string) RepairWhat {
	w.Of = of
	return w
}

// RepairDocument has the source collection and the key of a document in the findings.
type RepairDocument struct {
	NS  string `json:"ns"`
	Key string `json:"key"`
}

// Wants reports whether a document is chosen and has a key.
func (w *RepairWhat) Wants(d *service.DocumentDifference) bool {
	return d.Key != "" && (w.All || slices.Contains(w.Documents, RepairDocument{d.NS, d.Key}))
}

// Repair has a verification copy documents again that another one found different, and compare them. An empty id
// is generated. For an equal request made is false.
func (d *Desk) Repair(ctx context.Context, c *service.Caller, name, id string,
	what RepairWhat) (v *service.Verification, made bool, err error) {
	q := request{caller: c, needed: service.Operator, what: "repair", job: name}
	if id, err = d.askedAs(ctx, q, id); err != nil {
		return nil, false, err
	}
	found, seen, err := d.Verification(ctx, c, name, what.Of)
	if err != nil {
		return nil, false, err
	}
	docs, err := chosen(found, seen, what)
	if err != nil {
		return nil, false, d.refused(ctx, q, err)
	}
	want := service.RepairRequest{Of: what.Of, Documents: len(docs)}
	if was := d.View.Verification(name, id); was != nil {
		return d.sameRepair(ctx, q, was, want, docs)
	}
	j := d.View.Job(name)
	if j == nil {
		return nil, false, missing(name)
	}
	if err := repairable(d.View, j); err != nil {
		return nil, false, d.refused(ctx, q, err)
	}
	if err := d.changing(ctx, q); err != nil {
		return nil, false, err
	}
	w := service.VerifyRequest{ID: id, Job: name, UID: j.Definition.UID, Repair: &want, CreatedAt: d.Now().UTC(),
		CreatedBy: c.Name,
		Options:   service.VerifyOptions{NoValues: found.Request.Options.NoValues}}
	err = d.Hub.Verifications.PutRepair(ctx, name, id, docs)
	if err == nil {
		err = d.Hub.Verifications.Create(ctx, &w)
	}
	if errors.Is(err, hub.ErrExists) {
		return nil, false, d.refused(ctx, q, taken(id))
	}
	if err != nil {
		return nil, false, err
	}
	return d.requested(ctx, c, w, fmt.Sprintf("repair %d documents of verification %s as %s", len(docs), what.Of, id))
}

func (d *Desk) sameRepair(ctx context.Context, q request, was *service.Verification, want service.RepairRequest,
	docs []service.RepairDocument) (*service.Verification, bool, error) {
	if r := was.Request.Repair; r != nil && *r == want {
		known, err := d.Hub.Verifications.Repair(ctx, was.Request.Job, was.Request.ID)
		if err != nil && !errors.Is(err, hub.ErrNotFound) {
			return nil, false, err
		}
		if slices.Equal(known, docs) {
			return was, false, nil
		}
	}
	return nil, false, d.refused(ctx, q, taken(was.Request.ID))
}

func chosen(of *service.Verification, f *service.Findings, what RepairWhat) ([]service.RepairDocument, error) {
	switch {
	case of.Open():
		return nil, refuse(Conflict, "wait for its end", "verification %q has not ended", of.Request.ID)
	case f == nil || len(f.Differences) == 0:
		return nil, refuse(Conflict, "verify the job", "verification %q has no documents that differ", of.Request.ID)
	case what.All == (len(what.Documents) > 0):
		return nil, refuse(Invalid, "ask for all of them, or name some", "no documents are chosen")
	case len(what.Documents) > service.MaxRepair:
		return nil, refuse(Invalid, "ask for more repairs, one after the other", "%d documents are more than %d",
			len(what.Documents), service.MaxRepair)
	}
	var docs []service.RepairDocument
	for i := range f.Differences {
		one := &f.Differences[i]
		if len(docs) < service.MaxRepair && what.Wants(one) {
			docs = append(docs, one.RepairDocument)
		}
	}
	switch {
	case what.All && len(docs) == 0:
		return nil, refuse(Conflict, "their _ids are too long, or hidden by a rule", "none of the documents can be named")
	case !what.All && len(docs) < len(what.Documents):
		return nil, refuse(Invalid, "use ns and key as the findings have them",
			"%d of the documents are not among those that verification %q has found",
			len(what.Documents)-len(docs), of.Request.ID)
	}
	return docs, nil
}

func repairable(v *hub.View, j *service.Job) error {
	name, state, s := j.Definition.Name, j.State(), j.Status()
	switch {
	case state == service.Finished:
		return refuse(Conflict, "compare, and change the documents by hand",
			"job %q is finalized: its target may be in use, and is not written to any more", name)
	case j.Definition.Desired.Finalize:
		return refuse(Conflict, "take the finalization back first", "job %q is to be finalized", name)
	case state != service.Running || s == nil:
		return refuse(Conflict, "have it run: the job itself repairs documents, in order with the changes", "job %q is %s",
			name, state)
	case s.Phase != job.PhaseFollowing:
		return refuse(Conflict, "wait until it follows", "job %q is in phase %s", name, s.Phase)
	}
	return verifiable(v, j)
}
