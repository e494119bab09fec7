package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/api"
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
it and keeps the checkpoint; a second one ends the program at once.

--mode structure makes the collections with their options, the indexes and views,
and on a sharded target the shard keys, copies no document, and ends by itself.`,
		Example: `  # copy, follow, and cut over as soon as the target has caught up
  millrace sync --source mongodb://a:27017 --target mongodb://b:27017 --until caught-up

  # see what would be done, and whether anything stands in the way
  millrace sync --source mongodb://a:27017 --target mongodb://b:27017 --dry-run

  # make collections, indexes and views alone, and compare them
  millrace sync --source mongodb://a:27017 --target mongodb://b:27017 --mode structure --verify

  # two databases, one of them under another name
  millrace sync --config sync.yaml --include 'shop.*,crm.*' --rename crm=crm2`,
	}
	return a.configured(cmd, config.CommandSync, &s, func(ctx context.Context, run *session) error { return run.sync(ctx, &s) })
}

// sync runs one job from its precheck to its end.
func (r *session) sync(ctx context.Context, s *config.Sync) error {
	r.limitMemory(max(s.ApplyBuffer-job.DefaultApplyBuffer, 0))
	r.log.Info("connecting", "source", mongo.Redact(s.Source), "target", mongo.Redact(s.Target))
	spec := s.Spec
	spec.Log = r.log
	if spec.SpoolDir == "" {
		if dir, err := server.StateDir(r.LookupEnv); err == nil {
			spec.SpoolDir = filepath.Join(dir, "spool")
		}
	}
	j, err := r.open(ctx, spec)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer j.Close()
	plan, err := j.Plan(ctx)
	switch {
	case err != nil:
		return beforeWriting(ctx, err)
	case s.DryRun:
		return cmp.Or(r.Tell(s.Output, plan, planText(plan)), checksFailed(plan.Checks))
	case plan.Checks.Failed():
		return precheckError(plan.Checks)
	}
	plan.Checks.LogWarnings(r.log)
	began, already := time.Now(), plan.Finalized != nil
	var runErr error
	if !already {
		runErr = r.runJob(ctx, s, j, plan)
	}
	if forbidden, ok := errors.AsType[*job.PrecheckError](runErr); ok { // something came in between
		return precheckError(forbidden.Plan.Checks)
	}
	sum := summary{Version: cli.BuildInfo().Version, Finalized: runErr == nil, Already: already, Plan: plan, Status: j.Status(), Started: began, Ended: time.Now()}
	sum.Seconds = sum.Ended.Sub(began).Seconds()
	if already {
		sum.Status.Phase, sum.Status.TargetPosition = job.PhaseFinalized, plan.TargetPosition
	}
	err = r.outcome(ctx, s, sum.Status, runErr)
	if s.Verify && runErr == nil {
		var differs error
		sum.Verify, differs = r.verifyAfter(ctx, s)
		err = cmp.Or(err, differs)
	}
	if signal, ok := errors.AsType[cli.Stopped](context.Cause(ctx)); ok && runErr != nil {
		sum.Stopped = unix.SignalName(signal.Signal)
	}
	return refused(cmp.Or(err, r.Tell(s.Output, sum, summaryText(sum))))
}

// memoryLimit is where the collector begins to work harder. The queues that are
// full at the same time are well below it; what is above them is garbage that has not
// been collected yet, and reused memory costs less than what the system gives anew.
const memoryLimit = 240 << 20

// limitMemory sets the limit, with so many bytes more where queues were made larger:
// what is in use is not to be collected over and over. It leaves a limit from the
// environment as it is.
func (a *app) limitMemory(more int64) {
	if v, ok := a.LookupEnv("GOMEMLIMIT"); !ok || v == "" {
		debug.SetMemoryLimit(memoryLimit + more)
	}
}

// spareCollector lets garbage grow to several times what is in use: that of a
// command that reads much and keeps little is replies that were walked.
func (a *app) spareCollector() {
	a.limitMemory(0)
	if v, ok := a.LookupEnv("GOGC"); !ok || v == "" {
		debug.SetGCPercent(400)
	}
}

// beforeWriting gives an error that came before any write its exit code.
func beforeWriting(ctx context.Context, err error) error {
	if context.Cause(ctx) != nil {
		return cli.WithCode(cli.ExitFailure, context.Cause(ctx))
	}
	return cli.WithCode(cli.ExitUsage, err)
}

// runJob runs the job with its control API and its live view. It returns when
// all three have ended.
func (r *session) runJob(ctx context.Context, s *config.Sync, j syncJob, plan *job.Plan) error {
	build := cli.BuildInfo()
	srv, err := api.Listen(ctx, api.SingleOptions{Address: s.Listen, Token: s.Token, Job: j, Log: r.log, PProf: s.PProf,
		Cert: s.TLSCert, Key: s.TLSKey, OpenStatus: s.OpenStatus, Version: build.Version, Revision: build.Revision})
	if err != nil {
		return err
	}
	defer r.record(plan.Job, plan.Target, s.TLSCert, srv)()
	r.log.Info("job runs", "job", plan.Job, "resumes", plan.Resumes, "control", srv.URL())
	if !srv.Loopback() && s.TLSCert == "" {
		r.log.Warn("the control API can be reached from other machines, and its token is not encrypted on the way",
			"control", srv.URL(), "hint", "give --listen-tls-cert, or listen on 127.0.0.1 behind a tunnel")
	}

	// The server and the view outlive the job's context: they show how it ends.
	return during(context.WithoutCancel(ctx), func() error { return j.Run(ctx) }, func(ctx context.Context) {
		if err := srv.Serve(ctx); err != nil {
			r.log.Error("control API ended", "error", err)
		}
	}, func(ctx context.Context) {
		r.watch(ctx, s.ProgressInterval, r.progress(s, j), func(columns, rows int) []string {
			return view(j.Status(), time.Now(), columns, rows)
		})
	})
}

// progress logs how the job stands, more seldom while it follows.
func (r *session) progress(s *config.Sync, j syncJob) func() {
	var told time.Time
	return func() {
		st := j.Status()
		if st.Phase == job.PhaseFollowing && time.Since(told) < s.SteadyInterval {
			return
		}
		told = time.Now()
		logProgress(r.log, st)
	}
}

// record lets the other commands find this sync. A job does not fail for want
// of a record.
func (r *session) record(name, target, cert string, srv *api.Single) (forget func()) {
	registry, err := server.NewRegistry(r.LookupEnv)
	if err == nil && cert != "" {
		cert, err = filepath.Abs(cert)
	}
	var remove func() error
	if err == nil {
		remove, err = registry.Add(server.Record{Job: name, PID: os.Getpid(), Address: srv.URL(), Token: srv.Token(), Target: target, Cert: cert, StartedAt: time.Now()})
	}
	if err != nil {
		r.log.Warn("other commands cannot find this sync by itself", "error", err,
			"hint", "set MILLRACE_TOKEN for it and for them, and give them --address "+srv.URL())
		return func() {}
	}
	return func() {
		if err := remove(); err != nil {
			r.log.Warn("a stale record stays behind", "error", err)
		}
	}
}

// verifyAfter compares the clusters after the cut-over. Differences are looked
// at again for a while, because documents may just be expiring on both sides.
func (r *session) verifyAfter(ctx context.Context, s *config.Sync) (*verify.Report, error) {
	report, err := r.compare(ctx, s.ProgressInterval, verify.Spec{
		Source: s.Source, Target: s.Target, SourceShards: s.SourceShards, ShardsLeft: true, TargetShards: s.TargetShards, AllowShard: s.AllowShard, Rules: s.Rules,
		Options: verify.Options{StructureOnly: s.Mode == job.ModeStructure, Online: true, Recheck: verify.RecheckOptions{For: 30 * time.Second}},
	})
	if err != nil {
		return nil, err
	}
	return report, verifiedError(report)
}

const checkpointKept = "its checkpoint is kept: the same command resumes it"

// outcome is the command's error for the way a job ended.
func (r *session) outcome(ctx context.Context, s *config.Sync, st job.Status, runErr error) error {
	signal, ended := errors.AsType[cli.Stopped](context.Cause(ctx))
	switch {
	case ended && (errors.Is(runErr, signal) || errors.Is(runErr, context.Canceled)):
		if s.Until == "never" && !s.Mode.EndsByItself() && signal.Signal != syscall.SIGHUP {
			r.log.Info(signal.Error()+"; "+checkpointKept, "job", st.Job)
			return nil // it is how such a job is stopped
		}
		return mongo.WithHint(fmt.Errorf("%w before the job was finalized", signal), checkpointKept)
	case runErr != nil:
		return runErr
	case len(st.Differences) > 0:
		return mongo.WithHint(fmt.Errorf("finalized, but the target differs from the source in %d things, first: %s", len(st.Differences), st.Differences[0]),
			"the report lists them all; millrace verify compares again")
	}
	return nil
}
