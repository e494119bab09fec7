package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/history"
)

// Runner plays trials. Clusters stay from one trial to the next of the same
// shape. It belongs to one goroutine.
type Runner struct {
	// Bin is the program under test, built with the tag failpoint.
	Bin string
	// WaitLimit bounds a run of the job at the end; 0 is four minutes.
	WaitLimit time.Duration

	mu    sync.Mutex
	sides []*side // the last used at the end
}

// kept is how many clusters stay.
const kept = 4

// side is a cluster of a shape: one that is there, or a new one.
func (r *Runner) side(ctx context.Context, name string, shape Shape) (*side, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprint(name, shape)
	i := slices.IndexFunc(r.sides, func(s *side) bool { return fmt.Sprint(s.name, s.shape) == key })
	if i >= 0 {
		s := r.sides[i]
		r.sides = append(slices.Delete(r.sides, i, i+1), s)
		return s, nil
	}
	for len(r.sides) >= kept {
		if err := r.sides[0].close(); err != nil {
			return nil, err
		}
		r.sides = r.sides[1:]
	}
	s, err := openSide(ctx, name, shape)
	if err == nil {
		r.sides = append(r.sides, s)
	}
	return s, err
}

// broken gives up a cluster that does not recover.
func (r *Runner) broken(s *side) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sides = slices.DeleteFunc(r.sides, func(x *side) bool { return x == s })
	_ = s.close()
}

// Close ends the clusters.
func (r *Runner) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, s := range r.sides {
		errs = append(errs, s.close())
	}
	r.sides = nil
	return errors.Join(errs...)
}

// process is a millrace.
type process struct {
	*test.Process
	points string // file of its rules
	seen   int    // how much of its output was looked at for points
	halted bool
	heard  bool // its end was noted
}

func (p *process) over() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(p.Pid(), s) }

// end ends a process that may be halted.
func (p *process) end() {
	if !p.over() {
		p.signal(syscall.SIGKILL)
	}
	<-p.Done()
}

// play is one trial under way.
type play struct {
	t              *testing.T
	r              *Runner
	tr             Trial
	source, target *side
	procs          map[int]*process
	steps          *history.Runner
	aside          sync.WaitGroup
	began          time.Time
	mu             sync.Mutex
	log            strings.Builder
	foreign        bool              // somebody else has written to the target
	reported       bool              // since then a process has ended over a conflict
	claims         claims            // what they have written
	met            bool              // the source has written a whole document, or deleted one, that they had changed
	fell           string            // why a process has ended by itself
	open           bool              // steps of transactions: others may have to wait for them
	startAt        string            // position of a clone
	keep           map[string]string // checksums
	model          *model            // of a trial that is judged by commands
	dropped        []string          // namespaces that somebody else has dropped on the target
	retained       *retainedModel    // of what the target is to have; nil is what the source has
	later          later
}

// Run plays a trial and judges it. An error is one of the machinery: it says
// nothing of millrace.
func (r *Runner) Run(ctx context.Context, t *testing.T, tr Trial) (res Result, err error) {
	t.Helper()
	p := &play{t: t, r: r, tr: tr, procs: map[int]*process{}, began: time.Now(), keep: map[string]string{},
		claims: claims{}}
	if tr.Retained {
		p.retained = newRetained(tr.Args)
	}
	if p.source, err = r.side(ctx, Source, tr.Source); err != nil {
		return res, err
	}
	if p.target, err = r.side(ctx, Target, tr.Target); err != nil {
		return res, err
	}
	for _, s := range []*side{p.source, p.target} {
		if err := s.clean(ctx); err != nil {
			r.broken(s)
			return res, err
		}
	}
	defer p.endAll()
	if tr.Commands {
		p.model = newModel(tr.Args)
	}
	p.began = time.Now()
	for _, e := range tr.Events {
		p.event(ctx, e)
		if ctx.Err() != nil {
			break
		}
	}
	settled := p.settles(ctx)
	if err := p.heal(ctx); err != nil {
		return res, err
	}
	if res = p.judge(ctx); !settled && res.Right() {
		res.Verdict, res.Message = Stuck, "only when it was started again did the job go on"
	}
	res.Took, res.Log = time.Since(p.began), p.log.String()
	if p.model != nil && p.model.err != nil {
		return res, p.model.err
	}
	return res, ctx.Err()
}

// event does one event and notes how it went.
func (p *play) event(ctx context.Context, e Event) {
	at := time.Since(p.began)
	ctx, cancel := context.WithTimeout(ctx, longest(e))
	err := p.do(ctx, e)
	cancel()
	how := "ok"
	if err != nil {
		how = err.Error()
	}
	text := e.String()
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	p.note("%7.3f s  %s: %.400s (%d ms)", at.Seconds(), text, how, (time.Since(p.began) - at).Milliseconds())
}

// longest bounds an event: a writer does not wait for a majority that is held.
func longest(e Event) time.Duration {
	switch e.Do {
	case Run, Fill, Step:
		return 5 * time.Second
	}
	return 2 * time.Minute
}

func (p *play) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(&p.log, format+"\n", args...)
}

func (p *play) sideOf(e Event) *side {
	if e.On == Target {
		return p.target
	}
	return p.source
}

// errLeftOut says that an event makes no sense now.
var errLeftOut = errors.New("left out")

// do does one event. An error is how it ended, and no reason to end the trial.
func (p *play) do(ctx context.Context, e Event) error {
	s := p.sideOf(e)
	switch e.Do {
	case Run, Fill, Step:
		return p.write(ctx, s, e)
	case Pause:
		return nap(ctx, e.For)
	case Await:
		return p.await(ctx, s, e)
	case Start:
		return p.start(e)
	case End, PauseJob, ResumeJob, Rate:
		return p.operator(ctx, e)
	case Verify, Repair, Retry, Cutover:
		return p.refer(ctx, e)
	case Clone:
		// Before the job looks, the target may expire what the source keeps: to
		// stop over that is right, and to mend it too.
		p.foreign, p.met = true, true
		return p.clone(ctx)
	case Arm, Kill, Stop, Wake, Finalize:
		return p.process(e)
	case Hold:
		return s.hold(ctx, true)
	case Release:
		return s.hold(ctx, false)
	case Down:
		which, err := s.pick(ctx, e.Member)
		if err != nil {
			return err
		}
		return s.c.Members()[which[0]].Kill()
	case Up:
		return s.up(ctx)
	case StepDown:
		return s.admin(ctx, "primary", D("replSetStepDown", 10, "force", true, "secondaryCatchUpPeriodSecs", 0))
	case Elect:
		return s.admin(ctx, "secondary", D("replSetStepUp", 1))
	case Isolate:
		return s.isolate(ctx, e.Member, e.Alone)
	case Rejoin:
		return s.rejoin()
	case FailPoint:
		return s.failPoint(ctx, e.Member, e.Cmd)
	case KillCursors, KillSessions:
		return p.killCursors(ctx, s, e.Do == KillSessions)
	case Note:
		return s.admin(ctx, e.Member, D("appendOplogNote", 1, "data", D("trial", 1)))
	}
	return fmt.Errorf("unknown event %q", e.Do)
}

// write runs a command, a filling or a step.
func (p *play) write(ctx context.Context, s *side, e Event) error {
	which, err := s.pick(ctx, e.Member)
	if err != nil {
		return err
	}
	client := s.members[which[0]]
	work := func(ctx context.Context) error {
		switch e.Do {
		case Fill:
			h := &history.Runner{Client: client, Database: e.DB}
			return h.Ordered(ctx, []history.Step{{Do: history.Fill, Cmd: e.Cmd}})
		case Step:
			return p.step(ctx, client, e)
		}
		return history.Command(ctx, client, e.DB, history.Step{Cmd: e.Cmd})
	}
	if e.Aside {
		p.beside(work)
		return nil
	}
	p.listen()
	err = work(ctx)
	if e.On == Target && err == nil {
		if e.changes() {
			p.foreign, p.reported = true, false
		}
		p.keepAsItIs(ctx)
	}
	return err
}

// changes reports whether the command can be in a job's way.
func (e Event) changes() bool {
	cmd := e.Cmd
	if e.Do == Step {
		cmd = e.Step.Cmd
	}
	first, err := cmd.IndexErr(0)
	return e.Do == Fill || err == nil && !slices.Contains([]string{"createIndexes", "dropIndexes"}, first.Key())
}

// beside does something beside the events that follow.
func (p *play) beside(work func(context.Context) error) {
	p.aside.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 2*time.Minute)
		defer cancel()
		if err := work(ctx); err != nil {
			p.note("%7.3f s  aside: %.300v", time.Since(p.began).Seconds(), err)
		}
	})
}

// hook does the steps of a history that are not for the source.
func (p *play) hook(ctx context.Context, s history.Step) error {
	if s.Do == history.Restart {
		_ = p.process(Event{Do: Kill})
		return p.start(Event{Do: Start})
	}
	client, err := p.target.client(ctx)
	if err == nil {
		err = history.Command(ctx, client, Database, s)
	}
	if err == nil {
		p.foreign, p.reported = true, false
		p.keepAsItIs(ctx)
	}
	return nil // it may be refused
}

// start starts a process unless it runs.
func (p *play) start(e Event) error {
	if old := p.procs[e.Process]; old != nil && !old.over() {
		return fmt.Errorf("it runs: %w", errLeftOut)
	}
	p.listen()
	file := filepath.Join(p.t.TempDir(), "points")
	if err := os.WriteFile(file, []byte(e.Points), 0o600); err != nil {
		return err
	}
	if p.tr.Served {
		m, err := p.serve(e, file)
		p.procs[e.Process] = &process{points: file, Process: m}
		return err
	}
	args := e.Args
	if !slices.Contains(args, "--until") {
		args = append(args[:len(args):len(args)], "--until", "never")
	}
	p.procs[e.Process] = &process{points: file,
		Process: test.StartWith(p.t, []string{"MILLRACE_FAILPOINTS=@" + file}, p.r.Bin, p.args(args)...)}
	return nil
}

// args is the command line of the job.
func (p *play) args(more []string) []string {
	args := slices.Concat([]string{"sync", "--job", "trial", "--source", p.source.uri(), "--target", p.target.uri(),
		"--allow-missing"}, p.tr.Args, more)
	if p.startAt != "" {
		args = append(args, "--mode", "incremental", "--start-at", p.startAt)
	}
	return args
}

// process does something to a process.
func (p *play) process(e Event) error {
	m := p.procs[e.Process]
	if m == nil || m.over() {
		return fmt.Errorf("it does not run: %w", errLeftOut)
	}
	switch e.Do {
	case Arm:
		next := m.points + ".next"
		if err := os.WriteFile(next, []byte(e.Points), 0o600); err != nil {
			return err
		}
		m.seen = len(m.Output())
		return os.Rename(next, m.points)
	case Kill:
		m.end()
	case Stop:
		m.halted = true
		m.signal(syscall.SIGSTOP)
	case Wake:
		m.halted = false
		m.signal(syscall.SIGCONT)
	case Finalize:
		p.beside(func(ctx context.Context) error { return m.Finalize(ctx) })
	}
	return nil
}

// await waits for what an event wants.
func (p *play) await(ctx context.Context, s *side, e Event) error {
	long := e.For
	if long == 0 {
		long = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	what, arg, _ := strings.Cut(e.Want, ":")
	var reached func() bool
	m := p.procs[e.Process]
	switch what {
	case "phase":
		reached = func() bool { return phaseOrder(p.checkpoint(ctx).Phase) >= phaseOrder(arg) }
	case "caught-up":
		var to bson.Timestamp
		for _, st := range p.source.states(ctx) {
			if st.Primary && to.Before(st.LastWrite.OpTime.TS) {
				to = st.LastWrite.OpTime.TS
			}
		}
		reached = func() bool { return !p.checkpoint(ctx).Applied.TS.Before(to) }
	case "count":
		ns, want, _ := strings.Cut(arg, "=")
		reached = func() bool { return fmt.Sprint(s.count(ctx, ns)) == want }
	case "point":
		reached = func() bool { return m.met(arg) }
	case "ended":
		reached = func() bool { return m.over() }
	case "primary":
		_, err := s.awaitPrimary(ctx)
		return err
	case "ttl":
		before := s.ttlPasses(ctx)
		reached = func() bool { return s.ttlPasses(ctx) >= before+2 }
	case "entered":
		reached = func() bool { return s.entered(ctx, arg) }
	default:
		return fmt.Errorf("nobody knows when %q is", e.Want)
	}
	if (what == "point" || what == "ended") && m == nil {
		return fmt.Errorf("no such process: %w", errLeftOut)
	}
	for {
		over := m != nil && m.over()
		if reached() {
			if p.retained != nil && what == "phase" {
				p.retained.phase(arg)
			}
			return nil
		}
		if over && what == "point" {
			return fmt.Errorf("the process has ended: %w", errLeftOut)
		}
		if what != "ended" && p.allOver() && what != "ttl" && what != "entered" && what != "count" {
			return fmt.Errorf("no millrace runs: %w", errLeftOut)
		}
		if nap(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("not within %s", long)
		}
	}
}

// allOver reports whether no process runs.
func (p *play) allOver() bool {
	for _, m := range p.procs {
		if !m.over() {
			return false
		}
	}
	return true
}

// met reports whether the process has met a point since the last one that was
// waited for; "" is any.
func (p *process) met(point string) bool {
	out := p.Output()
	rest := out[min(p.seen, len(out)):]
	for at := 0; ; {
		end := strings.IndexByte(rest[at:], '\n')
		if end < 0 {
			return false
		}
		l := rest[at : at+end]
		at += end + 1
		if name, ok := strings.CutPrefix(l, "failpoint "); ok &&
			(point == "" || strings.HasPrefix(name, point+" ") || strings.HasPrefix(name, point+"/")) {
			p.seen += at
			return true
		}
	}
}

// checkpoint is what the target's primary has of the job.
type checkpoint struct {
	Phase   string `bson:"phase"`
	Applied struct {
		TS bson.Timestamp `bson:"ts"`
	} `bson:"applied"`
}

func (p *play) checkpoint(ctx context.Context) (c checkpoint) {
	client, err := p.target.client(ctx)
	if err == nil {
		_ = client.Database("millrace").Collection("jobs").FindOne(ctx, D("_id", "trial")).Decode(&c)
	}
	return c
}

// phaseOrder numbers the phases of a checkpoint; -1 is none.
func phaseOrder(phase string) int {
	return slices.Index([]string{"catalog", "creating", "copying", "indexing", "overlap", "following", "finalizing",
		"finalized"}, phase)
}

// count is how many documents the primary has in a namespace, -1 if it is not known.
func (s *side) count(ctx context.Context, ns string) int64 {
	client, err := s.client(ctx)
	if err != nil {
		return -1
	}
	db, coll, _ := strings.Cut(ns, ".")
	n, err := client.Database(db).Collection(coll).CountDocuments(ctx, D())
	if err != nil {
		return -1
	}
	return n
}

func (s *side) ttlPasses(ctx context.Context) int64 {
	client, err := s.client(ctx)
	if err != nil {
		return -1
	}
	r, err := client.Database("admin").RunCommand(ctx, D("serverStatus", 1)).Raw()
	if err != nil {
		return -1
	}
	n, _ := r.Lookup("metrics", "ttl", "passes").AsInt64OK()
	return n
}

// killCursors ends cursors on all members, and everything else of sessions too.
func (p *play) killCursors(ctx context.Context, s *side, sessions bool) error {
	which, err := s.pick(ctx, "all")
	if err != nil {
		return err
	}
	for _, i := range which {
		admin := s.members[i].Database("admin")
		if sessions {
			if err := admin.RunCommand(ctx, D("killAllSessions", A())).Err(); err != nil {
				return err
			}
		}
		if err := killAll(ctx, admin); err != nil {
			return err
		}
	}
	return nil
}

// heal ends all that was done, and all processes.
func (p *play) heal(ctx context.Context) error {
	for _, m := range p.procs {
		if !m.over() && m.halted {
			m.signal(syscall.SIGCONT)
		}
	}
	for _, s := range []*side{p.source, p.target} {
		if err := s.heal(ctx); err != nil {
			p.r.broken(s)
			return err
		}
	}
	p.listen()
	p.endAll()
	p.aside.Wait()
	if p.steps != nil {
		_ = p.steps.Close(ctx)
	}
	return nil
}

func (p *play) endAll() {
	for _, m := range p.procs {
		m.end()
	}
}
