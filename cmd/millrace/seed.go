package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/seed"
)

func (a *app) seedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "seed",
		Short: "Bring up a replica-set member by copying files",
		Long: `Copies the files of a member instead of its documents: no index is built again.

The member is locked only for as long as it takes to find what changed during the
copy; a process of its own holds the lock and lets go whatever happens to millrace.
Where the server has $backupCursor nothing is locked (untested on a real server).
What is copied in the end joins the set, or becomes a replica set of its own.
Until a copy is complete no mongod starts on it; the same command completes it.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(a.seedLocalCommand(), a.seedServeCommand(), a.seedPullCommand(), a.seedGuardCommand())
	return cmd
}

func (a *app) seedLocalCommand() *cobra.Command {
	var s config.Seed
	cmd := &cobra.Command{
		Use:   "local --from-dbpath DIR --to-dbpath DIR [--start -- mongod ...]",
		Short: "Copy a member to another directory of the same machine",
		Example: `  # what would be done, and whether anything stands in the way
  millrace seed local --from-uri mongodb://db2:27017 --from-dbpath /data/db2 --to-dbpath /data/db4 --dry-run

  # a new member, which gets its vote when it has caught up
  millrace seed local --from-uri mongodb://db2:27017 --from-dbpath /data/db2 --to-dbpath /data/db4 \
    --join db2:27018 --start -- mongod --fork --logpath /data/db4.log --replSet rs0 --port 27018 --bind_ip db2 --dbpath /data/db4

  # a staging clone that forgets its set
  millrace seed local --from-uri mongodb://db2:27017 --from-dbpath /data/db2 --to-dbpath /data/stage \
    --as-new-set stage --mongod /usr/bin/mongod`,
		Args: afterDash,
	}
	s.Bind(cmd.Flags(), config.CommandSeedLocal)
	return a.configured(cmd, config.CommandSeedLocal, s.Validate,
		func(ctx context.Context, o config.Origins, args []string) error { return a.seedLocal(ctx, &s, o, args) })
}

// afterDash accepts arguments after -- only.
func afterDash(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// seedGuardCommand is the guardian of a lock; it is told on standard input.
func (a *app) seedGuardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guard",
		Short:  "Hold the lock of a member",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// To tell a parent that is gone must not end the guardian: the member
			// would stay locked.
			signal.Ignore(syscall.SIGPIPE)
			return seed.Guard(cmd.Context(), os.Stdin, a.stdout)
		},
	}
}

// seedSource is the member that the settings name.
func seedSource(s *config.Seed) seed.SourceOptions {
	o := seed.SourceOptions{URI: s.SourceURI, DBPath: s.SourceDBPath, AllowPrimary: s.AllowPrimary, YesBlockAllWrites: s.YesBlockAllWrites, Rate: s.Rate()}
	if s.Way != "auto" {
		o.Way = seed.Way(s.Way)
	}
	return o
}

// openSeedAgent makes the agent of a plan.
func openSeedAgent(s *config.Seed, plan *seed.Plan, log *slog.Logger) (*seed.Agent, func() error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program, to start the guardian of the lock: %w", err)
	}
	return seed.OpenAgent(plan, seed.ServeOptions{SourceOptions: seedSource(s), Guard: []string{self, "seed", "guard"},
		LockLimit: s.LockLimit, MaxBehind: s.MaxBehind, SpoolDir: s.SpoolDir, Pullers: s.Pullers, Workers: s.Workers, Limit: s.Limiter(), Log: log})
}

func (a *app) seedLocal(ctx context.Context, s *config.Seed, origins config.Origins, command []string) (err error) {
	screen := a.screen()
	log := newLog(a.logTo(screen), s.Common)
	warnSecrets(log, origins, map[string]string{"from-uri": s.SourceURI, "set-uri": s.SetURI})
	plan, err := seed.Inspect(ctx, seedSource(s))
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	if s.DryRun {
		seed.CheckMember(ctx, plan, seedTarget(s, command))
		return a.tellSeedPlan(s, plan)
	}
	plan.Checks.LogWarnings(log)
	agent, closeAgent, err := openSeedAgent(s, plan, log)
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	defer func() { err = errors.Join(err, closeAgent()) }()
	log.Info("copying", "way", plan.Way, "why", plan.Why, "files", plan.Files, "size", size(float64(plan.Bytes)))
	return a.seed(ctx, s, agent, command, screen, log)
}

// seedTarget is the new member that the settings name.
func seedTarget(s *config.Seed, command []string) seed.Options {
	return seed.Options{
		Pull: seed.PullOptions{DBPath: s.TargetDBPath, Workers: s.Workers, NoClone: s.NoReflink},
		Member: seed.MemberOptions{Command: command, Join: s.Join, Votes: s.JoinVotes, Priority: s.JoinPriority, Hidden: s.JoinHidden,
			SetURI: s.SetURI, CatchUp: s.CatchUp, NewSet: s.NewSet, NewSetHost: s.NewSetHost, Mongod: s.Mongod, KeepExpiry: s.KeepExpiry},
	}
}

// seed copies from src and reports how it went.
func (a *app) seed(ctx context.Context, s *config.Seed, src seed.Source, command []string, screen *screen, log *slog.Logger) error {
	stats := &seed.Stats{}
	var limit *pace.Limiter
	if s.From != "" { // on one machine the agent holds to it
		limit = s.Limiter()
	}
	o := seedTarget(s, command)
	o.Pull.Stats, o.Pull.Log, o.Pull.Limit = stats, log, limit
	if o.Member.SetURI == "" {
		o.Member.SetURI = s.SourceURI
	}
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { watchSeed(watching, screen, log, time.Now(), stats.Stats) })
	res, err := seed.Run(ctx, src, o)
	stop()
	wg.Wait()
	if err != nil && context.Cause(ctx) != nil {
		err = mongo.WithHint(fmt.Errorf("%w before the copy was done", context.Cause(ctx)), "the same command goes on with what is there")
	}
	return errors.Join(err, a.tellSeeded(s, res, err))
}

// seedReport is the report of a seeding.
type seedReport struct {
	Version string       `json:"version"`
	Result  *seed.Result `json:"result"`
	Error   string       `json:"error,omitempty"`
	Hint    string       `json:"hint,omitempty"`
}

// tellSeeded writes the report.
func (a *app) tellSeeded(s *config.Seed, res *seed.Result, err error) error {
	r := seedReport{Version: buildVersion(), Result: res}
	if err != nil {
		r.Error, r.Hint = err.Error(), mongo.HintOf(err)
	}
	var failed []error
	if s.Report != "" {
		failed = append(failed, writeJSONFile(s.Report, r))
	}
	if s.Output == "json" {
		failed = append(failed, writeJSON(a.stdout, r))
	} else if err == nil {
		_, e := io.WriteString(a.stdout, seededText(s, res))
		failed = append(failed, e)
	}
	return errors.Join(failed...)
}

func seededText(s *config.Seed, r *seed.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "copied %s in %s by %s, in %.1f s\n", size(float64(r.Bytes)), plural(r.Files, "file"), r.Way, r.Seconds)
	if r.ClonedBytes > 0 {
		fmt.Fprintf(&b, "  cloned       %s, which share their blocks with the source, in %s\n", size(float64(r.ClonedBytes)), seconds(r.FreezeSeconds))
	} else {
		fmt.Fprintf(&b, "  first pass   %s in %s\n", size(float64(r.CopiedBytes)), seconds(r.CopySeconds))
	}
	if r.Way == seed.WayLock {
		fmt.Fprintf(&b, "  locked       %.2f s, %s changed meanwhile\n", r.LockSeconds, size(float64(r.ChangedBytes)))
		fmt.Fprintf(&b, "  second pass  %s in %s\n", size(float64(r.AgainBytes)), seconds(r.FinishSeconds))
	}
	if r.Way == seed.WayCursor {
		fmt.Fprintf(&b, "  extended     by %s of journal, in %s\n", size(float64(r.AgainBytes)), seconds(r.FreezeSeconds+r.FinishSeconds))
	}
	if r.Position != "" {
		fmt.Fprintf(&b, "  recovered    %s\n", seconds(r.RecoverSeconds))
	}
	if r.Member != "" {
		fmt.Fprintf(&b, "  started      %s\n  caught up    %s\n", seconds(r.StartSeconds), seconds(r.CatchUpSeconds))
	}
	switch {
	case r.Position != "":
		b.WriteString(clonedText(s, r))
	case s.Join != "":
		fmt.Fprintf(&b, "%s is a member of %s\n", plain(s.Join), plain(r.Origin.SetName))
	case s.Start:
		b.WriteString("the new member runs; add it with rs.add({host: …, votes: 0, priority: 0}), and give it its vote when it is SECONDARY\n")
	default:
		fmt.Fprintf(&b, "%s is ready: start a mongod with --replSet %s on it within the oplog's window, then rs.add() it\n", plain(s.TargetDBPath), plain(r.Origin.SetName))
	}
	return b.String()
}

// clonedText says how to go on with a set of its own. Until it has caught up for good
// it must expire nothing by itself, and what was deferred is its job's to restore.
func clonedText(s *config.Seed, r *seed.Result) string {
	var b strings.Builder
	job, off := "", ""
	if r.Job != "" {
		job = " --job " + r.Job
	}
	if !s.KeepExpiry {
		off = " --setParameter ttlMonitorEnabled=false"
	}
	if !s.Start {
		fmt.Fprintf(&b, "start it with --replSet %s%s and initiate it with rs.initiate()\n", plain(s.NewSet), off)
	}
	fmt.Fprintf(&b, "the clone stands at %s; to follow the old set from there:\n"+
		"  millrace sync%s --mode incremental --start-at %s --source <old set> --target <new set>\n", r.Position, job, r.Position)
	if off != "" {
		b.WriteString("the clone expires no documents; when that job is finalized:\n" +
			"  db.adminCommand({setParameter: 1, ttlMonitorEnabled: true}), and start it without that parameter from then on\n")
	}
	if r.HeldExpiries > 0 {
		fmt.Fprintf(&b, "until then the clone's indexes and collections have far expiries; the job of this name restores the real ones, %d\n", r.HeldExpiries)
	}
	return b.String()
}

// tellSeedPlan writes the plan; a failed check is the command's error.
func (a *app) tellSeedPlan(s *config.Seed, p *seed.Plan) error {
	if s.Output == "json" {
		return errors.Join(writeJSON(a.stdout, p), checksFailed(p.Checks))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "way      %s: %s\n", p.Way, plain(p.Why))
	fmt.Fprintf(&b, "source   %s %s, version %s, %s behind\n", plain(p.Origin.Host), p.Origin.State, plain(p.Origin.Version), seconds(p.Origin.LagSecs))
	fmt.Fprintf(&b, "size     %s in %s\n", size(float64(p.Bytes)), plural(p.Files, "file"))
	if len(p.Checks) > 0 {
		fmt.Fprintf(&b, "\n%s\n", checksTable(p.Checks))
	}
	if _, err := io.WriteString(a.stdout, b.String()); err != nil {
		return err
	}
	return checksFailed(p.Checks)
}

// watchSeed shows the progress until ctx ends.
func watchSeed(ctx context.Context, s *screen, log *slog.Logger, began time.Time, stats func() seed.Snapshot) {
	watchLines(ctx, s, func() {
		st := stats()
		log.Info("progress", "phase", st.Phase, "size", size(float64(st.Done)), "total", size(float64(st.Total)), "eta", seconds(seedETA(st)))
	}, func(columns, _ int) []string { return seedView(stats(), time.Since(began), columns) })
}

// seedETA is how long the phase will take yet, in seconds; -1 is not known.
func seedETA(s seed.Snapshot) float64 {
	if s.Done <= 0 || s.Total <= 0 || s.PhaseSeconds <= 0 {
		return -1
	}
	return max(float64(s.Total-s.Done), 0) * s.PhaseSeconds / float64(s.Done)
}

func seedView(s seed.Snapshot, elapsed time.Duration, columns int) []string {
	v := viewer{columns: max(columns, 10)}
	v.add("seed: "+string(s.Phase), clock(elapsed))
	if s.Total > 0 {
		p := share(s.Done, s.Total, false)
		v.add(label("files")+v.bar(p)+fmt.Sprintf("%3.0f%%  %s", p*100, size(float64(s.Done))),
			size(float64(s.Done)/max(s.PhaseSeconds, 0.001))+"/s", "eta "+seconds(seedETA(s)))
	}
	return v.lines
}
