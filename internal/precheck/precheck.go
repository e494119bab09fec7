// Package precheck makes the plan of a replication between two clusters, and the checks before it. It writes nothing.
// It knows rules and the stored state of a job, but no job. Other commands use List too.
package precheck

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Level is the result of a check.
type Level string

// The results; a failed check forbids the work.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Check is one check with its result.
type Check struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Hint is the remedy.
	Hint string `json:"hint,omitempty"`
}

const checkExisting = "target collections"

// Skips returns the settings that let a failed check pass: those in its hint.
func (c Check) Skips() []string {
	if c.Level != Fail {
		return nil
	}
	if c.Name == checkExisting {
		return []string{"on-existing: merge", "on-existing: drop"}
	}
	var out []string
	allowing := regexp.MustCompile(`--(allow-downgrade|allow-missing|allow-overlap|allow-shard)\b`)
	for _, m := range allowing.FindAllStringSubmatch(c.Hint, -1) {
		out = append(out, m[1]+": true")
	}
	return out
}

// List has checks in their order. It is not safe for concurrent use.
type List []Check

func (l *List) Add(level Level, name, message, hint string) {
	*l = append(*l, Check{Name: name, Level: level, Message: mongo.Concise(message), Hint: hint})
}

func (l List) Of(level Level) List {
	return slices.DeleteFunc(slices.Clone(l), func(c Check) bool { return c.Level != level })
}

func (l List) Failed() bool { return len(l.Of(Fail)) > 0 }

// Err returns an error with each failed check and its hint; nil if there is none.
func (l List) Err() error {
	failed := l.Of(Fail)
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return mongo.WithHint(Failed(l), failed[0].Hint)
	}
	return Failed(l)
}

// Failed is the error of checks that forbid the work; nothing was written.
type Failed List

func (f Failed) Error() string { return strings.Join(f.Lines(), "\n") }

// Lines returns each failed check, with hints if there are several.
func (f Failed) Lines() []string {
	failed := List(f).Of(Fail)
	if len(failed) == 1 {
		return []string{"precheck " + failed[0].Name + ": " + failed[0].Message}
	}
	const most = 20
	lines := []string{fmt.Sprintf("%d checks failed:", len(failed))}
	for i, c := range failed {
		if i == most {
			return append(lines, fmt.Sprintf("  and %d more", len(failed)-most))
		}
		lines = append(lines, "  "+c.Name+": "+c.Message)
		if c.Hint != "" {
			lines = append(lines, "    hint: "+c.Hint)
		}
	}
	return lines
}

func (l List) LogWarnings(log *slog.Logger) {
	for _, c := range l.Of(Warn) {
		log.Warn("precheck: "+c.Message, "check", c.Name, "hint", c.Hint)
	}
}

// Plan has the actions of a job, and the checks before them.
type Plan struct {
	Job         string      `json:"job"`
	Resumes     bool        `json:"resumes"` // an earlier checkpoint is continued
	ResumePhase state.Phase `json:"resumePhase,omitempty"`
	Mode        state.Mode  `json:"mode"`
	Source      string      `json:"source"`
	SourceInfo  string      `json:"sourceInfo"` // e.g. "replica set src, MongoDB 6.0.5 (tested), FCV 6.0"
	Target      string      `json:"target"`
	TargetInfo  string      `json:"targetInfo"`
	// Finalized is when the job was finalized, TargetPosition the target's position then: nothing is left to do.
	Finalized      *time.Time   `json:"finalized,omitempty"`
	TargetPosition string       `json:"targetPosition,omitempty"`
	Collections    []Collection `json:"collections"`
	// Rules are the effects of the rules on a random sample of documents.
	Rules []transform.Effect `json:"rules,omitempty"`
	// LeftOut are namespaces and options that the rules choose and the job cannot copy.
	LeftOut []string `json:"leftOut,omitempty"`
	// Existing are the collections of the plan that the target has already.
	Existing []string `json:"existing,omitempty"`
	// Users are the users and roles that the job copies: "role shop.reader", "user shop.ada".
	Users  []string `json:"users,omitempty"`
	Checks List     `json:"checks"`
}

// Collection is one namespace of a plan.
type Collection struct {
	Source  string      `json:"source"`
	Target  string      `json:"target"`
	Type    schema.Type `json:"type"`
	Docs    int64       `json:"docs"`
	Bytes   int64       `json:"bytes"`
	Indexes int         `json:"indexes"`
	// Sample estimates how many documents the filter of a collection keeps.
	Sample *Sample `json:"sample,omitempty"`
}

// Error is the error of a plan with failed checks; nothing was written.
type Error struct{ Plan *Plan }

func (e *Error) Error() string { return e.Unwrap().Error() }

// Unwrap returns the plan's error with its hint.
func (e *Error) Unwrap() error { return e.Plan.Checks.Err() }

// Input has the settings and clusters of a plan.
type Input struct {
	Job            string
	Source, Target *mongo.Cluster
	Shards         *origin.Sharded  // behind Source, if it is a router that is not read alone
	Streamed       *origin.Streamed // the source by change streams; nil if oplogs are read
	Capture        Capture
	Rules          *transform.Set
	Keys           *transform.Keys // by which the rules mask
	Store          state.Store     // what is stored of the job
	Schema         *schema.Target  // the target's collections
	Desired        *placing.Source // how collections are to be sharded on a sharded target

	Mode                    state.Mode
	Files                   bool // the target was made of files
	OnExisting              state.OnExisting
	StartAt                 string
	AcceptLoss              []string // of a job that reverses another one
	Restart, AllowDowngrade bool
	Users                   bool // users and roles are copied, too
	AllowMissing            bool // an include that matches nothing yet
	AllowOverlap            bool
	AllowShard              bool // a side may be one shard of a sharded cluster
	Skips                   bool // documents that the target refuses are left out
	WarnWindow              time.Duration

	// Homes opens what has the users and roles of both sides (see users.Sides).
	Homes func(ctx context.Context) (source, target *mongo.Cluster, done func(), err error)
	// TargetShards opens the shards of a sharded target.
	TargetShards func(ctx context.Context) (*origin.Sharded, error)
	// Router opens one of the target's routers.
	Router func(ctx context.Context, host string) (*mongo.Cluster, error)
	// Window reads what the source's oplogs hold.
	Window func(ctx context.Context) (oplog.Window, error)
	// ReadFrom returns the first change that a job at a position still needs.
	ReadFrom func(stream.Position) (mongo.OpTime, error)
	// CheckShards fails for a given address of a shard that neither the source has nor a stored job
	// reads; nil if the source has no shards.
	CheckShards func(stream.Position) error
	// Spool may hold, or is to hold, changes that the oplog has lost.
	Spool *oplog.Spooler
}

type planner struct {
	Input
	seen seen
	plan *Plan
	job  state.Job       // the earlier checkpoint, if any
	data int64           // bytes to copy
	from stream.Position // where a job begins that reverses another one
	// unread means that no member of the source matches the read preference.
	unread bool
	// short means that the oplog may overwrite what the job reads within WarnWindow.
	short bool
}

// Make reads both sides and returns the plan of the job with its checks. It writes nothing. It
// fails if a side cannot be read.
func Make(ctx context.Context, in Input) (*Plan, error) {
	p := &planner{Input: in, plan: &Plan{
		Job: in.Job, Mode: in.Mode, Source: in.Source.Address(), SourceInfo: describe(in.Source.Info),
		Target: in.Target.Address(), TargetInfo: describe(in.Target.Info),
	}}
	of := sides{p}
	if err := of.complete(ctx); err != nil {
		return nil, err
	}
	of.deployments()
	capturing{p}.possible()
	of.versions()
	if p.ends() {
		return p.plan, nil
	}
	if err := of.members(ctx); err != nil {
		return nil, err
	}
	if p.ends() {
		return p.plan, nil
	}
	if err := (asker{p}).look(ctx); err != nil {
		return nil, err
	}
	for _, step := range p.steps() {
		err := step(ctx)
		if mongo.IsCode(err, mongo.CodeUnauthorized) {
			access{p}.unauthorized(err)
			return p.plan, nil
		}
		if err != nil {
			return nil, err
		}
		if p.plan.Finalized != nil {
			return p.plan, nil
		}
	}
	scope := "databases admin, config and local stay as they are"
	if !p.Users {
		scope = "users and roles are not copied; " + scope
	}
	p.ok("scope", "%s", scope)
	return p.plan, nil
}

// ends reports a failure after which others cannot be checked. An older target is none: all that is to be decided is
// shown at once.
func (p *planner) ends() bool {
	return slices.ContainsFunc(p.plan.Checks.Of(Fail), func(c Check) bool {
		return c.Name != checkVersions && c.Name != checkFCV
	})
}

func (p *planner) steps() []func(context.Context) error {
	in, of, by, log := stored{p}, content{p}, rules{p}, changes{p}
	all := []func(context.Context) error{
		in.resume, returning{p}.wayBack, in.givenShards, in.history, in.rivals, of.collections, of.omissions,
		capturing{p}.reports, by.filters, by.names, by.cases, sharder{p}.sharding, access{p}.privileges, accounts{p}.users,
		of.existing,
	}
	if p.Mode == state.ModeStructure { // which copies no documents and reads no oplog
		return all
	}
	return append(all, log.oplogWindow, log.spool, of.room)
}

func describe(i mongo.Info) string {
	s := string(i.Kind)
	if i.SetName != "" {
		s += " " + i.SetName
	}
	s += fmt.Sprintf(", MongoDB %s (%s)", i.Version, i.Evidence())
	if i.FCV != "" {
		s += ", FCV " + i.FCV
	}
	return s
}

func (p *planner) add(level Level, name, hint, format string, args ...any) {
	p.plan.Checks.Add(level, name, fmt.Sprintf(format, args...), hint)
}

func (p *planner) ok(name, format string, args ...any) { p.add(OK, name, "", format, args...) }

// copied reports whether the job itself has created the target collections.
func (p *planner) copied() bool {
	return p.plan.Resumes && p.plan.ResumePhase != state.PhaseCatalog
}

func (p *planner) onExisting() state.OnExisting { return p.OnExisting.Or(p.job.OnExisting) }

func (p *planner) exists(target string) bool {
	have, err := p.seen.existing()
	_, there := have[target]
	return err == nil && there
}

func some(all []string, sep string) string {
	const most = 5
	return strings.Join(all[:min(most, len(all))], sep)
}

func didYouMean(best, hint string) string {
	if best == "" {
		return hint
	}
	return strings.TrimSpace("did you mean " + best + "? " + hint)
}

// unmatched returns the result for a rule that matches nothing, perhaps not yet.
func unmatched(allowed bool) (level Level, hint string) {
	if allowed {
		return Warn, ""
	}
	return Fail, "--allow-missing accepts what is yet to come"
}
