package console

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

const maxCollections = 500

type onePage struct {
	Row                   row
	Definition            service.Definition
	Phase, Unmet, Blocked string
	Since                 *time.Time
	Status                *job.Status // nil for none
	Checks                []precheck.Check
	Collections           []progress.Collection
	Found, All            int
	Search                string
	Operator, Admin       bool
	Untouched             bool // it failed before it wrote
	Rates                 pace.Rates
	Loads                 pace.Loads
	Reported              time.Time
	// Waits is what the job waits for, if the row's cause does not say so.
	Waits string
	// Holding is the shard that the others wait for, nil for none.
	Holding *job.Holding
	// Past is nil on pages that do not show it.
	Past *past
}

func (c *console) job(w http.ResponseWriter, r *http.Request, v *visit) error {
	j, err := c.Desk.Job(v.who, r.PathValue("name"))
	if err != nil {
		return err
	}
	f := c.jobFrame(v, j, r.URL.Query().Get("q"))
	if p, ok := f.Data.(onePage); ok {
		p.Past = c.past(r, v, j.Definition.Name)
		f.Data = p
	}
	f.Live = r.URL.RequestURI()
	if done := r.URL.Query().Get("done"); done != "" {
		f.Notice = "Saved. The worker applies it."
	}
	return c.show(w, "job", f)
}

func (c *console) jobFrame(v *visit, j *service.Job, search string) frame {
	p := onePage{Row: rowOf(j), Definition: j.Definition, Search: search, Operator: v.who.Role.May(service.Operator),
		Admin: v.who.Role.May(service.Admin), Untouched: j.Untouched()}
	p.Rates, p.Loads = limits(j)
	p.Blocked = "it does not run"
	if r := j.Known(); r != nil {
		p.Reported, p.Unmet = r.At, r.Unmet
		for _, check := range r.Checks {
			if check.Level != precheck.OK {
				p.Checks = append(p.Checks, check)
			}
		}
	}
	if s := j.Status(); s != nil {
		p.Phase, p.Status = string(s.Phase), s
		if j.Live() {
			p.Blocked, p.Since = s.CannotFinalize, s.WaitingSince
			if p.Row.Cause == "" {
				p.Waits = s.Waiting
			}
			p.Holding = holding(s)
		}
		p.collections(s)
	}
	return c.page(v, "job", j.Definition.Name, p)
}

func (p *onePage) collections(s *job.Status) {
	p.All = len(s.Copy.Collections)
	for _, c := range s.Copy.Collections {
		if !strings.Contains(c.Source, p.Search) && !strings.Contains(c.Target, p.Search) {
			continue
		}
		if p.Found++; p.Found <= maxCollections {
			p.Collections = append(p.Collections, c)
		}
	}
}

// limits returns the limits that apply: those requested, or of the settings.
func limits(j *service.Job) (pace.Rates, pace.Loads) {
	loads := pace.Loads{Source: pace.Normal, Target: pace.Normal}
	var rates pace.Rates
	if s := j.Status(); s != nil {
		rates = s.Limits
		loads.Source, loads.Target = cmp.Or(s.Load.Source, loads.Source), cmp.Or(s.Load.Target, loads.Target)
	}
	if j.Definition.Desired.Limits != nil {
		rates = *j.Definition.Desired.Limits
	}
	if j.Definition.Desired.Loads != nil {
		loads = *j.Definition.Desired.Loads
	}
	return rates, loads
}

func (c *console) sure(w http.ResponseWriter, r *http.Request, v *visit) error {
	what := r.PathValue("sure")
	j, err := c.Desk.Job(v.who, r.PathValue("name"))
	if err != nil || what != "finalize" && what != "remove" {
		return said{http.StatusNotFound, "there is no such page", "see the list of jobs"}
	}
	f := c.jobFrame(v, j, "")
	f.Title = map[string]string{"finalize": "Finalize ", "remove": "Remove "}[what] + j.Definition.Name
	return c.show(w, what, f)
}

func (c *console) act(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, d, ctx := r.PathValue("name"), c.Desk, r.Context()
	var err error
	switch act := r.PathValue("act"); act {
	case "pause":
		_, err = d.Pause(ctx, v.who, name)
	case "resume":
		_, err = d.Resume(ctx, v.who, name)
	case "finalize":
		_, err = d.Finalize(ctx, v.who, name, r.PostForm.Get("when") != "now")
	case "cancel-finalize":
		_, err = d.CancelFinalize(ctx, v.who, name)
	case "remove":
		_, err = d.Remove(ctx, v.who, name)
	case "limits":
		limits, wrong := limitsOf(r)
		if wrong != nil {
			return c.again(w, v, name, said{http.StatusUnprocessableEntity, wrong.Error(),
				"write whole numbers, bytes also with a unit such as 20MB; 0 is unlimited"})
		}
		_, err = d.Limit(ctx, v.who, name, limits)
	default:
		return said{http.StatusNotFound, "there is no such form", ""}
	}
	if err != nil {
		return c.again(w, v, name, c.refusal(err))
	}
	if r.PathValue("act") == "remove" { // whose page may be gone
		return lead(w, r, "/jobs")
	}
	return lead(w, r, "/jobs/"+name+"?done=1")
}

func limitsOf(r *http.Request) (l server.Limits, err error) {
	docs, err := number(r, "docs", "number of documents",
		func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
	if err != nil {
		return l, err
	}
	bytes, err := byteRate(r, "bytes")
	if err != nil {
		return l, err
	}
	source, target := pace.Load(r.PostForm.Get("source")), pace.Load(r.PostForm.Get("target"))
	return server.Limits{Docs: &docs, Bytes: &bytes, Source: &source, Target: &target}, nil
}

func (c *console) again(w http.ResponseWriter, v *visit, name string, why said) error {
	j, err := c.Desk.Job(v.who, name)
	if err != nil {
		return why
	}
	return c.say(w, "job", c.jobFrame(v, j, ""), why)
}

type draft struct {
	Name, Labels, Settings string
	Paused, Edit           bool
	Drops                  *drops
}

// holding returns the shard that the others wait for, once that takes longer than usual.
func holding(s *job.Status) *job.Holding {
	if h := s.Follow.Holding; h != nil && h.Seconds >= 1 {
		return h
	}
	return nil
}

type reversePage struct {
	Of string
	*operate.Reversal
}

func (c *console) reverse(w http.ResponseWriter, r *http.Request, v *visit) error {
	of := r.PathValue("name")
	to, err := c.Desk.Reversal(v.who, of, operate.Reverse{})
	if err != nil {
		return err
	}
	return c.show(w, "reverse", c.reverseFrame(v, of, to))
}

func (c *console) reverseFrame(v *visit, of string, to *operate.Reversal) frame {
	f := c.page(v, "reverse", "", reversePage{of, to})
	f.Title = "Reverse " + of
	return f
}

func (c *console) makeReversed(w http.ResponseWriter, r *http.Request, v *visit) error {
	of := r.PathValue("name")
	ask := operate.Reverse{Name: r.PostForm.Get("as"), AcceptLoss: r.PostForm["accept"],
		DryRun: r.PostForm.Get("do") != "make"}
	to, _, err := c.Desk.Reverse(r.Context(), v.who, of, ask)
	switch {
	case err != nil:
		was, shown := c.Desk.Reversal(v.who, of, operate.Reverse{Name: ask.Name})
		if shown != nil {
			return err
		}
		return c.say(w, "reverse", c.reverseFrame(v, of, was), c.refusal(err))
	case ask.DryRun:
		return c.show(w, "reverse", c.reverseFrame(v, of, to))
	}
	return lead(w, r, "/jobs/"+to.Name+"?done=1")
}
