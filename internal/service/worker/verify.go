package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
)

const (
	// checkMemory bounds the documents of a verification, in bytes.
	maxChecks   = 2
	checkMemory = 64 << 20
	// maxWait is how long differences may wait for a job that does not follow.
	maxWait = 10 * time.Minute
)

func (w *Worker) lookVerify(ctx context.Context) {
	if w.draining() || time.Since(w.verified) < lookEvery/2 {
		return // the view changes often for other reasons
	}
	w.verified = time.Now()
	w.schedule(ctx)
	waits := map[string]time.Time{}
	for _, v := range w.View.OpenVerifications() {
		j := w.View.Job(v.Request.Job)
		if j == nil || j.Definition.Desired.Removed || v.Lease != nil || w.checking(v.Request.Job) {
			continue
		}
		key := v.Request.Job + "." + v.Request.ID
		waits[key] = cmp.Or(w.waits[key], time.Now())
		// The worker of the job comes first: it has what the settings refer to.
		mine := j.Lease != nil && j.Lease.Worker == w.Name
		if v.Request.Repair != nil && !w.mayRepair(j) {
			continue
		}
		if mine || time.Since(waits[key]) > otherTurn && j.Definition.Fits(w.Labels) {
			w.startCheck(ctx, v.Request)
		}
	}
	w.waits = waits
}

func (w *Worker) checking(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checks[job] != nil || len(w.checks) >= maxChecks
}

func (w *Worker) schedule(ctx context.Context) {
	for _, name := range w.Jobs() {
		j := w.View.Job(name)
		if j == nil || j.Definition.Desired.Verify == nil || j.Definition.Desired.Removed || j.State() != service.Running ||
			j.Report.Status == nil || j.Report.Status.Phase != job.PhaseFollowing {
			continue
		}
		s, now := j.Definition.Desired.Verify, time.Now().UTC()
		id, due := s.Slot(now), true
		for _, v := range w.View.Verifications(name) {
			due = due && !v.Open() && v.Request.ID != id
		}
		if !due {
			continue
		}
		err := w.Hub.Verifications.Create(ctx, &service.VerifyRequest{ID: id, Job: name, UID: j.Definition.UID,
			Options: s.Options(), Scheduled: true, CreatedAt: now, CreatedBy: "schedule"})
		if err != nil && !errors.Is(err, hub.ErrExists) && ctx.Err() == nil {
			w.Log.Warn("a verification that is due cannot be asked for", "job", name, "error", err)
		}
	}
}

type check struct {
	*task
	request service.VerifyRequest
	lag     lagging
	repair  *repair // nil without a repair

	mu     sync.Mutex
	report service.VerifyReport
	stats  func() verify.Stats
}

var (
	errCanceled = errors.New("the verification was canceled")
	errWaited   = errors.New("cannot separate differences from changes that are not applied yet")
)

func (w *Worker) startCheck(ctx context.Context, request service.VerifyRequest) {
	log := w.Log.With("job", request.Job, "verification", request.ID)
	if t := w.begin(ctx, hub.Verifying(request.Job), log); t != nil {
		c := &check{task: t, request: request, lag: lagging{view: w.View, job: request.Job, now: time.Now}}
		lead(w, w.checks, request.Job, c, c.run)
	}
}

func (c *check) run() {
	c.keeping(func() {
		if !c.begin() {
			return
		}
		end := c.worker.Spans.Verify(c.ctx, c.request.Job, c.request.ID, c.worker.Name)
		report, found, err := c.compare()
		end(differences(report), err)
		c.end(report, found, err)
	}, func(context.Context) {})
}

func differences(r *verify.Report) int64 {
	if r == nil {
		return 0
	}
	return r.Count + int64(len(r.Schema))
}

// begin asks the store, which is newer than the view.
func (c *check) begin() bool {
	h, w := c.worker.Hub, &c.request
	now, err := h.Verifications.Requested(c.ctx, w.Job, w.ID)
	var was *service.VerifyReport
	if err == nil {
		was, err = h.Verifications.LastReport(c.ctx, w.Job, w.ID)
	}
	switch {
	case errors.Is(err, hub.ErrNotFound):
		return false
	case err != nil:
		c.log.Warn("the verification cannot be read", "error", err)
		return false
	case now.CanceledBy != "" || was != nil && was.State.Final():
		return false
	}
	c.report = service.VerifyReport{Run: c.lease.Run, Worker: c.worker.Name, Attempt: 1, State: service.VerifyRunning,
		StartedAt: time.Now().UTC()}
	if was != nil {
		c.report.Attempt, c.report.Repair = was.Attempt+1, was.Repair // until this attempt repairs
	}
	c.log.Info("verification begins", "attempt", c.report.Attempt)
	return c.sendReport() == nil
}

func (c *check) compare() (*verify.Report, *collector, error) {
	spec, found, err := c.spec()
	if err == nil && c.request.Repair != nil {
		if c.repair, err = c.newRepair(); err == nil {
			spec.Documents = c.repair.documents()
		}
	}
	if err != nil {
		return nil, nil, err
	}
	var report *verify.Report
	ended := make(chan error, 1)
	go func() {
		var err error
		if c.repair != nil {
			err = c.repair.run()
		}
		if err == nil {
			report, err = verify.Clusters(c.ctx, spec)
		}
		ended <- err
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		changed, _ := c.worker.View.Changed()
		c.look()
		select {
		case err := <-ended:
			c.show()
			return report, found, err
		case <-tick.C:
			c.show()
			_ = c.sendReport() // the next replaces it
		case <-changed:
			_ = pace.Pause(c.ctx, 100*time.Millisecond) // ended reports the end
		}
	}
}

// assigns reports whether other workers may read parts.
func (c *check) assigns(loads pace.Loads) bool {
	o := &c.request.Options
	if j := c.worker.View.Job(c.request.Job); j != nil && j.Definition.Desired.Loads != nil {
		loads = *j.Definition.Desired.Loads
	}
	return c.request.Repair == nil && o.BytesPerSecond == 0 && (o.SamplePercent <= 0 || o.SamplePercent >= 100) &&
		loads.Source != pace.Low && loads.Target != pace.Low
}

func (c *check) spec() (spec verify.Spec, found *collector, err error) {
	w := &c.request
	s, err := c.worker.settings(c.ctx, w.Job, w.UID)
	if err != nil {
		return spec, nil, err
	}
	rules, err := transform.New(s.Rules)
	if err != nil {
		return spec, nil, err
	}
	found = newCollector(rules, !w.Options.NoValues)
	spec = verify.Spec{Source: s.Source, Target: s.Target, SourceShards: s.SourceShards, ShardsLeft: true,
		AllowShard: s.AllowShard, Rules: s.Rules, Options: verify.Options{
			StructureOnly: s.Mode == job.ModeStructure, Users: s.Users,
			MaxBufferedBytes: checkMemory, RangeBytes: c.worker.RangeBytes,
			MaxDifferences: 1, Online: true, Log: c.log, Found: found.take,
			Recheck: verify.RecheckOptions{For: time.Duration(w.Options.PatienceSeconds) * time.Second,
				Hold: func() bool { why, _ := c.lag.why(); return why != "" }},
			BytesPerSecond: w.Options.BytesPerSecond,
		}}
	if w.Options.SamplePercent > 0 && w.Options.SamplePercent < 100 {
		spec.Share = w.Options.SamplePercent / 100
	}
	if spec.BytesPerSecond > 0 {
		spec.Workers = 1 // the rate is the limit, and waiting readers hold cursors
	}
	if len(w.Options.Include) > 0 {
		only, err := transform.New(transform.Config{Include: w.Options.Include})
		if err != nil {
			return spec, nil, err
		}
		spec.Only = only
	}
	if c.assigns(s.Loads) {
		spec.Offer = c.worker.offer(c.lease.Run)
	}
	spec.Observe = func(stats func() verify.Stats) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stats = stats
	}
	return spec, found, nil
}

// look cancels a verification that is not wanted, or waits too long.
func (c *check) look() {
	now := c.worker.View.Verification(c.request.Job, c.request.ID)
	j := c.worker.View.Job(c.request.Job)
	switch why, waited := c.lag.why(); {
	case now != nil && now.Request.CanceledBy != "",
		j != nil && (j.Definition.UID != c.request.UID || j.Definition.Desired.Removed):
		c.cancel(errCanceled)
	case waited > maxWait:
		c.cancel(mongo.WithHint(fmt.Errorf("%w for %s: %s", errWaited, maxWait, why),
			"have the job follow, and verify again"))
	}
}

func (c *check) show() {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := verify.Stats{}
	if c.stats != nil {
		st = c.stats()
	}
	if c.report.Waits = ""; st.Waiting > 0 || c.stats == nil && c.request.Repair != nil {
		c.report.Waits, _ = c.lag.why()
	}
	c.report.Lendable, c.report.Helpers = st.Assignable, helpers(st.Assistants)
	c.report.Progress = service.VerifyProgress{Docs: st.Docs, DocsTotal: st.EstimatedDocs, Bytes: st.Bytes,
		Collections: st.CollectionsDone, CollectionsTotal: st.Collections,
		Rechecking: st.Waiting, Differences: st.Differences}
}

func helpers(all []assign.Figures) (list []service.VerifyHelper) {
	for _, f := range all {
		if f.Parts > 0 || f.Docs > 0 {
			list = append(list, service.VerifyHelper(f))
		}
	}
	return list
}

func (c *check) sendReport() error {
	c.mu.Lock()
	r := c.report
	c.mu.Unlock()
	r.At = time.Now().UTC()
	err := c.store(func(ctx context.Context) error {
		return c.worker.Hub.Verifications.Report(ctx, c.request.Job, c.request.ID, &r)
	})
	if err != nil && !errors.Is(err, errLost) {
		c.log.Warn("the report on the verification could not be stored", "error", err)
	}
	return err
}

// end stores the result. Without a result, because the worker ends or lost the lease, another worker begins anew.
func (c *check) end(report *verify.Report, found *collector, err error) {
	cause := context.Cause(c.ctx)
	now := time.Now().UTC()
	c.mu.Lock()
	r := &c.report
	r.EndedAt, r.Waits, r.Lendable = &now, "", 0
	switch {
	case err == nil:
		r.State, r.Schema, r.Progress.Differences = service.VerifySame, int64(len(report.Schema)), report.Count
		if !report.Same {
			r.State = service.VerifyDifferent
		}
	case errors.Is(cause, errCanceled):
		r.State = service.VerifyCanceled
	case cause != nil && !errors.Is(cause, errWaited):
		c.mu.Unlock()
		c.log.Info("verification let go", "why", cause)
		return
	default:
		if cause != nil {
			err = cause
		}
		r.State, r.Error, r.Hint = service.VerifyFailed, mongo.Brief(err), mongo.HintOf(err)
	}
	state := r.State
	c.mu.Unlock()
	c.log.Info("verification ended", "state", state, "error", err)
	ctx, cancel := c.beyond(10 * time.Second)
	defer cancel()
	if report != nil && err == nil {
		f := found.findings(report)
		if c.repair != nil {
			c.repair.found(f)
		}
		c.keepFindings(ctx, f)
	}
	if c.sendReport() == nil {
		c.prune(ctx)
	}
}

// prune removes old verifications. The view may not have this one's end yet.
func (c *check) prune(ctx context.Context) {
	list := c.worker.View.Verifications(c.request.Job)
	for i := range list {
		if list[i].Request.ID == c.request.ID {
			list[i].Report = &c.report
		}
	}
	if err := c.worker.Hub.Verifications.Prune(ctx, list); err != nil {
		c.log.Warn("old verifications could not be forgotten", "error", err)
	}
}

// keepFindings drops details if the store has no room.
func (c *check) keepFindings(ctx context.Context, f *service.Findings) {
	if !c.owned() {
		return
	}
	err := c.worker.Hub.Verifications.PutFindings(ctx, c.request.Job, c.request.ID, f)
	if err == nil {
		return
	}
	c.log.Warn("what was found could not be stored; its figures are", "error", err)
	f = &service.Findings{CollectionsLeftOut: len(f.Collections) + f.CollectionsLeftOut,
		DifferencesLeftOut: int64(len(f.Differences)) + f.DifferencesLeftOut,
		SchemaLeftOut:      len(f.Schema) + f.SchemaLeftOut, Expected: f.Expected,
		Notes: []string{"the store had no room for what was found"}}
	if err := c.worker.Hub.Verifications.PutFindings(ctx, c.request.Job, c.request.ID, f); err != nil {
		c.log.Debug("findings not stored", "error", err)
	}
}

func (w *Worker) forgetVerifications(ctx context.Context, job string) {
	for _, v := range append(w.View.Verifications(job), w.View.LeftVerifications(job)...) {
		if err := w.Hub.Verifications.Drop(ctx, job, v.Request.ID); err != nil {
			w.Log.Warn("a verification could not be forgotten", "job", job, "error", err)
		}
	}
}

const (
	// mostBehind and mostSilent together are less than verify.RecheckOptions.Quiet.
	mostBehind = 4 * time.Second
	mostSilent = 5 * time.Second
)

// lagging reports whether a job follows closely enough for differences to be real. It is safe for concurrent use.
type lagging struct {
	view *hub.View
	job  string
	now  func() time.Time

	mu       sync.Mutex
	reported time.Time // by its worker's clock
	heard    time.Time // by this process' clock
	since    time.Time // zero if the job follows
}

// why returns why the job does not follow closely, and for how long; "" if it does or has ended.
func (l *lagging) why() (why string, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if why = l.reason(); why == "" {
		l.since = time.Time{}
		return "", 0
	}
	if l.since.IsZero() {
		l.since = now
	}
	return why, now.Sub(l.since)
}

func (l *lagging) reason() string {
	j, now := l.view.Job(l.job), l.now()
	if j == nil {
		return "the job is not known"
	}
	state := j.State()
	if state == service.Finished {
		return ""
	}
	if r := j.Report; r != nil && !r.At.Equal(l.reported) {
		l.reported, l.heard = r.At, now
	}
	if state != service.Running || j.Report.Status == nil {
		return "the job is " + string(state)
	}
	s := j.Report.Status
	behind := time.Duration(s.Follow.LagSeconds * float64(time.Second))
	switch {
	case now.Sub(l.heard) > mostSilent:
		return "the job's worker says nothing"
	case s.Phase != job.PhaseFollowing && s.Phase != job.PhaseFinalizing:
		return "the job is in phase " + string(s.Phase)
	case behind < 0:
		return "it is not known how far the job is behind"
	case behind > mostBehind:
		return fmt.Sprintf("the job is %s behind the source", behind)
	}
	return ""
}
