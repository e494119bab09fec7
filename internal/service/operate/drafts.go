package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// draftAskTime bounds the answer of a worker, which itself gives up earlier.
const draftAskTime = 55 * time.Second

// maxDraftText bounds a namespace and what is looked for.
const maxDraftText = 1000

// InspectDraft returns what a worker finds on the clusters of a draft.
func (d *Desk) InspectDraft(ctx context.Context, c *service.Caller, draft service.Draft,
	ask service.InspectAsk) (*service.Inspection, error) {
	if len(ask.After) > maxDraftText || len(ask.Search) > maxDraftText {
		return nil, refuse(Invalid, "", "a place in the list and a part of a name take up to %d bytes", maxDraftText)
	}
	var out service.Inspection
	return &out,
		d.askDraft(ctx, c, draft, service.Question{What: service.AskInspect, Draft: &service.DraftQuestion{Inspect: ask}},
			&out)
}

// PrecheckDraft returns plan and precheck of a draft.
func (d *Desk) PrecheckDraft(ctx context.Context, c *service.Caller, draft service.Draft) (*service.DraftPlan, error) {
	var out service.DraftPlan
	return &out, d.askDraft(ctx, c, draft, service.Question{What: service.AskPrecheck, Draft: &service.DraftQuestion{}},
		&out)
}

// SampleDraft returns documents of a collection before and after the rules of a draft. It records
// that in the audit trail.
func (d *Desk) SampleDraft(ctx context.Context, c *service.Caller, draft service.Draft,
	ask service.SampleAsk) (*service.DraftSample, error) {
	db, coll := mongo.SplitNS(ask.NS)
	if db == "" || coll == "" || len(ask.NS) > maxDraftText || strings.ContainsRune(ask.NS, 0) {
		return nil, refuse(Invalid, "write it as db.coll", "%.100q names no collection", ask.NS)
	}
	q := request{caller: c, job: draft.Name, what: "sample documents of " + strings.ToValidUTF8(ask.NS, "\ufffd")}
	if err := mayDraft(c, draft); err != nil {
		if service.CheckName(draft.Name) != nil {
			return nil, err
		}
		return nil, d.refused(ctx, q, err)
	}
	if err := d.note(ctx, c, service.Change{What: q.what, Job: q.job}); err != nil {
		return nil, err
	}
	var out service.DraftSample
	return &out,
		d.askDraft(ctx, c, draft, service.Question{What: service.AskSample, Draft: &service.DraftQuestion{Sample: ask}}, &out)
}

// mayDraft refuses what Create would refuse.
func mayDraft(c *service.Caller, draft service.Draft) error {
	if err := checkName(draft.Name); err != nil {
		return err
	}
	if err := allowed(c, service.Admin, draft.Name); err != nil {
		return err
	}
	return checkSettings(draft.Name, draft.Settings)
}

// askDraft asks a worker that could run the draft, the one with the fewest jobs first.
func (d *Desk) askDraft(ctx context.Context, c *service.Caller, draft service.Draft, q service.Question,
	into any) error {
	if err := mayDraft(c, draft); err != nil {
		return err
	}
	q.Job, q.Draft.Settings = draft.Name, draft.Settings
	question, err := service.PlainJSON(q)
	if err != nil {
		return fmt.Errorf("write a question: %w", err)
	}
	if len(question) > hub.MaxAnswer-1024 {
		return refuse(Invalid, "use patterns in place of lists", "the settings are too long to be asked about")
	}
	workers := able(d.View, &service.Definition{Labels: draft.Labels})
	if len(workers) == 0 {
		return refuse(Conflict, "start a worker that has them, or change the labels",
			"there is no worker with the labels of job %q", draft.Name)
	}
	waiting, cancel := context.WithTimeout(ctx, draftAskTime)
	defer cancel()
	for _, w := range workers {
		raw, err := d.Hub.Ask(waiting, w.Name, question)
		if err == nil {
			return readAnswer(w.Name, raw, into)
		}
		if !errors.Is(err, hub.ErrNoAnswer) || ctx.Err() != nil {
			return err
		}
		if waiting.Err() != nil {
			break
		}
	}
	return refuse(Conflict, "try again in a moment; the workers' logs may say more",
		"no worker with the labels of job %q answers", draft.Name)
}
