package console

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

type verificationRow struct {
	*service.Verification
	Sample      string // what it compares
	Progress    bar
	Read        string
	Differences int64
	Schema      int64
}

type verifyPage struct {
	Job      string
	Operator bool
	Rows     []verificationRow
	Schedule *service.VerifySchedule
}

func verificationRowOf(v *service.Verification) verificationRow {
	row := verificationRow{Verification: v, Sample: "all"}
	if p := v.Request.Options.SamplePercent; p > 0 && p < 100 {
		row.Sample = fmt.Sprintf("%g%%", p)
	}
	if r := v.Request.Repair; r != nil {
		row.Sample = fmt.Sprintf("%d documents, which it repairs", r.Documents)
	}
	if n := len(v.Request.Options.Include); n > 0 {
		row.Sample += " of " + strings.Join(v.Request.Options.Include[:min(n, 3)], ", ")
		if n > 3 {
			row.Sample += ", …"
		}
	}
	if r := v.Report; r != nil {
		p := r.Progress
		row.Differences, row.Schema = p.Differences, r.Schema
		row.Read = fmt.Sprintf("%s documents, %s", format.Count(float64(p.Docs)), format.Size(float64(p.Bytes)))
		percent := int(100 * format.Share(p.Docs, p.DocsTotal, v.State() == service.VerifySame ||
			v.State() == service.VerifyDifferent))
		if row.Sample != "all" { // the total of documents is that of all
			percent = int(100 * format.Share(p.Collections, p.CollectionsTotal, false))
		}
		row.Progress = bar{Name: "compared", Percent: percent, Text: strconv.Itoa(percent) + "%"}
	}
	return row
}

func (c *console) showVerifications(w http.ResponseWriter, r *http.Request, v *visit, what said) error {
	name := r.PathValue("name")
	list, err := c.Desk.Verifications(v.who, name)
	if err != nil {
		return err
	}
	p := verifyPage{Job: name, Operator: v.who.Role.May(service.Operator)}
	if j, err := c.Desk.Job(v.who, name); err == nil {
		p.Schedule = j.Definition.Desired.Verify
	}
	for i := range list {
		p.Rows = append(p.Rows, verificationRowOf(&list[i]))
	}
	f := c.page(v, "job", "Verification of "+name, p)
	if r.Method == http.MethodGet {
		f.Live = r.URL.RequestURI()
	}
	if r.Method == http.MethodGet && r.URL.Query().Get("done") != "" {
		f.Notice = "Saved."
	}
	return c.say(w, "verification", f, what)
}

func (c *console) verify(w http.ResponseWriter, r *http.Request, v *visit) error {
	name := r.PathValue("name")
	o, err := verifyOptions(r)
	var made *service.Verification
	if err == nil {
		made, _, err = c.Desk.Verify(r.Context(), v.who, name, "", o)
	}
	if err != nil {
		return c.showVerifications(w, r, v, c.refusal(err))
	}
	return lead(w, r, verificationPath(name, made.Request.ID))
}

func verificationPath(job, id string) string {
	return "/jobs/" + url.PathEscape(job) + "/verification/" + url.PathEscape(id)
}

func verifyOptions(r *http.Request) (o service.VerifyOptions, err error) {
	if o.SamplePercent, err = percent(r); err != nil {
		return o, err
	}
	if o.BytesPerSecond, err = byteRate(r, "rate"); err != nil {
		return o, err
	}
	o.Include, o.NoValues = strings.Fields(r.PostForm.Get("include")), r.PostForm.Get("values") == ""
	o.PatienceSeconds, err = number(r, "patience", "number of seconds", strconv.Atoi)
	return o, err
}

func number[T any](r *http.Request, field, what string, parse func(string) (T, error)) (T, error) {
	n, err := parse(cmp.Or(strings.TrimSpace(r.PostForm.Get(field)), "0"))
	if err != nil {
		return n, said{http.StatusUnprocessableEntity, fmt.Sprintf("%q is not a %s", r.PostForm.Get(field), what), ""}
	}
	return n, nil
}

func percent(r *http.Request) (float64, error) {
	return number(r, "sample", "percentage", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

func byteRate(r *http.Request, field string) (int64, error) {
	return number(r, field, "number of bytes", func(s string) (int64, error) {
		n, err := humanize.ParseBytes(s)
		if n > 1<<62 {
			return 0, strconv.ErrRange
		}
		return int64(n), err
	})
}

func (c *console) verifySchedule(w http.ResponseWriter, r *http.Request, v *visit) error {
	name := r.PathValue("name")
	s, err := scheduleOf(r)
	if err == nil {
		_, err = c.Desk.ScheduleVerifications(r.Context(), v.who, name, s)
	}
	if err != nil {
		return c.showVerifications(w, r, v, c.refusal(err))
	}
	return lead(w, r, "/jobs/"+url.PathEscape(name)+"/verification?done=1")
}

func scheduleOf(r *http.Request) (*service.VerifySchedule, error) {
	every, err := number(r, "every", "number of hours", strconv.Atoi)
	if err != nil || every == 0 {
		return nil, err
	}
	s := service.VerifySchedule{EveryHours: every, NoValues: r.PostForm.Get("values") == ""}
	if s.SamplePercent, err = percent(r); err != nil {
		return nil, err
	}
	s.BytesPerSecond, err = byteRate(r, "rate")
	return &s, err
}

type verifiedPage struct {
	Job      string
	Operator bool
	Row      verificationRow
	Findings *service.Findings
	// Unlisted counts differing documents that are not on the page.
	Unlisted int64
	// Names identify the differences in a repair; "" if one cannot be repaired.
	Names      []string
	Repairable bool // some can be repaired, and the visitor may
}

func (c *console) showVerification(w http.ResponseWriter, r *http.Request, v *visit, what said) error {
	name, id := r.PathValue("name"), r.PathValue("id")
	one, found, err := c.Desk.Verification(r.Context(), v.who, name, id)
	if err != nil {
		return err
	}
	p := verifiedPage{Job: name, Operator: v.who.Role.May(service.Operator), Row: verificationRowOf(one), Findings: found}
	if found != nil {
		p.Unlisted = p.Row.Differences - int64(len(found.Differences))
		for _, d := range found.Differences {
			one := nameForRepair(d)
			p.Names, p.Repairable = append(p.Names, one), p.Repairable || p.Operator && one != ""
		}
	}
	f := c.page(v, "job", "Verification of "+name, p)
	if p.Row.Open() {
		f.Live = verificationPath(name, id)
	}
	return c.say(w, "verified", f, what)
}

func (c *console) cancelVerification(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, id := r.PathValue("name"), r.PathValue("id")
	if _, err := c.Desk.CancelVerification(r.Context(), v.who, name, id); err != nil {
		return c.showVerification(w, r, v, c.refusal(err))
	}
	return lead(w, r, verificationPath(name, id))
}

type repairPage struct {
	Job, Of   string
	All       bool
	Chosen    []service.DocumentDifference
	Writes    int
	Deletions int // documents that the source did not have
	Names     []string
}

// nameForRepair returns what identifies a document in a form, "" if nothing does. It has no foreign text.
func nameForRepair(d service.DocumentDifference) string {
	if d.Key == "" {
		return ""
	}
	return d.Key + "." + base64.RawURLEncoding.EncodeToString([]byte(d.NS))
}

func (c *console) repair(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, of := r.PathValue("name"), r.PathValue("id")
	what := operate.RepairWhat{All: r.PostForm.Get("which") == "all"}
	if !what.All {
		for _, value := range r.PostForm["document"] {
			key, ns, _ := strings.Cut(value, ".")
			raw, _ := base64.RawURLEncoding.DecodeString(ns)
			what.Documents = append(what.Documents, operate.RepairDocument{NS: string(raw), Key: key})
		}
	}
	if r.PostForm.Get("sure") == "" && (what.All || len(what.Documents) > 0) {
		return c.askRepair(w, r, v, what)
	}
	made, _, err := c.Desk.Repair(r.Context(), v.who, name, r.PostForm.Get("repair"), what.In(of))
	if err != nil {
		return c.showVerification(w, r, v, c.refusal(err))
	}
	return lead(w, r, verificationPath(name, made.Request.ID))
}

func (c *console) askRepair(w http.ResponseWriter, r *http.Request, v *visit, what operate.RepairWhat) error {
	name, of := r.PathValue("name"), r.PathValue("id")
	_, found, err := c.Desk.Verification(r.Context(), v.who, name, of)
	if err != nil {
		return err
	}
	if !v.who.Role.May(service.Operator) || found == nil {
		return c.showVerification(w, r, v,
			said{http.StatusForbidden, "only operators repair, and only what a verification has found", ""})
	}
	p := repairPage{Job: name, Of: of, All: what.All}
	for _, d := range found.Differences {
		if !what.Wants(&d) {
			continue
		}
		if d.Kind == "extra" {
			p.Deletions++
		} else {
			p.Writes++
		}
		p.Chosen, p.Names = append(p.Chosen, d), append(p.Names, nameForRepair(d))
	}
	return c.show(w, "repair", c.page(v, "job", "Repair documents of "+name, p))
}
