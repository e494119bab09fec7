package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/api"
	clitest "github.com/millrace/millrace/test/cli"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// asProgram makes this test's binary behave as the program.
const asProgram = "MILLRACE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is the real program on a pair of real clusters.
type program struct {
	t              *testing.T
	source, target string
	env            []string
	state          string
}

func newProgram(t *testing.T, source, target string) *program {
	state := t.TempDir()
	return &program{t: t, source: source, target: target, state: state,
		env: append(os.Environ(), asProgram+"=1", "XDG_STATE_HOME="+state, "MILLRACE_SOURCE="+source,
			"MILLRACE_TARGET="+target)}
}

// command prepares a run that is killed at the end of the test, should it
// still be there.
func (p *program) command(args ...string) (cmd *exec.Cmd, stdout, stderr *clitest.Output) {
	cmd = exec.CommandContext(p.t.Context(), os.Args[0], args...)
	stdout, stderr = new(clitest.Output), new(clitest.Output)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, stdout, stderr
	return cmd, stdout, stderr
}

// run waits for the program's end.
func (p *program) run(args ...string) (code int, stdout, stderr string) {
	p.t.Helper()
	cmd, out, errs := p.command(args...)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// status of the one running sync.
func (p *program) status() (job.Status, bool) {
	rec, err := server.Registry{Dir: filepath.Join(p.state, "millrace", "run")}.Find(p.t.Context(), server.Wanted{})
	if err != nil {
		return job.Status{}, false
	}
	c := api.NewRecordClient(rec)
	defer c.Close()
	j, err := c.Job(p.t.Context(), rec.Job)
	if err != nil {
		return job.Status{}, false
	}
	return *j.Report.Status, true
}

func (p *program) waitFor(what string, stderr *clitest.Output, ok func(job.Status) bool) {
	p.t.Helper()
	deadline := time.Now().Add(time.Minute)
	var last job.Status
	for {
		s, running := p.status()
		if running && ok(s) {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("no %s; last status %+v\n%s", what, last, stderr)
		}
		last = s
		time.Sleep(20 * time.Millisecond)
	}
}

func insert(t *testing.T, c *driver.Client, db string, from, to int) {
	t.Helper()
	docs := make([]any, 0, to-from)
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "text", Value: strings.Repeat("x", 100)}})
	}
	if _, err := c.Database(db).Collection("orders").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

// The program itself on real servers.
func TestOnRealServers(t *testing.T) {
	source, target := lab.ForTest(t, lab.Options{}).URI(), lab.ForTest(t, lab.Options{}).URI()
	t.Run("existing target", func(t *testing.T) { existingTarget(t, newProgram(t, source, target)) })
	t.Run("spool", func(t *testing.T) { spoolChecked(t, newProgram(t, source, target)) })
	t.Run("cut-over", func(t *testing.T) { planToCutOver(t, newProgram(t, source, target)) })
	t.Run("way back", func(t *testing.T) { wayBackAgain(t, newProgram(t, source, target), newProgram(t, target, source)) })
	t.Run("hostile names", func(t *testing.T) { hostileNames(t, newProgram(t, source, target)) })
	t.Run("debug", func(t *testing.T) { looks(t, newProgram(t, source, target)) })
}

// rehearsed: a dry run tells of each rule what it does to documents of the source.
func rehearsed(t *testing.T, p *program) {
	args := []string{"sync", "--dry-run", "--include=shop", `--filter=shop.orders={"_id":{"$lt":2500}}`,
		"--skip=shop.*=delete,drop", "--soft-delete=shop.*=deletedAt",
		`--fields=shop.orders={"set": {"v": 2}, "drop": ["none"], "convert": {"_n": {"to": "int"}}}`}
	code, out, stderr := p.run(append(args, "--output=json")...)
	var plan job.Plan
	if err := json.Unmarshal([]byte(out), &plan); code != cli.ExitOK || err != nil || len(plan.Rules) != 4 {
		t.Fatalf("%d %v\n%s%s", code, err, out, stderr)
	}
	filter, mapped, skip, soft := plan.Rules[0], plan.Rules[1], plan.Rules[2], plan.Rules[3]
	if filter.Docs != 1000 || filter.Kept < 350 || filter.Kept > 650 || mapped.Docs != filter.Kept ||
		mapped.Changed != filter.Kept || mapped.Failed != 0 ||
		len(mapped.Parts) != 3 || mapped.Parts[0].Changed != filter.Kept || mapped.Parts[1].Changed != 0 ||
		!slices.Equal(skip.Skipped, []string{"delete", "drop"}) ||
		skip.Collections != 1 || soft.Docs != filter.Kept || soft.Marked != 0 {
		t.Errorf("%+v", plan.Rules)
	}
	if _, out, _ := p.run(args...); !strings.Contains(out, "left out: delete, drop") ||
		!strings.Contains(out, `set → "v"`) {
		t.Error(out)
	}
	code, out, stderr = p.run("sync", "--dry-run", "--include=shop", "--soft-delete=shop.*=text",
		`--fields=shop.orders={"convert": {"text": {"to": "int"}}}`)
	if code != cli.ExitOK || !strings.Contains(out, "1,000 of 1,000 sampled documents cannot be mapped") ||
		!strings.Contains(out, "1,000 of 1,000 sampled documents already have the field") {
		t.Errorf("%d\n%s%s", code, out, stderr)
	}
}

// planToCutOver is the whole way of an operator.
func planToCutOver(t *testing.T, p *program) {
	source := kit.Client(t, p.source)
	insert(t, source, "shop", 0, 5000)

	code, out, stderr := p.run("sync", "--dry-run", "--output=json", "--include=shop", "--rename=shop=store")
	var plan job.Plan
	if err := json.Unmarshal([]byte(out), &plan); code != cli.ExitOK || err != nil || len(plan.Collections) != 1 ||
		plan.Collections[0].Target != "store.orders" {
		t.Fatalf("dry run: %d %v\n%s%s", code, err, out, stderr)
	}

	code, out, stderr = p.run("sync", "--dry-run", "--output=json", "--include=shop",
		`--filter=shop.orders={"_id":{"$lt":2500}}`)
	if err := json.Unmarshal([]byte(out), &plan); code != cli.ExitOK || err != nil || plan.Collections[0].Sample == nil ||
		plan.Collections[0].Sample.Docs != 1000 ||
		plan.Collections[0].Sample.Kept < 350 || plan.Collections[0].Sample.Kept > 650 {
		t.Errorf("dry run with a filter: %d %v\n%s%s", code, err, out, stderr)
	}
	for filter, want := range map[string]string{`shop.order={"a":1}`: "matches nothing",
		`shop.orders={"a":{"$near":1}}`: "$near"} {
		if code, out, stderr := p.run("sync", "--dry-run", "--include=shop", "--filter="+filter); code != cli.ExitUsage ||
			!strings.Contains(out+stderr, want) {
			t.Errorf("filter %s: %d\n%s%s", filter, code, out, stderr)
		}
	}
	for skip, want := range map[string]string{"shop.order=delete": "matches nothing",
		"shop.orders=deletes": "no operation", "shop.*=dropDatabase": "write drop"} {
		if code, out, stderr := p.run("sync", "--dry-run", "--include=shop", "--skip="+skip); code != cli.ExitUsage ||
			!strings.Contains(out+stderr, want) {
			t.Errorf("skip %s: %d\n%s%s", skip, code, out, stderr)
		}
	}

	rehearsed(t, p)

	// An interrupt keeps the checkpoint, the same command goes on from it.
	sync, _, errs := p.command("sync", "--include=shop.*", "--rename=shop=store")
	if err := sync.Start(); err != nil {
		t.Fatal(err)
	}
	p.waitFor("following", errs, func(s job.Status) bool { return s.Phase == job.PhaseFollowing })
	if err := sync.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = sync.Wait()
	if code := sync.ProcessState.ExitCode(); code != cli.ExitOK ||
		!strings.Contains(errs.String(), "the same command resumes it") {
		t.Fatalf("interrupted: %d\n%s", code, errs)
	}

	insert(t, source, "shop", 5000, 6000)
	sync, report, errs := p.command("sync", "--include=shop.*", "--rename=shop=store", "--output=json")
	if err := sync.Start(); err != nil {
		t.Fatal(err)
	}
	p.waitFor("following", errs, func(s job.Status) bool { return s.Phase == job.PhaseFollowing })
	insert(t, source, "shop", 6000, 7000)
	if code, out, stderr := p.run("status"); code != cli.ExitOK || !strings.Contains(out, "following") {
		t.Errorf("status: %d\n%s%s", code, out, stderr)
	}
	if code, out, stderr := p.run("finalize"); code != cli.ExitOK || !strings.Contains(out, "finalized at") {
		t.Errorf("finalize: %d\n%s%s", code, out, stderr)
	}
	if err := sync.Wait(); err != nil {
		t.Fatalf("sync: %v\n%s", err, errs)
	}
	var sum summary
	if err := json.Unmarshal([]byte(report.String()), &sum); err != nil || !sum.Finalized || !sum.Plan.Resumes {
		t.Errorf("summary: %v\n%s", err, report)
	}
	verifyBothWays(t, p, kit.Client(t, p.target))
}

// verifyBothWays expects no difference, makes some and expects them.
func verifyBothWays(t *testing.T, p *program, target *driver.Client) {
	t.Helper()
	if code, out, stderr := p.run("verify", "--include=shop.*", "--rename=shop=store"); code != cli.ExitOK ||
		!strings.Contains(out, "nothing differs") || !strings.Contains(out, "7000") {
		t.Errorf("verify: %d\n%s%s", code, out, stderr)
	}
	store := target.Database("store")
	if _, err := store.Collection("orders").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 17}}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Collection("more").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "surplus"}}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "verify.json")
	code, out, stderr := p.run("verify", "--include=shop.*", "--rename=shop=store", "--recheck-for=0", "--report="+file)
	if code != cli.ExitFailure {
		t.Errorf("verify: %d\n%s%s", code, out, stderr)
	}
	for _, w := range []string{"missing: shop.orders", "extra: shop.more", "surplus",
		"millrace: the clusters differ: 2 documents"} {
		if !strings.Contains(out+stderr, w) {
			t.Errorf("%q is not in\n%s%s", w, out, stderr)
		}
	}
	if raw := read(t, file); !json.Valid([]byte(raw)) || !bytes.Contains([]byte(raw), []byte("surplus")) {
		t.Errorf("report: %s", raw)
	}
}

// wayBackAgain cuts over beside somebody else's database, is asked once more, and
// falls back with what was written to the target since.
func wayBackAgain(t *testing.T, p, reverse *program) {
	source, target := kit.Client(t, p.source), kit.Client(t, p.target)
	insert(t, source, "back", 0, 100)
	insert(t, target, "reporting", 0, 10)
	args := []string{"sync", "--exclude=shop", "--exclude=crm", "--until=caught-up", "--verify"}
	code, out, stderr := p.run(append(args, "--output=json")...)
	var sum summary
	if err := json.Unmarshal([]byte(out), &sum); err != nil || code != cli.ExitOK || !sum.Finalized || sum.Already ||
		sum.Verify == nil || sum.Status.TargetPosition == "" {
		t.Fatalf("beside another database: %d %v\n%s%s", code, err, out, stderr)
	}
	if notes := strings.Join(sum.Verify.Notes, ""); !strings.Contains(notes,
		"database reporting of the target was not compared") {
		t.Errorf("notes: %q", notes)
	}
	from := sum.Status.TargetPosition

	orders := target.Database("back").Collection("orders")
	insert(t, target, "back", 100, 150)
	if _, err := orders.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: "y"}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := orders.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 2}}); err != nil {
		t.Fatal(err)
	}
	code, out, stderr = p.run(args[:len(args)-1]...)
	if code != cli.ExitOK || !strings.Contains(out, "already finalized at 20") || !strings.Contains(out, "nothing done") ||
		!strings.Contains(out, "stands at "+from) || !strings.Contains(out, "millrace reverse --job ") {
		t.Errorf("once more: %d\n%s%s", code, out, stderr)
	}
	if code, out, stderr = p.run(args...); code != cli.ExitFailure || !strings.Contains(out, "nothing done") ||
		!strings.Contains(stderr, "the clusters differ: 52 documents") {
		t.Errorf("once more, compared: %d\n%s%s", code, out, stderr)
	}

	if code, out, stderr = reverse.run("sync", "--mode=incremental", "--start-at="+from, "--include=back.*",
		"--until=caught-up", "--verify"); code != cli.ExitOK {
		t.Errorf("fall back: %d\n%s%s", code, out, stderr)
	}
	if code, out, stderr = p.run("verify", "--include=back.*"); code != cli.ExitOK || !strings.Contains(out, "149") {
		t.Errorf("verify: %d\n%s%s", code, out, stderr)
	}
	for want, args := range map[string][]string{"same deployment": {"--target=" + p.source},
		"--include baack.* matches nothing": {"--include=baack"}} {
		if code, out, stderr = p.run(append([]string{"verify"}, args...)...); code != cli.ExitUsage ||
			!strings.Contains(stderr, want) || strings.Contains(out, "nothing differs") {
			t.Errorf("verify %v: %d\n%s%s", args, code, out, stderr)
		}
	}
}

// existingTarget holds data already and is refused before anything is written.
func existingTarget(t *testing.T, p *program) {
	insert(t, kit.Client(t, p.source), "crm", 0, 10)
	target := kit.Client(t, p.target)
	insert(t, target, "crm", 0, 1)
	code, out, stderr := p.run("sync", "--include=crm.*", "--until=caught-up")
	if code != cli.ExitUsage || !strings.Contains(stderr, "crm.orders") || !strings.Contains(stderr, "--on-existing") ||
		out != "" {
		t.Errorf("%d\n%s%s", code, out, stderr)
	}
	names, err := target.ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: "millrace"}})
	if err != nil || len(names) != 0 {
		t.Errorf("something was written: %v, %v", names, err)
	}
	if code, _, stderr := p.run("sync", "--include=crm.*", "--until=caught-up", "--on-existing=drop",
		"--verify"); code != cli.ExitOK {
		t.Errorf("drop: %d\n%s", code, stderr)
	}
	if code, _, stderr := p.run("verify", "--include=crm.*"); code != cli.ExitOK {
		t.Errorf("verify: %d\n%s", code, stderr)
	}
}

// spoolChecked: the directory of the spool is looked at before anything is written.
func spoolChecked(t *testing.T, p *program) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(file, "spool")
	for _, args := range [][]string{{"--dry-run"}, {"--until=caught-up"}} {
		code, out, stderr := p.run(append([]string{"sync", "--include=spool.*", "--allow-missing", "--spool-dir=" + wrong},
			args...)...)
		// A table wraps its texts.
		all := strings.Join(strings.Fields(out+stderr), " ")
		if code != cli.ExitUsage || !strings.Contains(all, "a file is in the place of a directory") &&
			!strings.Contains(all, "not a directory") {
			t.Errorf("%v: %d\n%s%s", args, code, out, stderr)
		}
	}
	jobs := kit.Client(t, p.target).Database("millrace").Collection("jobs")
	if n, err := jobs.CountDocuments(t.Context(), bson.D{{Key: "rules", Value: "include spool.*"}}); err != nil || n != 0 {
		t.Errorf("something was written: %d jobs, %v", n, err)
	}
	for _, good := range [][]string{{"--spool-dir=" + wrong, "--spool-max=0"},
		{"--spool-dir=" + wrong, "--mode=incremental", "--start-at=1700000000:1"}} {
		if _, out, stderr := p.run(append([]string{"sync", "--include=spool.*", "--allow-missing", "--dry-run"},
			good...)...); strings.Contains(out+stderr, "local disk") {
			t.Errorf("%v: a spool that is not wanted is looked at:\n%s%s", good, out, stderr)
		}
	}
	if code, out, stderr := p.run("sync", "--include=spool.*", "--allow-missing", "--dry-run", "--spool-dir="+t.TempDir(),
		"--warn-window=100000h", "--spool-max=1000000TB"); code != cli.ExitOK || !strings.Contains(out, "--spool-max") {
		t.Errorf("no room: %d\n%s%s", code, out, stderr)
	}
}

// hostileNames has servers hold names and values that mean to act on a terminal.
func hostileNames(t *testing.T, p *program) {
	for i, uri := range []string{p.source, p.target} {
		c := kit.Client(t, uri).Database("odd").Collection(hostile)
		if _, err := c.InsertOne(t.Context(),
			bson.D{{Key: "_id", Value: hostile + fmt.Sprint(i)}, {Key: "k", Value: hostile}}); err != nil {
			t.Fatal(err)
		}
		index := driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}},
			Options: options.Index().SetName(hostile + fmt.Sprint(i)).SetUnique(true)}
		if _, err := c.Indexes().CreateOne(t.Context(), index); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"sync", "--until=caught-up"}, {"sync", "--dry-run"}, {"sync", "--until=caught-up", "--on-existing=merge"},
		{"verify", "--recheck-for=0"},
		{"debug", "oplog", "--values"}, {"sync", "--until=caught-up", "--on-existing=drop", "--restart", "--verify"},
		{"debug", "slices", "--job=odd"},
	} {
		if args[0] == "sync" {
			args = append(args, "--job=odd")
		}
		if args[1] != "slices" {
			args = append(args, "--include=odd")
		}
		for _, form := range []string{"text", "json"} {
			code, out, stderr := p.run(append(args, "--output="+form)...)
			if !strings.Contains(out+stderr, "x"+`\u001b`) && !strings.Contains(out+stderr, `x\x1b`) {
				t.Errorf("%v: %d, the name is not shown:\n%s%s", args, code, out, stderr)
			}
			harmless(t, strings.Join(args, " "), out+stderr)
		}
	}
}

// Each signal is a proper end, and a second one ends a program that does not end
// by itself: nobody answers at the address, so that the first finds it waiting.
func TestSignalsEndTheProgram(t *testing.T) {
	// Under nohup this process ignores the hangup, and its children would too;
	// what it catches they do not inherit.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for signal, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129} {
		t.Run(signal.String(), func(t *testing.T) {
			p := newProgram(t, "mongodb://127.0.0.1:1/?replicaSet=x", "mongodb://127.0.0.1:1/?replicaSet=x")
			cmd, stdout, stderr := p.command("sync", "--output=json")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			for i := 0; !strings.Contains(stderr.String(), "connecting"); i++ {
				time.Sleep(20 * time.Millisecond)
				if i > 1000 {
					t.Fatal("it does not begin")
				}
			}
			for i := 0; ; i++ {
				_ = cmd.Process.Signal(signal)
				select {
				case <-ended:
					if code := cmd.ProcessState.ExitCode(); code != want {
						t.Errorf("code %d: %s", code, stderr)
					}
					if i == 0 && !strings.HasPrefix(stdout.String(), `{"error":"stopped by `) {
						t.Errorf("%s", stdout)
					}
					return
				case <-time.After(5 * time.Second):
					if i > 3 {
						t.Fatal(fmt.Errorf("it does not end: %s", stderr))
					}
				}
			}
		})
	}
}
