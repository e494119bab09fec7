package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

const (
	// draftTime is how long a worker may look at a draft.
	draftTime = time.Minute
	// treeRows bounds the collections of a page, sampleDocs the documents that are shown.
	treeRows   = 200
	sampleDocs = 5
)

const (
	stepConnect = "connect"
	stepChoose  = "choose"
	stepRules   = "rules"
	stepCheck   = "check"
	stepStart   = "start"
)

type step struct{ Key, Title string }

func steps() []step {
	return []step{{stepConnect, "1 Connections"}, {stepChoose, "2 Collections"}, {stepRules, "3 Rules"},
		{stepCheck, "4 Precheck"}, {stepStart, "5 Start"}}
}

// Beside returns the step so many places after the present one, with no key where there is none.
func (f *wizard) Beside(places int) (s step) {
	i := slices.IndexFunc(steps(), func(s step) bool { return s.Key == f.Step }) + places
	if i >= 0 && i < len(steps()) {
		s = steps()[i]
	}
	return s
}

// setting is one of Values, of which the first is the default, or else rules, one per line.
type setting struct {
	Key, Label, Example string
	Values              []string
	Value               string
}

func (s *setting) set(value string) bool {
	if s.Values != nil && !slices.Contains(s.Values, value) {
		return false
	}
	s.Value = value
	return true
}

// wizard is the form of a new job. It carries the whole draft from step to step.
type wizard struct {
	Step                         string
	Name, Labels, Source, Target string
	Choice                       choice
	Search, After                string
	Sample                       string // the collection whose documents are shown
	Texts, Options, Allows       []setting
	More                         string
	Paused                       bool
	// Edit changes the job of this name instead of making one.
	Edit bool
}

func newWizard() *wizard {
	f := &wizard{Step: stepConnect,
		Texts: []setting{
			{Key: "filter", Label: "Filters: copy only documents that match", Example: `shop.orders={"state": {"$ne": "draft"}}`},
			{Key: "fields", Label: "Fields: map the fields of documents",
				Example: `shop.customers={"mask": {"card": {"last": 4}}}`},
			{Key: "skip", Label: "Skip: leave out operations while the job follows", Example: "shop.log=delete"},
			{Key: "soft-delete", Label: "Soft delete: keep deleted documents, with the deletion time in a field",
				Example: "shop.orders=deletedAt"},
		},
		Options: []setting{
			{Key: "mode", Label: "Mode", Values: []string{"all", "full", "structure"}},
			{Key: onExisting, Label: "If the target has a collection already", Values: []string{"fail", "merge", "drop"}},
			{Key: "on-conflict", Label: "If the target refuses a document", Values: []string{"stop", "skip", "overwrite"}},
		},
		Allows: []setting{
			{Key: "allow-downgrade", Label: "the target may be older than the source"},
			{Key: "allow-missing", Label: "patterns may match nothing yet"},
			{Key: "allow-overlap", Label: "other jobs may have the same collections of the target"},
			{Key: "allow-shard", Label: "source or target may be one shard of a sharded cluster"},
		}}
	for i := range f.Allows {
		f.Allows[i].Values = []string{"false", "true"}
	}
	for s := range f.fields() {
		if s.Values != nil {
			s.Value = s.Values[0]
		}
	}
	return f
}

func (f *wizard) fields() iter.Seq[*setting] {
	return func(yield func(*setting) bool) {
		for _, list := range [][]setting{f.Texts, f.Options, f.Allows} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

func (f *wizard) field(key string) *setting {
	for s := range f.fields() {
		if s.Key == key {
			return s
		}
	}
	return nil
}

func (f *wizard) draft() (d service.Definition, _ error) {
	labels, err := service.ParseLabels(strings.Fields(f.Labels))
	switch {
	case err != nil:
		return d, &operate.Error{Code: operate.Invalid, Text: err.Error(), Hint: "separate labels by spaces"}
	case f.Choice.Some && len(f.Choice.Include) == 0 && f.Step != stepConnect && f.Step != stepChoose:
		return d, &operate.Error{Code: operate.Invalid, Text: "no collection is chosen",
			Hint: "choose at least one"}
	}
	return service.Definition{Name: f.Name, Settings: f.settings(), Labels: labels}, nil
}

// coded encodes a name for a form: browsers change the ends of lines in it.
func coded(name string) string { return url.QueryEscape(name) }

func decoded(list []string) ([]string, error) {
	out := make([]string, 0, len(list))
	for _, s := range list {
		name, err := url.QueryUnescape(s)
		if err != nil {
			return nil, errors.New("the form cannot be read")
		}
		out = append(out, name)
	}
	return out, nil
}

// read reads a form, and applies what was chosen in the tree. An error says what of it
// could not be; the rest counts.
func (f *wizard) read(form url.Values) error {
	text := func(key string) string { return strings.TrimSpace(form.Get(key)) }
	if i := slices.IndexFunc(steps(), func(s step) bool { return s.Key == text("step") }); i >= 0 {
		f.Step = steps()[i].Key
	}
	f.Name, f.Labels, f.Source, f.Target = text("name"), text("labels"), text("source"), text("target")
	f.Search, f.Sample, f.Paused = text("q"), text("sample"), form.Get("paused") != ""
	f.Edit = form.Get("edit") != ""
	f.More = strings.ReplaceAll(form.Get("more"), "\r\n", "\n")
	for s := range f.fields() {
		if !s.set(strings.ReplaceAll(form.Get(s.Key), "\r\n", "\n")) {
			s.Value = s.Values[0]
		}
	}
	var err [4]error
	f.Choice.Some = form.Get("some") != ""
	f.Choice.Include, err[0] = decoded(form["include"])
	f.Choice.Exclude, err[1] = decoded(form["exclude"])
	f.Choice.Rename, err[2] = decoded(form["rename"])
	f.After, err[3] = url.QueryUnescape(form.Get("after"))
	for key, value := range map[string]*string{"source": &f.Source, "target": &f.Target} {
		if mongo.HasPassword(*value) { // which the page would show
			*value = ""
			return fmt.Errorf("%s holds a password: write env:NAME or file:NAME, and give the connection string to the "+
				"workers under that name", key)
		}
	}
	if err := errors.Join(err[:]...); err != nil {
		return err
	}
	return errors.Join(f.Choice.add(form.Get("addinclude"), form.Get("addexclude")),
		f.chosen(form, "db", f.Choice.toggleDB), f.chosen(form, "", f.Choice.toggle))
}

// chosen applies the changed rows of databases, or of collections. Each row carries what it showed.
func (f *wizard) chosen(form url.Values, kind string, toggle func(string, bool) error) error {
	shown, to := form["shown"+kind], form["to"+kind]
	if len(shown) != len(to) {
		return errors.New("the form cannot be read")
	}
	keep := map[string]bool{}
	for _, name := range form["keep"+kind] {
		keep[name] = true
	}
	var problems []error
	for i, row := range shown {
		parts := strings.Split(row, " ")
		names, err := decoded(parts[1:])
		if err != nil || len(names) != 2 {
			return errors.New("the form cannot be read")
		}
		name, was := names[0], names[1]
		if on := keep[parts[1]]; on != (parts[0] == "1") {
			problems = append(problems, toggle(name, on))
		}
		if oneLine(to[i]) != oneLine(was) {
			problems = append(problems, f.Choice.rename(name, to[i]))
		}
	}
	return errors.Join(problems...)
}

// oneLine is a name as an input shows it, without invisible characters. They stay in the name until it is changed.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, s))
}

func (f *wizard) pass(setting string) {
	key, value, _ := strings.Cut(setting, ": ")
	if s := f.field(key); s != nil {
		s.set(value)
	}
}

type newJob struct {
	*wizard
	Steps    []step
	YAML     string
	Problems config.Problems
	// Found, Plan and Documents are a worker's answers, nil where none was asked.
	Found     *service.Inspection
	Tree      []treeDB
	Plan      *service.DraftPlan
	Documents *service.DraftSample
	// Drops are asked for before the job starts.
	Drops *drops
	// Plain is the other form, with settings as a text, shown open or not.
	Plain draft
	Open  bool
}

type treeDB struct {
	Name, Code, To string
	Kept           bool
	Rows           []treeRow
}

type treeRow struct {
	service.InspectedCollection
	Short, Code, To string
}

func (f *wizard) tree(found *service.Inspection) (out []treeDB) {
	look := f.Choice.look()
	for _, db := range found.Databases {
		one := treeDB{Name: db.Name, Code: coded(db.Name)}
		kept, target := look(db.Name + "." + later)
		if to, _ := mongo.SplitNS(target); to != db.Name {
			one.To = oneLine(to)
		}
		one.Kept = kept
		for _, c := range db.Collections {
			_, short := mongo.SplitNS(c.NS)
			row := treeRow{InspectedCollection: c, Short: short, Code: coded(c.NS)}
			if row.Kept, target = look(c.NS); target != c.NS {
				row.To = oneLine(target)
			}
			one.Rows = append(one.Rows, row)
		}
		out = append(out, one)
	}
	return out
}

func mayMake(v *visit) error {
	if v.who.Role.May(service.Admin) {
		return nil
	}
	return said{http.StatusForbidden, "the role " + string(v.who.Role) + " may not make jobs",
		"ask for a token of the role admin"}
}

func (c *console) newPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := mayMake(v); err != nil {
		return err
	}
	p, q := newJob{wizard: newWizard()}, r.URL.Query()
	if from := cmp.Or(q.Get("edit"), q.Get("copy")); from != "" {
		j, err := c.Desk.Job(v.who, from)
		if err != nil {
			return err
		}
		if q.Has("edit") && !j.Untouched() {
			return said{http.StatusConflict, "job " + from + " may have written to its target, so its settings stay",
				"make a new job from a copy of it"}
		}
		p.take(&j.Definition, q.Has("edit"))
	}
	return c.showNew(w, v, p, nil)
}

// take fills the form from a definition, which also has a form of its own where the steps cannot hold all settings.
func (p *newJob) take(d *service.Definition, edit bool) {
	name := d.Name
	if !edit {
		name += "-copy"
	}
	if !p.fill(d.Settings) {
		p.wizard = newWizard()
		p.Open, p.Plain.Settings = true, d.Settings
	}
	p.Name, p.Labels, p.Edit = name, strings.Join(service.LabelTexts(d.Labels), " "), edit
	p.Plain.Name, p.Plain.Labels, p.Plain.Edit = name, p.Labels, edit
}

func (c *console) showNew(w http.ResponseWriter, v *visit, p newJob, err error) error {
	if e, ok := errors.AsType[*operate.Error](err); ok {
		p.Problems = e.Problems
	}
	p.Steps, p.YAML = steps(), p.settings()
	title := "New job"
	if p.Edit {
		title = "Edit " + p.Name
	}
	return c.say(w, "new", c.page(v, "new", title, p), c.outcome(err))
}

// shape is the form of a new job: each of its buttons leads to a step, or does what the
// step is for.
func (c *console) shape(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := mayMake(v); err != nil {
		return err
	}
	p := newJob{wizard: newWizard()}
	problem := p.read(r.PostForm)
	do := r.PostForm.Get("do")
	if setting := r.PostForm.Get("pass"); setting != "" {
		p.pass(setting)
		do = stepCheck
	}
	if i := slices.IndexFunc(steps(), func(s step) bool { return s.Key == do }); i >= 0 && problem == nil {
		if p.Step = do; do == stepChoose {
			p.After = ""
		}
	}
	r, cancel := patient(w, r)
	defer cancel()
	if problem != nil { // nothing is done with a form that has one
		if p.Step == stepChoose {
			_, _ = c.doStep(w, r, v, &p, "") // the tree, if a worker answers
		}
		return c.showNew(w, v, p, said{http.StatusUnprocessableEntity, problem.Error(), "correct it, and go on"})
	}
	done, err := c.doStep(w, r, v, &p, do)
	if done {
		return nil
	}
	return c.showNew(w, v, p, err)
}

func patient(w http.ResponseWriter, r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), draftTime)
	server.Extend(w, draftTime+20*time.Second)
	return r.WithContext(ctx), cancel
}

func (c *console) doStep(w http.ResponseWriter, r *http.Request, v *visit, p *newJob, do string) (done bool,
	err error) {
	switch do {
	case "all", "none":
		p.Choice, p.Step, p.After = choice{Some: do == "none", Rename: p.Choice.Rename}, stepChoose, ""
	case "next":
		if p.After, err = url.QueryUnescape(r.PostForm.Get("next")); err != nil {
			return false, &operate.Error{Code: operate.Invalid, Text: "the position in the list is not valid"}
		}
	case "edit":
		p.Open, p.Plain = true, draft{Name: p.Name, Labels: p.Labels, Settings: p.settings(), Paused: p.Paused, Edit: p.Edit}
		return false, nil
	case "download":
		name := "job"
		if service.CheckName(p.Name) == nil {
			name = p.Name
		}
		w.Header().Set("Content-Type", "application/yaml")
		w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.yaml"`)
		_, _ = w.Write([]byte(p.settings()))
		return true, nil
	}
	d, err := p.draft()
	if err != nil {
		return false, err
	}
	switch {
	case do == "test":
		p.Found, err = c.Desk.InspectDraft(r.Context(), v.who, d, service.InspectAsk{})
	case do == "create":
		return c.begin(w, r, v, p, d)
	case do == "sample":
		p.Documents, err = c.Desk.SampleDraft(r.Context(), v.who, d, service.SampleAsk{NS: p.Sample, Docs: sampleDocs})
		if err != nil {
			p.Documents = nil
		}
		return false, err
	case p.Step == stepChoose:
		if p.Found, err = c.Desk.InspectDraft(r.Context(), v.who, d,
			service.InspectAsk{After: p.After, Search: p.Search, Limit: treeRows}); err == nil {
			p.Tree = p.tree(p.Found)
		}
	case p.Step == stepCheck || p.Step == stepStart:
		if p.Plan, err = c.Desk.PrecheckDraft(r.Context(), v.who, d); err != nil {
			p.Plan = nil
		} else if p.Step == stepStart {
			p.Drops = dropsOf(d, p.Plan)
		}
	}
	if err != nil {
		p.Found = nil
	}
	return false, err
}

func (c *console) begin(w http.ResponseWriter, r *http.Request, v *visit, p *newJob,
	d service.Definition) (done bool, err error) {
	p.Step = stepStart
	d.Desired.Paused = p.Paused
	if p.Drops, err = c.start(r, v, d, p.Edit); err != nil {
		return false, err
	}
	return true, lead(w, r, "/jobs/"+url.PathEscape(d.Name))
}
