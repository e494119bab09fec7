package api

import (
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/service"
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

// draftRoutes are those of jobs that are not made yet.
func (a *API) draftRoutes() []route {
	return []route{
		{http.MethodPost, PathInspectDraft, service.Admin, a.inspectDraft, 0},
		{http.MethodPost, PathPrecheckDraft, service.Admin, a.precheckDraft, 0},
		{http.MethodPost, PathSampleDraft, service.Admin, a.sampleDraft, 0},
	}
}

// Draft is a job that is not made yet, as NewJob has it.
type Draft struct {
	Name     string            `json:"name"`
	Settings json.RawMessage   `json:"settings"`
	Labels   map[string]string `json:"labels,omitempty"`
}

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

// draft is what a body has of the draft.
func (d *Draft) draft() (service.Draft, error) {
	text, err := settings(d.Settings)
	if err != nil {
		return service.Draft{}, err
	}
	if !utf8.ValidString(text) {
		return service.Draft{}, invalid("save it as UTF-8", "the settings are not UTF-8")
	}
	return service.Draft{Name: d.Name, Settings: text, Labels: d.Labels}, checkLabels(d.Labels)
}

// asked reads a body, and gives the reply time of its own.
func (c *call) asked(into any, of *Draft, form string) (service.Draft, error) {
	if _, err := c.query(); err != nil {
		return service.Draft{}, err
	}
	if err := c.body(into, false, form); err != nil {
		return service.Draft{}, err
	}
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // where it passes, the request is canceled
	_ = rc.SetWriteDeadline(time.Now().Add(draftTime + replyTime))
	return of.draft()
}

func (a *API) inspectDraft(c *call) (any, error) {
	var body InspectDraft
	d, err := c.asked(&body, &body.Draft, draftForm)
	if err != nil {
		return nil, err
	}
	n := draftPage
	if body.Limit != nil {
		n = *body.Limit
	}
	if n < 0 || n > maxPage {
		return nil, invalid("", "limit is %d: want 0 to %d", n, maxPage)
	}
	return a.o.Desk.InspectDraft(c.Context(), c.caller, d, service.InspectAsk{After: body.After, Search: body.Search, Limit: n})
}

func (a *API) precheckDraft(c *call) (any, error) {
	var body Draft
	d, err := c.asked(&body, &body, draftForm)
	if err != nil {
		return nil, err
	}
	return a.o.Desk.PrecheckDraft(c.Context(), c.caller, d)
}

func (a *API) sampleDraft(c *call) (any, error) {
	var body SampleDraft
	d, err := c.asked(&body, &body.Draft, `{"name": "orders", "settings": {"source": "env:SOURCE", "target": "env:TARGET"}, "ns": "shop.orders"}`)
	if err != nil {
		return nil, err
	}
	if body.Documents < 0 || body.Documents > maxPage {
		return nil, invalid("", "documents is %d: want 1 to %d", body.Documents, maxPage)
	}
	n := body.Documents
	if n == 0 {
		n = draftSample
	}
	return a.o.Desk.SampleDraft(c.Context(), c.caller, d, service.SampleAsk{NS: body.NS, Docs: n})
}
