package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
)

type jobInfo struct {
	Job   string      `json:"job"`
	State state.Life  `json:"state"`
	Phase state.Phase `json:"phase"`
	// Paused says that it is, or will be once it runs again.
	Paused bool       `json:"paused"`
	Mode   state.Mode `json:"mode"`
	// Capture is how changes are read, empty if none are.
	Capture state.Capture `json:"capture,omitempty"`
	Source  string        `json:"source"`
	Target  string        `json:"target"`
	Rules   string        `json:"rules"`
	// Owner has the job, or had it when it ended without a word.
	Owner     *ownerInfo `json:"owner,omitempty"`
	CreatedAt time.Time  `json:"createdAt"`
	SavedAt   time.Time  `json:"savedAt"` // the last sign of life
	Attempt   int64      `json:"attempt"`
	// Positions of the source, absent where there is none.
	Start      string     `json:"start,omitempty"`
	Consistent string     `json:"consistent,omitempty"`
	Applied    string     `json:"applied,omitempty"`
	AppliedAt  *time.Time `json:"appliedAt,omitempty"`
	ReadsFrom  string     `json:"readsFrom,omitempty"`
	// FinalizedAt is when the job was finalized, TargetPosition the target's own position then.
	FinalizedAt    *time.Time `json:"finalizedAt,omitempty"`
	TargetPosition string     `json:"targetPosition,omitempty"`
	Reach          string     `json:"reach,omitempty"`
	Intent         string     `json:"schemaChange,omitempty"`

	Letters deadletter.Stats `json:"letters"`
	// Slices, Deferred, Differences and Refused belong to show alone.
	Slices      *sliceCounts `json:"slices,omitempty"`
	Deferred    []string     `json:"deferred,omitempty"`
	Differences []string     `json:"differences,omitempty"`
	Refused     []string     `json:"refused,omitempty"`
	Resume      string       `json:"resume,omitempty"` // what goes on with it
	// Error and Hint say why its latest run has stopped, empty if it was killed.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`

	err  error       // why nothing is known of it but its name and its letters
	last *job.Status // of a sync of this machine that has ended, in the place of what a target knows
}

type ownerInfo struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
	Run  string `json:"run"`
}

type sliceCounts struct {
	Done  int `json:"done"`
	Total int `json:"total"`
}

func newJobInfo(j *state.Job, life state.Life, letters deadletter.Stats) jobInfo {
	text := func(p mongo.OpTime) string {
		if p.IsZero() {
			return ""
		}
		return p.String()
	}
	info := jobInfo{Job: j.ID, State: life, Phase: j.Phase, Paused: j.Paused, Mode: j.Mode, Source: j.Source,
		Target: j.Target, Rules: j.Rules, CreatedAt: j.CreatedAt.UTC(), SavedAt: j.UpdatedAt.UTC(), Attempt: j.Fence,
		Start: text(j.Start), Consistent: text(j.Consistent),
		Applied: text(j.Applied), Reach: text(j.Reach), Intent: text(j.Intent), Letters: letters, Differences: j.Differences}
	if j.Mode != state.ModeStructure {
		info.Capture = cmp.Or(j.Capture, state.CaptureOplog)
	}
	if j.Phase == state.PhaseFinalized {
		at := j.FinalizedAt.UTC()
		info.FinalizedAt, info.TargetPosition = &at, text(j.TargetPosition)
	}
	if j.Owner != (state.Owner{}) {
		info.Owner = &ownerInfo{j.Owner.Host, j.Owner.PID, j.Owner.Run}
	}
	if !j.Applied.IsZero() {
		at := j.Applied.Time()
		info.AppliedAt = &at
	}
	if j.Capture == state.CaptureStreams {
		info.ReadsFrom = info.Applied
	} else if from, err := oplog.ReadFrom(j.ResumeAt()); err == nil {
		info.ReadsFrom = text(from)
	}
	for _, d := range j.Refused {
		info.Refused = append(info.Refused, fmt.Sprintf("%s _id %s at %s", d.NS, d.ID, d.At))
	}
	if life == state.Stopped || life == state.Silent {
		info.Resume = resumeLine(j)
	}
	if j.Stop != nil && life == state.Stopped {
		info.Error, info.Hint = j.Stop.Error, j.Stop.Hint
	}
	return info
}

func endedInfo(rec server.Record) (*jobInfo, error) {
	st := new(job.Status)
	if err := json.Unmarshal(rec.Last, st); err != nil {
		return nil, fmt.Errorf("read the record of the last sync of job %s: %w", rec.Job, err)
	}
	info := &jobInfo{Job: rec.Job, State: state.Stopped, Phase: st.Phase, Capture: st.Capture,
		Source: st.Source, Target: st.Target,
		Owner: &ownerInfo{Host: rec.Host, PID: rec.PID}, CreatedAt: st.StartedAt.UTC(), SavedAt: *rec.EndedAt,
		Applied: st.Follow.Applied, TargetPosition: st.TargetPosition, Differences: st.Differences,
		Letters: st.Conflicts.Stats, last: st}
	if st.Phase == job.PhaseFinalized {
		info.State, info.FinalizedAt = state.Finalized, cmp.Or(st.FinalizedAt, rec.EndedAt)
	}
	return info, nil
}

// resumeLine returns the command line that resumes a job, without secrets in addresses.
func resumeLine(j *state.Job) string {
	words := []string{"millrace", "sync", "--job", j.ID, "--source", j.Source}
	if !slices.Contains(j.Settings, "--target") {
		words = append(words, "--target", j.Target)
	}
	byFiles := slices.Contains(j.Settings, "--copy") // the job is incremental by itself
	switch {
	case j.Mode == state.ModeIncremental && !byFiles:
		words = append(words, "--mode", "incremental", "--start-at", "checkpoint")
	case j.Mode != state.ModeIncremental && j.Mode != state.ModeAll:
		words = append(words, "--mode", string(j.Mode))
	}
	if _, err := transform.Parse(j.Rules); err != nil { // of another version
		return quoted(words) + " with the rules " + j.Rules
	}
	rules := transform.ParseConfig(j.Rules)
	asIs := func(item string) string { return item }
	for _, kind := range []struct {
		flag  string
		items []string
		form  func(string) string
	}{{"--include", rules.Include, listItem}, {"--exclude", rules.Exclude, listItem},
		{"--rename", rules.Rename, listItem}, {"--filter", rules.Filter, asIs}, {"--skip", rules.Skip, asIs},
		{"--fields", rules.Fields, asIs}, {"--soft-delete", rules.SoftDelete, asIs},
		{"--history", rules.History, listItem}} {
		for _, item := range kind.items {
			words = append(words, kind.flag, kind.form(item))
		}
	}
	return quoted(append(words, j.Settings...))
}

// listItem is a value of a flag that takes a list, separated by commas as in CSV.
func listItem(item string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{item}) // into memory
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

func quoted(words []string) string {
	safe := regexp.MustCompile(`^[-\w./:=@,+%]+$`)
	out := make([]string, len(words))
	for i, w := range words {
		if out[i] = w; !safe.MatchString(w) {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func jobsListCommand(a *app) *cobra.Command {
	s := stored{app: a}
	return s.orRemote(s.command(a.described("jobs list", &cobra.Command{}), func(ctx context.Context) error {
		list, err := listJobs(ctx, s.cluster)
		if err != nil {
			return err
		}
		errs := []error{a.Tell(s.output, list, textOf("jobs", list))}
		for _, j := range list {
			errs = append(errs, j.err)
		}
		return errors.Join(errs...)
	}), (*remote).list)
}

func listJobs(ctx context.Context, c *mongo.Cluster, names ...string) ([]jobInfo, error) {
	jobs, err := state.List(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		jobs = slices.DeleteFunc(jobs, func(j state.Listed) bool { return !slices.Contains(names, j.ID) })
	}
	lives, err := state.Lives(ctx, c, jobs)
	if err != nil {
		return nil, err
	}
	letters, err := deadletter.Counts(ctx, c)
	if err != nil {
		return nil, err
	}
	out := make([]jobInfo, len(jobs))
	for i := range jobs {
		out[i] = newJobInfo(&jobs[i].Job, lives[jobs[i].ID], letters[jobs[i].ID])
		out[i].err = jobs[i].Err
	}
	return out, nil
}

func (j *jobInfo) lifeText() string { return textOf("life", j) }

// agoText returns the time since at, never negative: the clocks of machines differ.
func agoText(at time.Time) string { return format.Seconds(max(0, time.Since(at).Seconds())) + " ago" }

func jobsShowCommand(a *app) *cobra.Command {
	s := stored{app: a}
	return s.orRemote(s.jobCommand(a.described("jobs show", &cobra.Command{}), func(ctx context.Context) error {
		info, err := showJob(ctx, s.cluster, s.job)
		return then(err, func() error { return a.Tell(s.output, info, info.text()) })
	}), (*remote).show)
}

func findJob(ctx context.Context, c *mongo.Cluster, name string) (*jobInfo, error) {
	list, err := listJobs(ctx, c, name)
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, misuse(fmt.Errorf("the target has no job %s", cli.Plain(name)),
			"millrace jobs list shows its jobs; each job is stored on its own target")
	}
	return &list[0], list[0].err
}

// showJob returns a job with the details that listJobs leaves out.
func showJob(ctx context.Context, c *mongo.Cluster, name string) (*jobInfo, error) {
	info, err := findJob(ctx, c, name)
	if err != nil {
		return nil, err
	}
	has, err := job.Look(ctx, c, name)
	if err != nil {
		return nil, err
	}
	info.Deferred = deferredTexts(has.Deferred)
	raws, err := state.Open(c, state.Options{Job: name}).LoadSlices(ctx)
	if err != nil {
		return nil, err
	}
	info.Slices, err = countSlices(raws)
	return info, err
}

func deferredTexts(list []schema.Deferred) (out []string) {
	for _, d := range list {
		text := "expiry of index " + d.Index + " of " + d.NS
		switch {
		case d.Unbuilt:
			text = "index " + d.Index + " of " + d.NS
		case d.Limits():
			text = "limits of " + d.NS
		case d.Index == "":
			text = "expiry of " + d.NS
		}
		out = append(out, text)
	}
	return out
}

// countSlices counts those of the newest plan of each collection.
func countSlices(raws []bson.Raw) (*sliceCounts, error) {
	all, plans := make([]scan.Slice, len(raws)), map[string]int64{}
	for i, raw := range raws {
		if err := bson.Unmarshal(raw, &all[i]); err != nil {
			return nil, fmt.Errorf("read a slice: %w", err)
		}
		plans[all[i].Collection] = max(plans[all[i].Collection], all[i].Plan)
	}
	n := new(sliceCounts)
	for i := range all {
		if all[i].Plan < plans[all[i].Collection] {
			continue
		}
		if n.Total++; all[i].Done || all[i].Dropped {
			n.Done++
		}
	}
	return n, nil
}

func (j *jobInfo) text() string {
	if j.last != nil {
		return textOf("status", *j.last)
	}
	return textOf("stored", j)
}

func jobsDropCommand(a *app) *cobra.Command {
	s := stored{app: a}
	var yes bool
	cmd := s.jobCommand(a.described("jobs drop", &cobra.Command{}, config.Vars{"yes": &yes}),
		func(ctx context.Context) error { return s.drop(ctx, yes) })
	_ = cmd.MarkFlagRequired("job")
	cmd.Flags().Lookup("job").Usage = "`name` of the job"
	return cmd
}

type dropped struct {
	Job     string           `json:"job"`
	Dropped bool             `json:"dropped"`
	Has     map[string]int64 `json:"documents"`
	Letters deadletter.Stats `json:"letters"`
	// Deferred are indexes, expiries and limits that the target's collections do not have yet.
	Deferred []string `json:"deferred,omitempty"`
}

func (s *stored) drop(ctx context.Context, yes bool) error {
	info, err := findJob(ctx, s.cluster, s.job)
	if err != nil {
		return err
	}
	if info.State == state.Running {
		return misuse(fmt.Errorf("job %s is %s: nothing was removed", cli.Plain(s.job), info.lifeText()),
			"stop its process first")
	}
	has, err := job.Look(ctx, s.cluster, s.job)
	if err != nil {
		return err
	}
	d := &dropped{Job: s.job, Has: has.Documents, Letters: info.Letters, Deferred: deferredTexts(has.Deferred)}
	if !yes {
		return errors.Join(s.Tell(s.output, d, textOf("dropped", d)),
			misuse(fmt.Errorf("job %s: nothing was removed", cli.Plain(s.job)), d.advice()))
	}
	c, err := s.connectFor(ctx, "target", s.target, mongo.TargetApp)
	if err != nil {
		return err
	}
	defer c.Close()
	err = job.Hold(ctx, c, s.job, s.notes(), func(ctx context.Context, j *job.Stopped) error { return j.Drop(ctx) })
	if errors.Is(err, state.ErrRunning) || errors.Is(err, state.ErrFenced) {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if err != nil {
		return err
	}
	d.Dropped = true
	return s.Tell(s.output, d, textOf("dropped", d))
}

func (d *dropped) advice() string {
	text := "add --yes to remove it"
	if d.Letters.Open+d.Letters.Undecided+d.Letters.Removed+d.Letters.Unmapped > 0 {
		text = "its dead letters hold documents that may be nowhere else: keep them with millrace deadletters export --job " +
			d.Job + "; then " + text
	}
	if len(d.Deferred) > 0 {
		text = "the target's collections lack what is deferred until it is set by hand, or the job is finalized; " + text
	}
	return text
}

func (s *stored) completions(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
	defer cancel()
	c, err := s.connectToLook(ctx, "target", s.target)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	jobs, _ := state.List(ctx, c) // what cannot be read completes nothing
	var names []cobra.Completion
	for _, j := range jobs {
		names = append(names, cobra.CompletionWithDesc(j.ID, string(j.Phase)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
