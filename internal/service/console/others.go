package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// maxTrail bounds the entries of the audit trail on a page.
const maxTrail = 100

// maxPast bounds the alerts that are over on their page.
const maxPast = 100

type alerts struct{ Present, Past []service.Alert }

// alerts shows what is wrong with the jobs that the visitor sees, and what was.
func (c *console) alerts(w http.ResponseWriter, r *http.Request, v *visit) error {
	present, past := c.Desk.Alerts(v.who, maxPast)
	f := c.page(v, "alerts", "Alerts", alerts{present, past})
	f.Live = r.URL.RequestURI()
	return c.show(w, "alerts", f)
}

func (c *console) create(w http.ResponseWriter, r *http.Request, v *visit) error {
	d := draft{Name: strings.TrimSpace(r.PostForm.Get("name")), Labels: r.PostForm.Get("labels"),
		Paused:   r.PostForm.Get("paused") != "",
		Settings: strings.ReplaceAll(r.PostForm.Get("settings"), "\r\n", "\n")}
	refuse := func(why said) error {
		return c.showNew(w, v, newJob{wizard: newWizard(), Problems: d.Problems, Plain: d, Open: true}, why)
	}
	labels, err := service.ParseLabels(strings.Fields(d.Labels))
	if err != nil {
		return refuse(said{http.StatusUnprocessableEntity, err.Error(), "separate labels by spaces"})
	}
	_, _, err = c.Desk.Create(r.Context(), v.who,
		service.Definition{Name: d.Name, Settings: d.Settings, Labels: labels, Wish: service.Wish{Paused: d.Paused}})
	if err != nil {
		if e, ok := errors.AsType[*operate.Error](err); ok {
			d.Problems = e.Problems
		}
		return refuse(c.refusal(err))
	}
	return lead(w, r, "/jobs/"+d.Name)
}

// workers shows those that are there, with the jobs that the visitor sees.
func (c *console) workers(w http.ResponseWriter, r *http.Request, v *visit) error {
	list := slices.Clone(c.Desk.Workers())
	for i := range list {
		list[i].Jobs = slices.DeleteFunc(slices.Clone(list[i].Jobs), func(name string) bool { return !v.who.Sees(name) })
	}
	f := c.page(v, "workers", "Workers", workersPage{list, v.who.Role.May(service.Admin) && len(v.who.Jobs) == 0})
	f.Live = r.URL.RequestURI()
	return c.show(w, "workers", f)
}

// workersPage are workers; Drains says that the visitor may drain them.
type workersPage struct {
	Workers []service.Worker
	Drains  bool
}

// drain has a worker give back what it has, or take jobs again.
func (c *console) drain(drain bool) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if _, err := c.Desk.Drain(r.Context(), v.who, r.PathValue("name"), drain); err != nil {
			return err
		}
		return lead(w, r, "/workers")
	}
}

// entry is one of the audit trail.
type entry struct {
	service.Change
	Differs string
}

type trail struct {
	Job     string
	Entries []entry
	Before  uint64 // of the next page, 0 for none
}

func (c *console) audit(w http.ResponseWriter, r *http.Request, v *visit) error {
	t := trail{Job: strings.TrimSpace(r.URL.Query().Get("job"))}
	before, err := strconv.ParseUint(cmp.Or(r.URL.Query().Get("before"), "0"), 10, 64)
	if err != nil {
		return said{http.StatusBadRequest, "this is no place in the audit trail", "open the page anew"}
	}
	changes, err := c.Desk.Trail(r.Context(), v.who, t.Job, before, maxTrail)
	if err != nil {
		return err
	}
	for _, change := range changes {
		t.Entries = append(t.Entries, entry{change, difference(change.Before, change.After)})
	}
	if len(changes) == maxTrail {
		t.Before = changes[maxTrail-1].Seq
	}
	return c.show(w, "audit", c.page(v, "audit", "Audit trail", t))
}

// difference says what a change has changed of a wish.
func difference(before, after *service.Wish) string {
	if after == nil {
		return ""
	}
	was := service.Wish{}
	if before != nil {
		was = *before
	}
	var parts []string
	add := func(name string, a, b any) {
		if x, y := fmt.Sprint(a), fmt.Sprint(b); x != y {
			parts = append(parts, name+": "+x+" → "+y)
		}
	}
	add("paused", was.Paused, after.Paused)
	add("finalize", was.Finalize, after.Finalize)
	add("removed", was.Removed, after.Removed)
	add("try", was.Try, after.Try)
	if after.Limits != nil && (was.Limits == nil || *was.Limits != *after.Limits) {
		parts = append(parts, fmt.Sprintf("limits: %d documents, %d bytes a second", after.Limits.Docs, after.Limits.Bytes))
	}
	if after.Loads != nil && (was.Loads == nil || *was.Loads != *after.Loads) {
		parts = append(parts, fmt.Sprintf("loads: source %s, target %s", after.Loads.Source, after.Loads.Target))
	}
	switch {
	case after.Verify != nil && (was.Verify == nil || *was.Verify != *after.Verify):
		parts = append(parts, fmt.Sprintf("verified every %d hours, %g%%, %d bytes a second", after.Verify.EveryHours,
			after.Verify.SamplePercent, after.Verify.BytesPerSecond))
	case after.Verify == nil && was.Verify != nil:
		parts = append(parts, "verified when it is asked for alone")
	}
	return strings.Join(parts, "; ")
}
