package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
)

// Actions that find something, and that refer later to what was found.
const (
	// Verify has the service compare source and target.
	Verify Action = "verify"
	// Repair repairs what the last Verify listed; Args choose from that. The
	// documents have to be equal then, or the repair has to be rejected by name.
	Repair Action = "repair"
	// Retry tries the open dead letters again.
	Retry Action = "retry"
	// Cutover finalizes the job and waits for that. Collections of the target may have
	// other names when Retry writes documents later.
	Cutover Action = "cutover"
)

// later is what a trial may refer to later.
type later struct {
	dir     string // of the service
	asked   int
	found   []document // by the last Verify
	letters []document // that were open at Cutover
	cut     bool
	wrong   []string
}

// document is one that was named in a collection.
type document struct {
	ns, uuid string
	id       bson.RawValue
}

// exited is the exit code of a command, and all that it has printed.
func exited(out []byte, err error) (code int, text string, _ error) {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.ExitCode(), string(out) + string(ended.Stderr), nil
	}
	return 0, string(out), err
}

// serve starts a service, which has the job from its first start on.
func (p *play) serve(e Event, file string) (*test.Process, error) {
	first := p.later.dir == ""
	if first {
		p.later.dir = p.t.TempDir()
	}
	m := test.StartWith(p.t, []string{"MILLRACE_FAILPOINTS=@" + file}, p.r.Bin,
		append([]string{"serve", "--listen", "127.0.0.1:0", "--data-dir", p.later.dir}, e.Args...)...)
	if !first {
		return m, nil
	}
	settings := map[string]any{"source": p.source.uri(), "target": p.target.uri(), "allow-missing": true}
	if c := kit.Capture(); c != "" { // a service does not pass variables on
		settings["capture"] = c
	}
	for i := 0; i+1 < len(p.tr.Args); i += 2 {
		name := strings.TrimPrefix(p.tr.Args[i], "--")
		switch old := settings[name].(type) {
		case nil:
			settings[name] = p.tr.Args[i+1]
		case string:
			settings[name] = []string{old, p.tr.Args[i+1]}
		case []string:
			settings[name] = append(old, p.tr.Args[i+1])
		}
	}
	b, err := json.Marshal(settings) // as YAML
	if err != nil {
		return m, err
	}
	name := filepath.Join(p.later.dir, "trial.yaml")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), longest(e))
	defer cancel()
	code, text, err := p.jobs(ctx, m, "create", "--name", "trial", "--file", name)
	if err == nil && code != 0 {
		err = errors.New(text)
	}
	return m, err
}

// jobs runs a command for jobs of the service, once that says where it is.
func (p *play) jobs(ctx context.Context, m *test.Process, args ...string) (code int, text string, err error) {
	var at []string
	for at == nil {
		if (&process{Process: m}).over() {
			return 0, "", fmt.Errorf("the service has ended: %w", errLeftOut)
		}
		if at = regexp.MustCompile(`console=(http://[^/]+)`).FindStringSubmatch(m.Output()); at == nil {
			if err := nap(ctx, 5*time.Millisecond); err != nil {
				return 0, "", err
			}
		}
	}
	token, err := os.ReadFile(filepath.Join(p.later.dir, "token"))
	if err != nil {
		return 0, "", err
	}
	return exited(m.Command(ctx, slices.Concat([]string{"jobs"}, args,
		[]string{"--server", at[1], "--token", strings.TrimSpace(string(token))})...))
}

// refer does an action of these.
func (p *play) refer(ctx context.Context, e Event) error {
	m := p.procs[e.Process]
	alive := m != nil && !m.over()
	switch {
	case e.Do == Retry && p.later.cut:
		return p.retryCut(ctx)
	case !alive || p.tr.Served != (e.Do == Verify || e.Do == Repair):
		return fmt.Errorf("it does not run: %w", errLeftOut)
	}
	switch e.Do {
	case Verify:
		return p.verify(ctx, m.Process)
	case Repair:
		return p.repair(ctx, m.Process, e.Args)
	case Cutover:
		return p.cutover(ctx, m.Process)
	}
	_, err := m.Command(ctx, "deadletters", "retry", "--job", "trial", "--target", p.target.uri())
	return err // some may stay open
}

// verify notes what differs, with the UUIDs of the source's collections.
func (p *play) verify(ctx context.Context, m *test.Process) error {
	p.later.asked++
	p.later.found = nil
	var got struct {
		Error, State string
		Findings     struct {
			Differences []struct{ NS, ID string }
		}
	}
	for got.State == "" { // the service hears later than the target that the job follows
		_, text, err := p.jobs(ctx, m, "verify", "--job", "trial", "--id", fmt.Sprint("v", p.later.asked), "--recheck-for",
			"1", "--wait", "--output", "json")
		if err == nil {
			err = json.NewDecoder(strings.NewReader(text)).Decode(&got)
		}
		if err == nil && got.State == "" {
			err = nap(ctx, 20*time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
	}
	uuids, err := collections(ctx, p.source)
	if err != nil {
		return err
	}
	for _, d := range got.Findings.Differences {
		var of struct{ ID bson.RawValue }
		if err := bson.UnmarshalExtJSON([]byte(`{"id":`+d.ID+`}`), false, &of); err != nil {
			return fmt.Errorf("%q: %w", d.ID, err)
		}
		p.later.found = append(p.later.found, document{ns: d.NS, uuid: uuids[d.NS], id: of.ID})
	}
	p.note("           %s: %d documents differ %s", got.State, len(p.later.found), got.Error)
	return nil
}

// repair repairs, and compares what that says with what is so.
func (p *play) repair(ctx context.Context, m *test.Process, args []string) error {
	docs := slices.Clone(p.later.found)
	if i := slices.Index(args, "--ns"); i >= 0 {
		docs = slices.DeleteFunc(docs, func(d document) bool { return d.ns != args[i+1] })
	}
	if len(docs) == 0 {
		return fmt.Errorf("nothing was found: %w", errLeftOut)
	}
	of := fmt.Sprint("v", p.later.asked)
	id := fmt.Sprintf("r%d", len(p.log.String())) // no other has it
	code, text, err := p.jobs(ctx, m,
		slices.Concat([]string{"repair", "--job", "trial", "--of", of, "--id", id, "--wait"}, args)...)
	if err != nil {
		return err
	}
	p.note("           exit code %d: %s", code, strings.ReplaceAll(lastError(text), "\n", " "))
	now, err := collections(ctx, p.source)
	if err != nil {
		return err
	}
	var moved, differ []string
	for _, d := range docs {
		if now[d.ns] != d.uuid {
			moved = append(moved, d.ns)
		}
		for ns, uuid := range now {
			if uuid == d.uuid {
				same, err := p.same(ctx, ns, d.id)
				if err != nil {
					return err
				}
				if !same {
					differ = append(differ, fmt.Sprintf("%s, _id %s", ns, d.id))
				}
			}
		}
	}
	names := slices.ContainsFunc(moved, func(ns string) bool { return strings.Contains(text, ns) })
	switch {
	case code == 0 && len(differ) > 0:
		p.wrong("a repair says that all is the same, but these differ: %s", strings.Join(differ, "; "))
	case code == 0 && len(moved) > 0:
		p.wrong("a repair of %s says that all is the same, though that is another collection now", moved[0])
	case code == 1 && len(differ) == 0, code > 1 && len(moved) == 0:
		p.wrong("a repair fails without a cause: %s", text)
	case code > 1 && !names:
		p.wrong("a repair does not say that %s is another collection now: %s", strings.Join(moved, ", "), text)
	case code == 0:
		for _, d := range docs { // they have to stay equal
			delete(p.claims[readRules(p.tr.Args).target(d.ns)], d.id.String())
		}
	}
	return nil
}

func (p *play) wrong(format string, args ...any) {
	p.later.wrong = append(p.later.wrong, fmt.Sprintf(format, args...))
}

// same reports whether both sides have the same under an _id.
func (p *play) same(ctx context.Context, ns string, id bson.RawValue) (bool, error) {
	var got [2]bson.Raw
	for i, s := range []*side{p.source, p.target} {
		c, err := s.client(ctx)
		if err != nil {
			return false, err
		}
		name := ns
		if s == p.target {
			name = readRules(p.tr.Args).target(ns)
		}
		db, coll, _ := strings.Cut(name, ".")
		got[i], err = c.Database(db).Collection(coll).FindOne(ctx, D("_id", id)).Raw()
		if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return false, err
		}
	}
	return bytes.Equal(got[0], got[1]), nil
}

// collections are the UUIDs of a side's collections by their names.
func collections(ctx context.Context, s *side) (map[string]string, error) {
	c, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	dbs, err := databases(ctx, c)
	out := map[string]string{}
	for _, db := range dbs {
		specs, e := c.Database(db).ListCollectionSpecifications(ctx, D())
		err = errors.Join(err, e)
		for _, spec := range specs {
			if spec.UUID != nil && db != "millrace" {
				out[db+"."+spec.Name] = string(spec.UUID.Data)
			}
		}
	}
	return out, err
}

// cutover finalizes the job, compares, and notes the dead letters that are open.
func (p *play) cutover(ctx context.Context, m *test.Process) error {
	if err := m.Finalize(ctx); err != nil {
		return err
	}
	select {
	case <-m.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if diffs, err := p.differences(ctx); err != nil || len(diffs) > 0 {
		p.wrong("%v%s", err, strings.Join(diffs, "\n"))
	}
	p.later.cut = true
	uuids, err := collections(ctx, p.target)
	if err != nil {
		return err
	}
	open, err := p.openLetters(ctx)
	for _, d := range open {
		d.uuid = uuids[d.ns]
		p.later.letters = append(p.later.letters, d)
	}
	return err
}

func (p *play) openLetters(ctx context.Context) (out []document, err error) {
	c, err := p.target.client(ctx)
	if err != nil {
		return nil, err
	}
	var letters []struct {
		NS string        `bson:"ns"`
		ID bson.RawValue `bson:"documentId"`
	}
	cur, err := c.Database("millrace").Collection("deadletters").Find(ctx, D("job", "trial", "state", "open"))
	if err == nil {
		err = cur.All(ctx, &letters)
	}
	for _, l := range letters {
		out = append(out, document{ns: l.NS, id: l.ID})
	}
	return out, err
}

// retryCut tries the dead letters of a job that was finalized: each goes where it belongs,
// or nowhere.
func (p *play) retryCut(ctx context.Context) error {
	before, err := p.contents(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, p.r.Bin, "deadletters", "retry", "--job", "trial", "--target", p.target.uri())
	code, text, err := exited(cmd.Output())
	if err != nil {
		return err
	}
	p.note("           exit code %d: %s", code, strings.ReplaceAll(text, "\n", " "))
	after, err := p.contents(ctx)
	if err != nil {
		return err
	}
	now, err := collections(ctx, p.target)
	if err != nil {
		return err
	}
	wanted := func(at string) bool {
		return slices.ContainsFunc(p.later.letters,
			func(d document) bool { return at == d.ns+" "+d.id.String() && now[d.ns] == d.uuid })
	}
	for at, doc := range after {
		if doc != before[at] && !wanted(at) {
			p.wrong("a dead letter is written where it does not belong: %s", at)
		}
	}
	open, err := p.openLetters(ctx)
	if err != nil {
		return err
	}
	for _, d := range p.later.letters {
		left := slices.ContainsFunc(open, func(o document) bool { return o.ns == d.ns && o.id.Equal(d.id) })
		switch {
		case !left && after[d.ns+" "+d.id.String()] == "":
			p.wrong("the dead letter of %s, _id %s is closed, and its document is not there", d.ns, d.id)
		case left && now[d.ns] != d.uuid && !strings.Contains(text, d.ns):
			p.wrong("a retry does not name %s: %s", d.ns, text)
		case left && code == 0:
			p.wrong("a retry ends well, and leaves %s, _id %s open", d.ns, d.id)
		}
	}
	return nil
}

// contents are the target's documents by namespace and _id.
func (p *play) contents(ctx context.Context) (map[string]string, error) {
	names, err := collections(ctx, p.target)
	if err != nil {
		return nil, err
	}
	c, err := p.target.client(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for ns := range names {
		docs, err := documents(ctx, c, ns)
		if err != nil {
			return nil, err
		}
		for id, doc := range docs {
			out[ns+" "+id] = string(doc)
		}
	}
	return out, nil
}
