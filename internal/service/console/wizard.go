package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/mongo"
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

// The steps of a new job.
const (
	stepConnect = "connect"
	stepChoose  = "choose"
	stepRules   = "rules"
	stepCheck   = "check"
	stepStart   = "start"
)

// step is one in the list of steps.
type step struct{ Key, Title string }

func steps() []step {
	return []step{{stepConnect, "1 Connections"}, {stepChoose, "2 Collections"}, {stepRules, "3 Rules"},
		{stepCheck, "4 Precheck"}, {stepStart, "5 Start"}}
}

// ruleText are rules of a kind, one a line.
type ruleText struct{ Key, Label, Example, Text string }

// option is a setting that takes one of a few words; the first is the usual one.
type option struct {
	Key, Label string
	Values     []string
	Value      string
}

// allow is a setting that has a check pass.
type allow struct {
	Key, Label string
	On         bool
}

// wizard is the form of a new job. It carries the whole draft from step to step.
type wizard struct {
	Step                         string
	Name, Labels, Source, Target string
	Choice                       choice
	Search, After                string
	Texts                        []ruleText
	Sample                       string // the collection whose documents are shown
	Options                      []option
	Allows                       []allow
	More                         string
	Paused                       bool
}

func newWizard() *wizard {
	f := &wizard{Step: stepConnect,
		Texts: []ruleText{
			{Key: "filter", Label: "Filters: which documents are kept", Example: `shop.orders={"state": {"$ne": "draft"}}`},
			{Key: "fields", Label: "Fields: how documents are mapped",
				Example: `shop.customers={"mask": {"card": {"last": 4}}}`},
			{Key: "skip", Label: "Operations that are left out while the job follows", Example: "shop.log=delete"},
			{Key: "soft-delete", Label: "Documents that stay when the source deletes them, with the time in a field",
				Example: "shop.orders=deletedAt"},
		},
		Options: []option{
			{Key: "mode", Label: "What it does", Values: []string{"all", "full", "structure"}},
			{Key: "on-existing", Label: "Collections that the target has already", Values: []string{"fail", "merge", "drop"}},
			{Key: "on-conflict", Label: "Documents that the target refuses", Values: []string{"stop", "skip", "overwrite"}},
		},
		Allows: []allow{
			{Key: "allow-downgrade", Label: "the target may be older than the source"},
			{Key: "allow-missing", Label: "patterns may match nothing yet"},
			{Key: "allow-overlap", Label: "other jobs may have the same collections of the target"},
			{Key: "allow-shard", Label: "source or target may be one shard of a sharded cluster"},
		}}
	for i := range f.Options {
		f.Options[i].Value = f.Options[i].Values[0]
	}
	return f
}

// draft is the job that the form describes.
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

// coded is a name of others in a form: browsers change the ends of lines in it.
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
	f.More = strings.ReplaceAll(form.Get("more"), "\r\n", "\n")
	for i := range f.Texts {
		f.Texts[i].Text = strings.ReplaceAll(form.Get(f.Texts[i].Key), "\r\n", "\n")
	}
	for i := range f.Options {
		o := &f.Options[i]
		if o.Value = o.Values[0]; slices.Contains(o.Values, form.Get(o.Key)) {
			o.Value = form.Get(o.Key)
		}
	}
	for i := range f.Allows {
		f.Allows[i].On = form.Get(f.Allows[i].Key) != ""
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

// chosen applies what has changed in the rows of databases, or of collections. Each row
// says how it was shown.
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

// oneLine is a name as an input of a page has it: without what is not seen, which stays
// in the name until somebody writes another one.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, s))
}

// pass takes a setting that has a check pass.
func (f *wizard) pass(setting string) {
	key, value, _ := strings.Cut(setting, ": ")
	for i := range f.Allows {
		if f.Allows[i].Key == key {
			f.Allows[i].On = true
		}
	}
	for i := range f.Options {
		if o := &f.Options[i]; o.Key == key && slices.Contains(o.Values, value) {
			o.Value = value
		}
	}
}

// newJob is the page of a new job.
type newJob struct {
	*wizard
	Steps    []step
	YAML     string
	Problems config.Problems
	// Found, Plan and Documents are what a worker has said, nil where none was asked.
	Found     *service.Inspection
	Tree      []treeDB
	Plan      *service.DraftPlan
	Documents *service.DraftSample
	// Plain is the other form, with settings as a text, shown open or not.
	Plain draft
	Open  bool
}

// treeDB is a database in the tree.
type treeDB struct {
	Name, Code, To string
	Kept           bool
	Rows           []treeRow
}

// treeRow is a collection in the tree.
type treeRow struct {
	service.InspectedCollection
	Short, Code, To string
	Docs, Size      string
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
			row := treeRow{InspectedCollection: c, Short: short, Code: coded(c.NS), Docs: "–", Size: "–"}
			if row.Kept, target = look(c.NS); target != c.NS {
				row.To = oneLine(target)
			}
			if c.Documents >= 0 {
				row.Docs, row.Size = format.Count(float64(c.Documents)), format.Size(float64(c.Bytes))
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

func (c *console) newPage(w http.ResponseWriter, _ *http.Request, v *visit) error {
	if err := mayMake(v); err != nil {
		return err
	}
	return c.showNew(w, v, newJob{wizard: newWizard()}, fine())
}

func (c *console) showNew(w http.ResponseWriter, v *visit, p newJob, what said) error {
	p.Steps, p.YAML = steps(), p.settings()
	return c.say(w, "new", c.page(v, "new", "New job", p), what)
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
	ctx, cancel := context.WithTimeout(r.Context(), draftTime)
	defer cancel()
	r = r.WithContext(ctx)
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // where it passes, the request is canceled
	_ = rc.SetWriteDeadline(time.Now().Add(draftTime + 20*time.Second))
	if problem != nil { // what was written is mended before anything is done with it
		if p.Step == stepChoose {
			_, _ = c.doStep(w, r, v, &p, "") // the tree, where it can be had
		}
		return c.showNew(w, v, p, said{http.StatusUnprocessableEntity, problem.Error(), "mend it, and go on"})
	}
	done, err := c.doStep(w, r, v, &p, do)
	if done {
		return nil
	}
	what := fine()
	if err != nil {
		if e, ok := errors.AsType[*operate.Error](err); ok {
			p.Problems = e.Problems
		}
		what = c.refusal(err)
	}
	return c.showNew(w, v, p, what)
}

// doStep does what a button is for; done says that the reply is written.
func (c *console) doStep(w http.ResponseWriter, r *http.Request, v *visit, p *newJob, do string) (done bool,
	err error) {
	switch do {
	case "all", "none":
		p.Choice, p.Step, p.After = choice{Some: do == "none", Rename: p.Choice.Rename}, stepChoose, ""
	case "next":
		if p.After, err = url.QueryUnescape(r.PostForm.Get("next")); err != nil {
			return false, &operate.Error{Code: operate.Invalid, Text: "this is no place in the list"}
		}
	case "edit":
		p.Open, p.Plain = true, draft{Name: p.Name, Labels: p.Labels, Settings: p.settings(), Paused: p.Paused}
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
	case p.Step == stepStart:
		_, p.Problems = config.CheckDefinition(d.Name, d.Settings)
	case p.Step == stepCheck:
		if p.Plan, err = c.Desk.PrecheckDraft(r.Context(), v.who, d); err != nil {
			p.Plan = nil
		}
	}
	if err != nil {
		p.Found = nil
	}
	return false, err
}

// begin makes the job.
func (c *console) begin(w http.ResponseWriter, r *http.Request, v *visit, p *newJob,
	d service.Definition) (bool, error) {
	p.Step = stepStart
	d.Wish.Paused = p.Paused
	if _, _, err := c.Desk.Create(r.Context(), v.who, d); err != nil {
		return false, err
	}
	http.Redirect(w, r, "/jobs/"+url.PathEscape(d.Name), http.StatusSeeOther)
	return true, nil
}
