package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/filecopy"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/verify"
)

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
	var srv *api.Single
	if !s.DryRun {
		var err error
		if srv, err = r.listen(ctx, s); err != nil {
			return beforeWriting(ctx, err)
		}
		defer func() { _ = srv.Close() }() // for whatever fails before it serves
	}
	j, err := r.openSync(ctx, s, spec)
	if err != nil {
		return beforeWriting(ctx, err)
	}
	defer j.Close()
	plan, err := j.Plan(ctx)
	switch {
	case err != nil:
		return beforeWriting(ctx, err)
	case s.DryRun:
		return cmp.Or(r.Tell(s.Output, plan, textOf("plan", plan)), checksFailed(plan.Checks))
	case plan.Checks.Failed():
		return precheckError(plan.Checks)
	}
	plan.Checks.LogWarnings(r.log)
	began, already := time.Now(), plan.Finalized != nil
	var runErr error
	if f, is := j.(*filecopy.Job); !already {
		runErr = r.runJob(ctx, s, running{j, plan, srv})
	} else if is {
		f.Finish(ctx) // the run that finalized it may have been killed
	}
	if forbidden, ok := errors.AsType[*job.PrecheckError](runErr); ok { // something came in between
		return precheckError(forbidden.Plan.Checks)
	}
	if errors.Is(runErr, state.ErrRunning) { // this process has done nothing that a report could show
		return refused(runErr) // names the job
	}
	sum := summary{Version: cli.BuildInfo().Version, Finalized: runErr == nil, Already: already, Plan: plan,
		Status: j.Status(), Started: began, Ended: time.Now()}
	sum.Seconds = sum.Ended.Sub(began).Seconds()
	if already {
		sum.Status.Phase, sum.Status.FinalizedAt = job.PhaseFinalized, plan.Finalized
		sum.Status.TargetPosition = plan.TargetPosition
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
	return refused(cmp.Or(err, r.Tell(s.Output, sum, textOf("summary", sum))))
}

// openSync opens a job whose copy is of documents or by files.
func (r *session) openSync(ctx context.Context, s *config.Sync, spec job.Spec) (syncJob, error) {
	if s.Files == nil {
		return r.open(ctx, spec)
	}
	return filecopy.Open(ctx, spec, filecopy.Options{Source: s.Files.SourceAgent, Targets: s.Files.TargetAgents,
		Connect: func(address string) (*seed.Client, error) {
			token, err := r.findSeedToken(s.Files.TokenFile, address)
			if err != nil {
				return nil, err
			}
			return seed.NewClient(seed.ClientOptions{URL: address, TokenFile: token, CA: s.Files.CAFile,
				RetryFor: 8 * time.Second, Log: r.log}) // as an agent may take to start again
		}})
}

// memoryLimit is where the collector begins to work harder. All queues together are well
// below it. The rest is garbage, and reused memory costs less than new memory.
const memoryLimit = 240 << 20

// limitMemory sets memoryLimit, plus the bytes by which queues are larger than by default. A
// limit from the environment wins.
func (a *app) limitMemory(more int64) {
	if v, ok := a.LookupEnv("GOMEMLIMIT"); !ok || v == "" {
		debug.SetMemoryLimit(memoryLimit + more)
	}
}

// spareCollector lets garbage grow to several times what is in use, for a command that reads much and keeps little.
func (a *app) spareCollector() {
	a.limitMemory(0)
	if v, ok := a.LookupEnv("GOGC"); !ok || v == "" {
		debug.SetGCPercent(400)
	}
}

// beforeWriting gives an error before the first write its exit code.
func beforeWriting(ctx context.Context, err error) error {
	if context.Cause(ctx) != nil {
		return cli.WithCode(cli.ExitFailure, context.Cause(ctx))
	}
	return cli.WithCode(cli.ExitUsage, err)
}

func (r *session) listen(ctx context.Context, s *config.Sync) (*api.Single, error) {
	build := cli.BuildInfo()
	return api.Listen(ctx, api.SingleOptions{Address: s.Listen, Token: s.Token, Log: r.log, PProf: s.PProf,
		Cert: s.TLSCert, Key: s.TLSKey, OpenStatus: s.OpenStatus, Version: build.Version, Revision: build.Revision})
}

type running struct {
	syncJob

	plan *job.Plan
	srv  *api.Single
}

// runJob runs the job, its control API and its live view until all three have ended.
func (r *session) runJob(ctx context.Context, s *config.Sync, j running) error {
	ended := r.record(j.plan, s.TLSCert, j.srv)
	r.log.Info("job runs", "job", j.plan.Job, "resumes", j.plan.Resumes, "control", j.srv.URL)
	if !j.srv.Loopback && s.TLSCert == "" {
		r.log.Warn("the control API can be reached from other machines, and its token is not encrypted on the way",
			"control", j.srv.URL, "hint", "give --listen-tls-cert, or listen on 127.0.0.1 behind a tunnel")
	}

	// The server and the view outlive the job's context: they show how it ends.
	return during(context.WithoutCancel(ctx), func() error {
		err := j.Run(ctx)
		ended(endOf(ctx, j.Status(), err)) // before the server goes: those who watch look there then
		return err
	}, func(ctx context.Context) {
		if err := j.srv.Serve(ctx, j); err != nil {
			r.log.Error("control API ended", "error", err)
		}
	}, func(ctx context.Context) {
		r.watch(ctx, s.ProgressInterval, r.progress(s, j), func(columns, rows int) []string {
			return view(j.Status(), time.Now(), columns, rows)
		})
	})
}

// endOf returns the last status of a job that was finalized or failed, without its long lists. It returns nil for one
// that was stopped or that another process runs, which its target knows.
func endOf(ctx context.Context, st job.Status, err error) any {
	if err != nil && (ctx.Err() != nil || errors.Is(err, state.ErrRunning)) {
		return nil
	}
	if err != nil {
		st.Phase, st.Error, st.Hint = job.PhaseFailed, mongo.Brief(err), mongo.HintOf(err)
	}
	st.Copy.Collections, st.Shards, st.Routers = nil, nil, nil
	return st
}

func (r *session) progress(s *config.Sync, j syncJob) func() {
	var logged time.Time
	return func() {
		st := j.Status()
		if st.Phase == job.PhaseFollowing && time.Since(logged) < s.SteadyInterval {
			return
		}
		logged = time.Now()
		logProgress(r.log, st)
	}
}

// record lets the other commands find this sync. An error is only logged.
func (r *session) record(plan *job.Plan, cert string, srv *api.Single) (ended func(last any)) {
	registry, err := server.NewRegistry(r.LookupEnv)
	if err == nil && cert != "" {
		cert, err = filepath.Abs(cert)
	}
	var end func(any) error
	if err == nil {
		end, err = registry.Add(server.Record{Job: plan.Job, PID: os.Getpid(), Address: srv.URL, Token: srv.Token(),
			Target: plan.Target, Cert: cert, StartedAt: time.Now()})
	}
	if err != nil {
		r.log.Warn("other commands cannot find this sync by itself", "error", err,
			"hint", "set MILLRACE_TOKEN for it and for them, and give them --address "+srv.URL)
		return func(any) {}
	}
	return func(last any) {
		if err := end(last); err != nil {
			r.log.Warn("a stale record stays behind", "error", err)
		}
	}
}

// verifyAfter compares the clusters after the cut-over. It rechecks differences, because
// documents may be expiring on both sides.
func (r *session) verifyAfter(ctx context.Context, s *config.Sync) (*verify.Report, error) {
	report, err := r.compare(ctx, s.ProgressInterval, verify.Spec{
		Source: s.Source, Target: s.Target, SourceShards: s.SourceShards, SourceVia: s.Via, ShardsLeft: true,
		TargetShards: s.TargetShards,
		AllowShard:   s.AllowShard, Rules: s.Rules,
		Options: verify.Options{StructureOnly: s.Mode == job.ModeStructure, Users: s.Users, Online: true,
			Recheck: verify.RecheckOptions{For: 30 * time.Second}},
	})
	if err != nil {
		return nil, err
	}
	return report, verifiedError(report)
}

const checkpointKept = "its checkpoint is kept: the same command resumes it"

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
		return mongo.WithHint(fmt.Errorf("job %s: finalized, but the target differs from the source in %s, first: %s",
			cli.Plain(st.Job), plural(len(st.Differences), "thing"), st.Differences[0]),
			"the report lists them all; millrace verify compares again")
	}
	return nil
}

func (r *session) verifyClusters(ctx context.Context, s *config.Verify) error {
	r.spareCollector()
	r.log.Info("connecting", "source", mongo.Redact(s.Source), "target", mongo.Redact(s.Target))
	report, err := r.compare(ctx, s.ProgressInterval, s.Spec)
	if err != nil {
		return err
	}
	if err := r.Tell(s.Output, report, textOf("verified", report)); err != nil {
		return err
	}
	err = verifiedError(report)
	if err != nil && s.Report == "" && s.Output != "json" && (report.Count > maxListed || len(report.Schema) > maxListed) {
		return mongo.WithHint(err, "--report file.json lists up to --max-differences documents")
	}
	return err
}

func (r *session) compare(ctx context.Context, interval time.Duration, spec verify.Spec) (report *verify.Report,
	err error) {
	begun := make(chan func() verify.Stats, 1)
	spec.Log, spec.Observe = r.log, func(stats func() verify.Stats) { begun <- stats }
	err = during(ctx, func() (err error) { report, err = r.verify(ctx, spec); return err }, func(ctx context.Context) {
		select {
		case stats := <-begun:
			r.watchVerify(ctx, interval, stats)
		case <-ctx.Done():
		}
	})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w before everything was compared", context.Cause(ctx))
	}
	return report, err
}

func verifiedError(r *verify.Report) error {
	if r.Same {
		return nil
	}
	if r.StructureOnly {
		return cli.WithCode(cli.ExitFailure,
			fmt.Errorf("the clusters differ: %s of collections, indexes or options", plural(len(r.Schema), "difference")))
	}
	return cli.WithCode(cli.ExitFailure, fmt.Errorf("the clusters differ: %s, %s of collections, indexes or options",
		plural(int(r.Count), "document"), plural(len(r.Schema), "difference")))
}

// sameText returns the result for clusters without unexpected differences.
func sameText(r *verify.Report) string {
	skipped := func(c verify.Collection) bool { return c.Skipped != nil }
	deferred := func(d verify.SchemaDifference) bool { return d.Deferred }
	unmapped := func(c verify.Collection) bool { return c.Unmapped > 0 }
	switch {
	case slices.ContainsFunc(r.Collections, unmapped):
		return "nothing differs but what the rules leave out"
	case slices.ContainsFunc(r.Expected, deferred):
		return "nothing differs but what is expected; what is deferred comes at the latest when its job is finalized"
	case len(r.Expected) > 0 || slices.ContainsFunc(r.Collections, skipped):
		return "nothing differs but what the skipped operations leave"
	}
	return "nothing differs"
}

func (r *session) watchVerify(ctx context.Context, interval time.Duration, stats func() verify.Stats) {
	began := time.Now()
	r.watch(ctx, interval, func() {
		st := stats()
		r.log.Info("progress", "docs", st.Docs, "docsTotal", st.EstimatedDocs,
			"bytes", bytesOf(st.Bytes), "collections", st.CollectionsDone, "collectionsTotal", st.Collections,
			"rechecking", st.Waiting, "differences", st.Differences)
	}, func(columns, _ int) []string { return verifyView(stats(), time.Since(began), columns) })
}

func verifyView(st verify.Stats, elapsed time.Duration, columns int) []string {
	v := viewer(columns)
	return v.lines("view of verify", struct {
		viewer
		verify.Stats

		Elapsed float64
	}{v, st, elapsed.Seconds()})
}
