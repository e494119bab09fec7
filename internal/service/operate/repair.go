package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

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
			"%d of the documents are not among those that verification %q has found", len(what.Documents)-len(docs), of.Request.ID)
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
