package operate

import (
	"cmp"
	"context"
	"slices"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/reverse"
	"github.com/millrace/millrace/internal/service"
)

// Reverse asks for a job that leads a finalized one back.
type Reverse struct {
	// Name is that of the new job; "" is the other's with -back.
	Name string `json:"name,omitempty"`
	// AcceptLoss names losses with which it goes on.
	AcceptLoss []string `json:"acceptLoss,omitempty"`
	// DryRun has a worker check the job, and makes none.
	DryRun bool `json:"dryRun,omitempty"`
}

// Reversal is a job that leads another one back.
type Reversal struct {
	Name     string `json:"name"`
	Settings string `json:"settings"`
	Losses   []Loss `json:"losses"`
	// Plan is what a worker found, of a dry run alone.
	Plan *service.DraftPlan `json:"plan"`
	// Job is the new one, nil of a dry run.
	Job *service.Job `json:"-"`

	labels map[string]string // of the job that is reversed, which may be removed meanwhile
}

// Loss is what following back loses.
type Loss struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
	What string `json:"what"`
	// Accepted losses, and those of few documents, do not keep the job from its beginning.
	Accepted bool `json:"accepted"`
}

// Reversal returns the job that leads a finalized one back, without asking anybody.
func (d *Desk) Reversal(c *service.Caller, of string, ask Reverse) (*Reversal, error) {
	if err := allowed(c, service.Admin, of); err != nil {
		return nil, err
	}
	j := d.View.Job(of)
	switch {
	case j == nil:
		return nil, missing(of)
	case j.State() != service.Finished:
		return nil, refuse(Conflict, "finalize it first", "job %q is %s: nothing leads back before its cut-over", of,
			j.State())
	}
	for _, name := range ask.AcceptLoss {
		if !slices.Contains(reverse.Losses(), name) {
			return nil, refuse(Invalid, "use names of losses, as a dry run returns them", "%.40q is not a loss", name)
		}
	}
	text, returns := j.Definition.Settings, ""
	if first := d.View.Job(config.ReversedJob(of, text)); first != nil && c.Sees(first.Definition.Name) {
		returns = first.Definition.Settings
	}
	settings, losses, err := config.ReverseDefinition(of, text, returns, ask.AcceptLoss)
	if err != nil {
		return nil, refuse(Conflict, "copy in the other direction, with on-existing: drop", "job %q cannot be reversed: %s",
			of, err)
	}
	out := &Reversal{Name: cmp.Or(ask.Name, reverse.JobName(of)), Settings: settings, Losses: []Loss{},
		labels: j.Definition.Labels}
	refusing := reverse.Refusing(losses, ask.AcceptLoss)
	for _, l := range losses {
		out.Losses = append(out.Losses, Loss{l.Name, l.Rule, l.What,
			!slices.ContainsFunc(refusing, func(r reverse.Loss) bool { return r.String() == l.String() })})
	}
	return out, nil
}

// Reverse makes the job that leads a finalized one back, or has a worker check it. made is false of
// a dry run, and for a job that exists.
func (d *Desk) Reverse(ctx context.Context, c *service.Caller, of string, ask Reverse) (r *Reversal, made bool,
	err error) {
	if r, err = d.Reversal(c, of, ask); err != nil {
		return nil, false, d.refused(ctx, request{caller: c, what: "reverse", job: of}, err)
	}
	def := service.Definition{Name: r.Name, Settings: r.Settings, Labels: r.labels}
	if ask.DryRun {
		r.Plan, err = d.PrecheckDraft(ctx, c, def)
		return r, false, err
	}
	for _, l := range r.Losses {
		if !l.Accepted {
			return nil, false, refuse(Conflict, "accept it by acceptLoss, if that may be",
				"job %q cannot be reversed: %s: %s", of, l.Rule, l.What)
		}
	}
	r.Job, made, err = d.Create(ctx, c, def)
	return r, made, err
}
