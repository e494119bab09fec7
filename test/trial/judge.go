package trial

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
)

// Verdict is how a trial ended.
type Verdict string

// The verdicts. Right are Equal and Reported.
const (
	// Equal: the target has what the source has.
	Equal Verdict = "equal"
	// Reported: the job has ended with an error that names a conflict, and somebody
	// else has written to the target.
	Reported Verdict = "reported"
	// Differs: the job ended well, and the target differs.
	Differs Verdict = "differs"
	// Admitted: the target differs, and the job said so when it ended, though
	// nobody else has written there.
	Admitted Verdict = "differs, and says so"
	// FalseAlarm: the job has ended with an error though nothing was wrong.
	FalseAlarm Verdict = "false alarm"
	// Hidden: the job has ended over a conflict, and the next run went over it
	// without a word.
	Hidden Verdict = "hides a conflict"
	// Stuck: the job does not come to its end.
	Stuck Verdict = "stuck"
	// Mistaken: what refers to something seen earlier was about something else.
	Mistaken Verdict = "takes one collection for another"
	// Dropped: something of the target that is not the job's was changed.
	Dropped Verdict = "dropped what is not its own"
)

// Result is what came out of a trial.
type Result struct {
	Verdict     Verdict
	Differences []string
	Message     string // what the job said in the end
	Output      string // of the last run
	Log         string // of the events
	Took        time.Duration
}

// Right reports that nothing went wrong.
func (r Result) Right() bool { return r.Verdict == Equal || r.Verdict == Reported }

// String is the verdict with what is needed to understand it.
func (r Result) String() string {
	return fmt.Sprintf("%s\n%s%s", r.Verdict, strings.Join(append(r.Differences, ""), "\n"), r.Message)
}

// runs is how often a supervisor starts the job again in the end.
const runs = 4

// judge runs the job to its end and compares.
func (p *play) judge(ctx context.Context) (res Result) {
	if len(p.later.wrong) > 0 {
		return Result{Verdict: Mistaken, Differences: p.later.wrong}
	}
	if p.later.cut {
		return Result{Verdict: Equal}
	}
	waitLimit := p.r.WaitLimit
	if waitLimit == 0 {
		waitLimit = 4 * time.Minute
	}
	code := 0
	for n := range runs {
		m := test.Start(p.t, p.r.Bin, p.args([]string{"--until", "caught-up"})...)
		go resume(ctx, m)
		select {
		case <-m.Done():
		case <-time.After(waitLimit):
			(&process{Process: m}).end()
			return Result{Verdict: Stuck, Message: "still running after " + waitLimit.String(), Output: m.Output()}
		case <-ctx.Done():
			(&process{Process: m}).end()
			return Result{Verdict: Stuck, Message: ctx.Err().Error()}
		}
		code, res.Output = m.ExitCode(), m.Output()
		p.note("%7.3f s  run %d to the end: exit code %d", time.Since(p.began).Seconds(), n+1, code)
		if code == 0 {
			break
		}
		res.Message = lastError(res.Output)
		p.reported = p.reported || namesConflict(res.Output)
		p.note("           %s", res.Message)
		if strings.Contains(res.Output, "finalized, but the target differs") {
			break // what it said once it need not say again
		}
		p.fell = res.Message
	}
	if err := p.target.quiet(ctx, time.Minute, false); err != nil {
		p.note("%v", err)
	}
	if lost := p.notAsItWas(ctx); len(lost) > 0 {
		res.Verdict, res.Differences = Dropped, lost
		return res
	}
	if p.model != nil {
		return p.model.verdict(ctx, p, res, code)
	}
	if code != 0 {
		admits := strings.Contains(res.Output, "finalized, but the target differs")
		switch {
		case p.foreign && (namesConflict(res.Output) || admits || p.namesDropped(res.Output)):
			res.Verdict = Reported
		case admits:
			res.Verdict = Admitted
		default:
			res.Verdict = FalseAlarm
		}
		return res
	}
	diffs, err := p.differences(ctx)
	switch {
	case err != nil:
		res.Verdict, res.Message = Stuck, "the comparison failed: "+err.Error()
	case len(diffs) > 0:
		res.Verdict, res.Differences = Differs, diffs
	case p.tr.Calm && !p.foreign && p.fell != "":
		res.Verdict, res.Message = FalseAlarm, p.fell
	case p.reported && p.foreign && p.stops() && !p.met:
		res.Verdict = Hidden
	default:
		res.Verdict = Equal
	}
	return res
}

// resume ends a pause that an earlier process has left.
func resume(ctx context.Context, m *test.Process) {
	for !(&process{Process: m}).over() && nap(ctx, 200*time.Millisecond) == nil {
		if s := m.Status(ctx); s.Paused {
			_, _ = m.Command(ctx, "resume")
		}
	}
}

// namesConflict reports whether an output names a document in conflict.
func namesConflict(out string) bool {
	return regexp.MustCompile(`(?m)^(millrace|error): .*, _id .*, at \d+`).MatchString(out)
}

// stops reports whether a conflict has to stop the job.
func (p *play) stops() bool {
	for i, a := range p.tr.Args[:max(0, len(p.tr.Args)-1)] {
		if v := p.tr.Args[i+1]; a == "--on-conflict" && v != "stop" || a == "--on-existing" && v == "merge" {
			return false
		}
	}
	return true
}

// listen notes processes that have ended over a conflict.
func (p *play) listen() {
	for _, m := range p.procs {
		if !m.heard && m.over() {
			m.heard = true
			if m.ExitCode() > 0 {
				p.fell = lastError(m.Output())
				p.reported = p.reported || namesConflict(m.Output())
			}
		}
	}
}

// lastError is the line of the output that tells why the job has ended.
func lastError(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, l := range slices.Backward(lines) {
		if strings.HasPrefix(l, "millrace: ") || strings.HasPrefix(l, "error: ") || strings.HasPrefix(l, "Error: ") {
			return l
		}
	}
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}

// rules are the job's, read by other code than that of millrace.
type rules struct {
	include, exclude []string
	dbs, colls       map[string]string
}

func readRules(args []string) rules {
	r := rules{dbs: map[string]string{}, colls: map[string]string{}}
	for i, a := range args[:max(0, len(args)-1)] {
		v := args[i+1]
		switch a {
		case "--include":
			r.include = append(r.include, v)
		case "--exclude":
			r.exclude = append(r.exclude, v)
		case "--rename":
			from, to, _ := strings.Cut(v, "=")
			if strings.Contains(from, ".") {
				r.colls[from] = to
			} else {
				r.dbs[from] = to
			}
		}
	}
	return r
}

func matches(patterns []string, ns string) bool {
	db, _, _ := strings.Cut(ns, ".")
	ns = strings.Replace(ns, buckets, "", 1)
	return slices.ContainsFunc(patterns, func(p string) bool {
		full, _ := path.Match(p, ns)
		whole, _ := path.Match(p, db)
		return full || whole && !strings.Contains(p, ".")
	})
}

const buckets = "system.buckets."

func (r rules) has(ns string) bool {
	return (len(r.include) == 0 || matches(r.include, ns)) && !matches(r.exclude, ns)
}

// target is the name of a source namespace on the target.
func (r rules) target(ns string) string {
	db, coll, _ := strings.Cut(ns, ".")
	name, isBuckets := strings.CutPrefix(coll, buckets)
	to := db + "." + name
	if t, ok := r.colls[to]; ok {
		to = t
	} else if t, ok := r.dbs[db]; ok {
		to = t + "." + name
	}
	if isBuckets {
		db, coll, _ = strings.Cut(to, ".")
		to = db + "." + buckets + coll
	}
	return to
}

// differences are those that no dead letter tells of.
func (p *play) differences(ctx context.Context) ([]string, error) {
	sc, err := p.source.client(ctx)
	if err != nil {
		return nil, err
	}
	tc, err := p.target.client(ctx)
	if err != nil {
		return nil, err
	}
	if p.retained != nil {
		if !p.retained.begun { // it is not known what was copied
			return nil, nil
		}
		return p.retained.differences(ctx, tc.Database(Database))
	}
	r := readRules(p.tr.Args)
	o := test.CompareOptions{Source: r.has, Name: r.target,
		Target: func(ns string) bool { return !slices.Contains(p.tr.Keep, ns) && !p.unnamed(r, ns) }}
	diffs, err := test.Compare(ctx, sc, tc, o)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range diffs {
		reported, err := p.lettered(ctx, sc, tc, d, r)
		if err != nil {
			return nil, err
		}
		if !reported {
			out = append(out, d.String())
		}
	}
	return out, nil
}

// unnamed reports that no namespace of the source can have the name on the
// target: what is there is somebody else's.
func (p *play) unnamed(r rules, ns string) bool {
	if len(r.include) == 0 || matches(r.include, ns) {
		return false
	}
	db, _, _ := strings.Cut(ns, ".")
	for _, to := range r.dbs {
		if to == db {
			return false
		}
	}
	for _, to := range r.colls {
		if to == ns {
			return false
		}
	}
	return true
}

// lettered reports whether dead letters that are open explain each document of a
// namespace that differs.
func (p *play) lettered(ctx context.Context, sc, tc *mongo.Client, d test.Difference, r rules) (bool, error) {
	if strings.Contains(d.What, "is on the target alone") && len(p.claims[d.NS]) > 0 {
		return true, nil
	}
	if !strings.Contains(d.What, "documents are") {
		return false, nil
	}
	to := r.target(d.NS)
	var letters []struct {
		ID bson.RawValue `bson:"documentId"`
	}
	cur, err := tc.Database("millrace").Collection("deadletters").Find(ctx, D("ns", to, "state", D("$ne", "settled")))
	if err != nil {
		return false, err
	}
	if err := cur.All(ctx, &letters); err != nil {
		return false, err
	}
	explained := map[string]bool{}
	for _, l := range letters {
		explained[l.ID.String()] = true
	}
	if len(explained)+len(p.claims[to]) == 0 {
		return false, nil
	}
	want, err := documents(ctx, sc, d.NS)
	if err != nil {
		return false, err
	}
	p.claims.explain(to, want, explained)
	have, err := documents(ctx, tc, to)
	if err != nil {
		return false, err
	}
	for id, doc := range want {
		if !explained[id] && !bytes.Equal(doc, have[id]) {
			return false, nil
		}
	}
	for id := range have {
		if !explained[id] && want[id] == nil {
			return false, nil
		}
	}
	return true, nil
}

// documents of a namespace by _id.
func documents(ctx context.Context, c *mongo.Client, ns string) (map[string]bson.Raw, error) {
	db, coll, _ := strings.Cut(ns, ".")
	cur, err := c.Database(db).Collection(coll).Find(ctx, D())
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(ctx) }()
	out := map[string]bson.Raw{}
	for cur.Next(ctx) {
		out[cur.Current.Lookup("_id").String()] = bytes.Clone(cur.Current)
	}
	return out, cur.Err()
}

// keepAsItIs notes what is in the namespaces that are not the job's.
func (p *play) keepAsItIs(ctx context.Context) {
	for _, ns := range p.tr.Keep {
		if sum, err := p.checksum(ctx, ns); err == nil && sum != "" {
			p.keep[ns] = sum
		}
	}
}

// notAsItWas lists those that are not as they were.
func (p *play) notAsItWas(ctx context.Context) (out []string) {
	for _, ns := range p.tr.Keep {
		was := p.keep[ns]
		if was == "" {
			continue
		}
		is, err := p.checksum(ctx, ns)
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("%s: %v", ns, err))
		case is == "":
			out = append(out, ns+" is gone from the target")
		case is != was:
			out = append(out, ns+" is not what it was on the target")
		}
	}
	return out
}

// checksum of a collection of the target, "" if it is not there.
func (p *play) checksum(ctx context.Context, ns string) (string, error) {
	client, err := p.target.client(ctx)
	if err != nil {
		return "", err
	}
	db, coll, _ := strings.Cut(ns, ".")
	var reply struct {
		Collections map[string]string `bson:"collections"`
	}
	err = client.Database(db).RunCommand(ctx, D("dbHash", 1, "collections", A(coll))).Decode(&reply)
	return reply.Collections[coll], err
}
