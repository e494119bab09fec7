package api

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// The paths of drafts, which are jobs that are not made yet.
const (
	PathDrafts        = Prefix + "/drafts"
	PathInspectDraft  = PathDrafts + "/inspect"
	PathPrecheckDraft = PathDrafts + "/precheck"
	PathSampleDraft   = PathDrafts + "/sample"
)

const (
	// draftTime is how long a question about a draft may take: longer than a worker tries.
	draftTime   = time.Minute
	draftPage   = 200
	draftSample = 5
)

// InspectDraft is the body that asks for what there is on the clusters of a draft.
type InspectDraft struct {
	Draft
	After  string `json:"after,omitempty"`
	Search string `json:"search,omitempty"`
	// Limit is how many collections are told; nil is draftPage.
	Limit *int `json:"limit,omitempty"`
}

// SampleDraft is the body that asks for documents before and after the rules.
type SampleDraft struct {
	Draft
	NS        string `json:"ns"`
	Documents int    `json:"documents,omitempty"`
}

const draftForm = `{"name": "orders", "settings": {"source": "env:SOURCE", "target": "env:TARGET"}}`

// drafting reads a body with a draft, and gives the reply time of its own.
func drafting[T any](do func(*call, T) (any, error), form string) action {
	return taking(func(c *call, body T) (any, error) {
		if _, err := c.query(); err != nil {
			return nil, err
		}
		rc := http.NewResponseController(c.w)
		_ = rc.SetReadDeadline(time.Time{}) // where it passes, the request is canceled
		_ = rc.SetWriteDeadline(time.Now().Add(draftTime + replyTime))
		return do(c, body)
	}, false, form)
}

// Reversal is a job that leads another one back. Job is null of a dry run.
type Reversal struct {
	operate.Reversal
	Job *Job `json:"job"`
}

func (d desk) reverse(c *call, ask operate.Reverse) (any, error) {
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
		c.w.Header().Set("Location", PathJobs+"/"+url.PathEscape(r.Name))
	}
	return out, nil
}

func (d desk) inspect(c *call, body InspectDraft) (any, error) {
	of, err := body.definition()
	if err != nil {
		return nil, err
	}
	n := *cmp.Or(body.Limit, new(draftPage))
	if n < 0 || n > maxPage {
		return nil, invalid("", "limit is %d: want 0 to %d", n, maxPage)
	}
	return d.InspectDraft(c.Context(), c.caller, of,
		service.InspectAsk{After: body.After, Search: body.Search, Limit: n})
}

func (d desk) precheck(c *call, body Draft) (any, error) {
	of, err := body.definition()
	if err != nil {
		return nil, err
	}
	return d.PrecheckDraft(c.Context(), c.caller, of)
}

func (d desk) sample(c *call, body SampleDraft) (any, error) {
	of, err := body.definition()
	if err != nil {
		return nil, err
	}
	if body.Documents < 0 || body.Documents > maxPage {
		return nil, invalid("", "documents is %d: want 1 to %d", body.Documents, maxPage)
	}
	return d.SampleDraft(c.Context(), c.caller, of,
		service.SampleAsk{NS: body.NS, Docs: cmp.Or(body.Documents, draftSample)})
}
