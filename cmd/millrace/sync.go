package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/verify"
)

func (a *app) syncCommand() *cobra.Command {
	var s config.Sync
	cmd := &cobra.Command{
		Use:   "sync --source URI --target URI",
		Short: "Copy a cluster and follow its changes",
		Long: `Copies what the rules keep from the source to the target, then follows the
changes until it is told to finalize (millrace finalize, or --until).

The job's checkpoint is kept in the database millrace of the target: the same
command resumes the job where it stood, also after a crash. An interrupt stops
it and keeps the checkpoint; a second one ends the program at once.`,
		Example: `  # copy, follow, and cut over as soon as the target has caught up
  millrace sync --source mongodb://a:27017 --target mongodb://b:27017 --until caught-up

  # see what would be done, and whether anything stands in the way
  millrace sync --source mongodb://a:27017 --target mongodb://b:27017 --dry-run

  # two databases, one of them under another name
  millrace sync --config sync.yaml --include 'shop.*,crm.*' --rename crm=crm2`,
		Args: cobra.NoArgs,
	}
	s.Bind(cmd.Flags())
	return a.configured(cmd, config.CommandSync, func(o config.Origins, _ []string) error { return s.Validate(o) },
		func(ctx context.Context, o config.Origins, _ []string) error { return a.sync(ctx, &s, o) })
}

// sync runs one job from its precheck to its end.
func (a *app) sync(ctx context.Context, s *config.Sync, origins config.Origins) error {
	a.limitMemory()
	screen := a.screen()
	log := newLog(a.logTo(screen), s.Common)
	warnSecrets(log, origins, map[string]string{"source": s.Source, "target": s.Target, "token": s.Token})

	log.Info("connecting", "source", mongo.Redact(s.Source), "target", mongo.Redact(s.Target))
	spec := s.Spec()
	spec.Log = log
	if spec.SpoolDir == "" {
		if dir, err := server.StateDir(a.lookupEnv); err == nil {
			spec.SpoolDir = filepath.Join(dir, "spool")
		}
	}
	j, err := a.open(ctx, spec)
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	defer j.Close()
	plan, err := j.Plan(ctx)
	if err != nil {
		return a.beforeWriting(ctx, err)
	}
	if s.DryRun {
		return a.dryRun(plan, s.Output)
	}
	if plan.Checks.Failed() {
		return precheckError(plan.Checks)
	}
	plan.Checks.LogWarnings(log)
	began := time.Now()
	runErr := a.runJob(ctx, s, j, plan, screen, log)
	var refused *job.PrecheckError
	if errors.As(runErr, &refused) { // something came in between
		return precheckError(refused.Plan.Checks)
	}
	sum := summarize(ctx, j.Status(), plan, began, runErr)
	if s.Verify && runErr == nil {
		a.verifyAfter(ctx, s, screen, log, &sum)
	}
	return a.finish(s, sum)
}

// memoryLimit is where the collector begins to work harder. All queues are
// bounded well below it; what is above them is garbage that has not been
// collected yet, and reused memory costs less than what the system gives anew.
const memoryLimit = 240 << 20

// limitMemory leaves a limit from the environment as it is.
func (a *app) limitMemory() {
	if v, ok := a.lookupEnv("GOMEMLIMIT"); !ok || v == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// spareCollector lets garbage grow to several times what is in use: that of a
// command that reads much and keeps little is replies that were walked.
func (a *app) spareCollector() {
	a.limitMemory()
	if v, ok := a.lookupEnv("GOGC"); !ok || v == "" {
		debug.SetGCPercent(400)
	}
}

// logTo is where logs go: standard error, above the live view if there is one.
func (a *app) logTo(s *screen) io.Writer {
	if s == nil {
		return a.stderr
	}
	return s
}

// beforeWriting gives an error that came before any write its exit code.
func (a *app) beforeWriting(ctx context.Context, err error) error {
	if context.Cause(ctx) != nil {
		return withCode(exitFailure, context.Cause(ctx))
	}
	return withCode(exitUsage, err)
}

// runJob runs the job with its control API and its live view. It returns when
// all three have ended.
func (a *app) runJob(ctx context.Context, s *config.Sync, j syncJob, plan *job.Plan, screen *screen, log *slog.Logger) error {
	srv, err := server.Listen(ctx, server.Options{Address: s.Listen, Token: s.Token, Job: j, Log: log, PProf: s.PProf})
	if err != nil {
		return err
	}
	forget := a.record(plan.Job, srv, log)
	defer forget()
	log.Info("job runs", "job", plan.Job, "resumes", plan.Resumes, "control", srv.Addr())
	if !srv.Loopback() {
		log.Warn("the control API can be reached from other machines, and its token is not encrypted on the way",
			"control", srv.Addr(), "hint", "listen on 127.0.0.1 and reach it through a tunnel or a TLS proxy")
	}

	// The server and the view outlive the job's context: they show how it ends.
	around, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(around); err != nil {
			log.Error("control API ended", "error", err)
		}
	})
	wg.Go(func() { watch(around, screen, log, j.Status) })
	err = j.Run(ctx)
	stop()
	wg.Wait()
	return err
}

// record lets the other commands find this sync. A job does not fail for want
// of a record.
func (a *app) record(name string, srv *server.Server, log *slog.Logger) (forget func()) {
	registry, err := server.NewRegistry(a.lookupEnv)
	var remove func() error
	if err == nil {
		remove, err = registry.Add(server.Record{Job: name, PID: os.Getpid(), Address: srv.Addr(), Token: srv.Token(), StartedAt: time.Now()})
	}
	if err != nil {
		log.Warn("other commands cannot find this sync by itself", "error", err,
			"hint", "set MILLRACE_TOKEN for it and for them, and give them --address "+srv.Addr())
		return func() {}
	}
	return func() {
		if err := remove(); err != nil {
			log.Warn("a stale record stays behind", "error", err)
		}
	}
}

// summarize reports how the job ended.
func summarize(ctx context.Context, st job.Status, plan *job.Plan, began time.Time, runErr error) summary {
	sum := summary{Version: buildVersion(), Finalized: runErr == nil, Plan: plan, Status: st, Started: began, Ended: time.Now()}
	sum.Seconds = sum.Ended.Sub(began).Seconds()
	sum.err = outcome(ctx, st, runErr)
	return sum
}

// verifyAfter compares the clusters after the cut-over. Differences are looked
// at again for a while, because documents may just be expiring on both sides.
func (a *app) verifyAfter(ctx context.Context, s *config.Sync, screen *screen, log *slog.Logger, sum *summary) {
	report, err := a.compare(ctx, screen, log, verify.Spec{
		Source: s.Source, Target: s.Target, Rules: s.Rules(),
		Options: verify.Options{Online: true, Recheck: verify.RecheckOptions{For: 30 * time.Second}},
	})
	if err == nil {
		sum.Verify, err = report, verifiedError(report)
	}
	if sum.err == nil {
		sum.err = err
	}
}

// finish reports how the job ended, in the report, on standard output and as
// the command's error.
func (a *app) finish(s *config.Sync, sum summary) error {
	if sum.err != nil {
		sum.Error, sum.Hint = sum.err.Error(), mongo.HintOf(sum.err)
	}
	var failed []error
	if s.Report != "" {
		failed = append(failed, writeJSONFile(s.Report, sum))
	}
	if s.Output == "json" {
		failed = append(failed, writeJSON(a.stdout, sum))
	} else {
		failed = append(failed, writeSummary(a.stdout, sum))
	}
	if sum.err != nil {
		return withCode(exitFailure, sum.err)
	}
	return withCode(exitFailure, errors.Join(failed...))
}

// outcome is the command's error for the way a job ended.
func outcome(ctx context.Context, s job.Status, runErr error) error {
	switch {
	case runErr != nil && errors.Is(context.Cause(ctx), errSignal):
		return mongo.WithHint(fmt.Errorf("%w before the job was finalized", errSignal), "its checkpoint is kept: the same command resumes it")
	case runErr != nil:
		return runErr
	case len(s.Differences) > 0:
		return mongo.WithHint(fmt.Errorf("finalized, but the target differs from the source in %d things, first: %s", len(s.Differences), plain(s.Differences[0])),
			"the report lists them all; millrace verify compares again")
	}
	return nil
}
