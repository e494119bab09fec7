package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

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

type drafts struct{ desk *operate.Desk }

func (d drafts) routes() []route {
	return []route{
		{http.MethodPost, PathInspectDraft, service.Admin, d.inspect, 0},
		{http.MethodPost, PathPrecheckDraft, service.Admin, d.precheck, 0},
		{http.MethodPost, PathSampleDraft, service.Admin, d.sample, 0},
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

func (d drafts) inspect(c *call) (any, error) {
	var body InspectDraft
	of, err := c.asked(&body, &body.Draft, draftForm)
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
	return d.desk.InspectDraft(c.Context(), c.caller, of,
		service.InspectAsk{After: body.After, Search: body.Search, Limit: n})
}

func (d drafts) precheck(c *call) (any, error) {
	var body Draft
	of, err := c.asked(&body, &body, draftForm)
	if err != nil {
		return nil, err
	}
	return d.desk.PrecheckDraft(c.Context(), c.caller, of)
}

func (d drafts) sample(c *call) (any, error) {
	var body SampleDraft
	of, err := c.asked(&body, &body.Draft,
		`{"name": "orders", "settings": {"source": "env:SOURCE", "target": "env:TARGET"}, "ns": "shop.orders"}`)
	if err != nil {
		return nil, err
	}
	if body.Documents < 0 || body.Documents > maxPage {
		return nil, invalid("", "documents is %d: want 1 to %d", body.Documents, maxPage)
	}
	return d.desk.SampleDraft(c.Context(), c.caller, of,
		service.SampleAsk{NS: body.NS, Docs: cmp.Or(body.Documents, draftSample)})
}
