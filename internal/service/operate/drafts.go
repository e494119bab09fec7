package operate

import (
	"context"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

const maxDraftText = 1000

// InspectDraft returns what a worker finds on the clusters of a draft.
func (d *Desk) InspectDraft(ctx context.Context, c *service.Caller, draft service.Definition,
	ask service.InspectAsk) (*service.Inspection, error) {
	if len(ask.After) > maxDraftText || len(ask.Search) > maxDraftText {
		return nil, refuse(Invalid, "", "a place in the list and a part of a name take up to %d bytes", maxDraftText)
	}
	return askDraft[service.Inspection](ctx, d, c, draft,
		service.Question{What: service.AskInspect, Draft: &service.DraftQuestion{Inspect: ask}})
}

// PrecheckDraft returns plan and precheck of a draft.
func (d *Desk) PrecheckDraft(ctx context.Context, c *service.Caller,
	draft service.Definition) (*service.DraftPlan, error) {
	return askDraft[service.DraftPlan](ctx, d, c, draft,
		service.Question{What: service.AskPrecheck, Draft: &service.DraftQuestion{}})
}

// SampleDraft returns documents before and after the rules of a draft. It notes that in the audit trail.
func (d *Desk) SampleDraft(ctx context.Context, c *service.Caller, draft service.Definition,
	ask service.SampleAsk) (*service.DraftSample, error) {
	db, coll := mongo.SplitNS(ask.NS)
	if db == "" || coll == "" || len(ask.NS) > maxDraftText || strings.ContainsRune(ask.NS, 0) {
		return nil, refuse(Invalid, "write it as db.coll", "%.100q names no collection", ask.NS)
	}
	if mongo.IsInternal(db) { // they have credentials, and the names and changes of all collections
		return nil, refuse(Invalid, "name a collection that jobs copy",
			"%.100q is of servers or of millrace: no job copies it", ask.NS)
	}
	q := request{caller: c, job: draft.Name, what: "sample documents of " + strings.ToValidUTF8(ask.NS, "\ufffd")}
	if err := d.mayDraft(ctx, c, draft); err != nil {
		if service.CheckName(draft.Name) != nil {
			return nil, err
		}
		return nil, d.refused(ctx, q, err)
	}
	if err := d.changing(ctx, q); err != nil {
		return nil, err
	}
	if err := d.note(ctx, c, service.Change{What: q.what, Job: q.job}); err != nil {
		return nil, err
	}
	return askDraft[service.DraftSample](ctx, d, c, draft,
		service.Question{What: service.AskSample, Draft: &service.DraftQuestion{Sample: ask}})
}

func (d *Desk) mayDraft(ctx context.Context, c *service.Caller, draft service.Definition) error {
	if err := checkName(draft.Name); err != nil {
		return err
	}
	if err := allowed(c, service.Admin, draft.Name); err != nil {
		return err
	}
	return d.checkSettings(ctx, c, draft.Name, draft.Settings)
}

// askDraft asks the least loaded worker first.
func askDraft[T any](ctx context.Context, d *Desk, c *service.Caller, draft service.Definition,
	q service.Question) (*T, error) {
	if err := d.mayDraft(ctx, c, draft); err != nil {
		return nil, err
	}
	workers := able(d.View, &draft)
	if len(workers) == 0 {
		return nil, refuse(Conflict, "start a worker that has them, or change the labels",
			"there is no worker with the labels of job %q", draft.Name)
	}
	q.Job, q.Draft.Settings = draft.Name, draft.Settings
	return ask[T](ctx, d, workers, &q)
}
