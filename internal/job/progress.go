package job

import (
	"maps"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// progress is what Status shows, fed by the phases and the monitor.
type progress struct {
	mu        sync.Mutex
	started   time.Time
	job       string
	source    string
	target    string
	phase     Phase
	entered   time.Time         // when phase began
	spent     map[Phase]float64 // seconds in earlier phases
	waiting   string
	waitSince time.Time
	err       error
	errors    map[string]int64
	diffs     []string
	indexes   []IndexStatus

	copyEng   *copy.Engine
	applyEng  *mongosink.Engine
	tailSrc   stream.Source
	opsBefore int64 // of earlier apply engines of this process
	schBefore int64

	applied, readFrom mongo.OpTime // durable
	positions         mongo.Positions
	oldest            mongo.OpTime
	asked             time.Time // when positions were got
	unasked           error     // why they are older than that

	samples samples
}

func (s *progress) init(j *Job) {
	s.started = time.Now()
	s.job, s.source, s.target = j.id, j.src.Address(), j.dst.Address()
	s.phase, s.entered, s.spent = PhaseStarting, s.started, map[Phase]float64{}
	s.errors = map[string]int64{}
}

func (s *progress) setPhase(p Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enter(p)
}

// enter is called with mu held.
func (s *progress) enter(p Phase) {
	now := time.Now()
	s.spent[s.phase] += now.Sub(s.entered).Seconds()
	s.phase, s.entered = p, now
}

// wait says what the job waits for; "" ends the wait.
func (s *progress) wait(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == "" || reason == "" {
		s.waitSince = time.Now()
	}
	s.waiting = reason
}

func (s *progress) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.enter(PhaseFailed)
}

func (s *progress) countError(class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors[class]++
}

func (s *progress) setCopy(e *copy.Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copyEng = e
}

func (s *progress) setFollow(e *mongosink.Engine, src stream.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applyEng != nil {
		st := s.applyEng.Stats()
		s.opsBefore += st.Operations
		s.schBefore += st.Schema
	}
	s.applyEng, s.tailSrc = e, src
}

// setApplied tells where the job stands durably, and returns where reading would
// start from there.
func (s *progress) setApplied(p stream.Position) mongo.OpTime {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = p.At
	if from, err := oplog.ReadFrom(p); err == nil { // else the source refuses it
		s.readFrom = from
	}
	return s.readFrom
}

func (s *progress) setSource(p mongo.Positions, oldest mongo.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.positions, s.asked, s.unasked = p, time.Now(), nil
	if !oldest.IsZero() {
		s.oldest = oldest
	}
}

// sourceSilent notes that the source's primary does not say where it stands.
func (s *progress) sourceSilent(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unasked = err
}

// silentAfter is how long the source's position may be unknown before the lag is.
const silentAfter = 5 * time.Second

// blind reports that the source's position is not known. A member of a set that
// has lost its majority goes on to serve its oplog, and nothing seems amiss.
func (s *progress) blind() bool { return s.unasked != nil && time.Since(s.asked) > silentAfter }

func (s *progress) setDifferences(d []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diffs = d
}

func (s *progress) setIndexes(i []IndexStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexes = i
}

// Status is a snapshot of the job.
func (j *Job) Status() Status {
	s := &j.progress
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{
		Job: s.job, Phase: s.phase, Paused: j.control.isPaused(), Limits: j.limit.Rates(), Load: j.loadStatus(), Source: s.source, Target: s.target,
		StartedAt: s.started, Waiting: s.waiting, Errors: map[string]int64{}, PhaseSeconds: map[Phase]float64{}, Differences: s.diffs,
		Indexes: s.indexes, Process: processStatus(),
	}
	since := s.waitSince
	if s.waiting == "" && s.blind() {
		st.Waiting, since = "the source's primary to say where it stands: "+s.unasked.Error(), s.asked
	}
	if st.Waiting != "" {
		st.WaitingSince = &since
	}
	maps.Copy(st.Errors, s.errors)
	maps.Copy(st.PhaseSeconds, s.spent)
	st.PhaseSeconds[s.phase] += time.Since(s.entered).Seconds()
	if s.err != nil {
		st.Error, st.Hint = s.err.Error(), mongo.HintOf(s.err)
	}
	st.Copy = s.copyStatus()
	st.Follow = s.followStatus()
	st.Conflicts = j.conflictStatus()
	bytes, until := j.spooler.Holds()
	if st.Follow.SpoolBytes = bytes; !until.IsZero() {
		st.Follow.SpooledTo = until.String()
	}
	if need := j.spooler.NeedsFrom(s.readFrom); !need.IsZero() && !s.oldest.IsZero() {
		st.Follow.WindowSeconds = float64(int64(need.TS.T) - int64(s.oldest.TS.T))
	}
	s.rates(&st)
	return st
}

// copyStatus is called with mu held, like the two below.
func (s *progress) copyStatus() CopyStatus {
	out := CopyStatus{ETASeconds: -1}
	if s.copyEng == nil {
		return out
	}
	cs := s.copyEng.Stats()
	out.Docs, out.Bytes = cs.Docs, cs.Bytes
	for _, c := range cs.Collections {
		out.DocsTotal += max(c.TotalDocs, c.Docs)
		out.BytesTotal += max(c.TotalBytes, c.Bytes)
		out.Collections = append(out.Collections, CollectionStatus{
			Source: c.Source, Target: c.Target, Docs: c.Docs, DocsTotal: c.TotalDocs,
			Bytes: c.Bytes, BytesTotal: c.TotalBytes, Done: c.State == copy.StateDone || c.State == copy.StateDropped,
		})
	}
	return out
}

func (s *progress) followStatus() FollowStatus {
	out := FollowStatus{
		Operations: s.opsBefore, SchemaChanges: s.schBefore, Applied: s.applied.String(),
		Source: s.positions.Last.String(), LagSeconds: -1, WindowSeconds: -1,
	}
	if s.applyEng != nil {
		as := s.applyEng.Stats()
		out.Operations += as.Operations
		out.SchemaChanges += as.Schema
		out.Folded, out.Parked = as.Folded, as.Parked
		if !s.blind() {
			out.LagSeconds = lag(s.applyEng.Applied().At, s.positions)
		}
	}
	if s.tailSrc != nil {
		out.OpenTransactions = s.tailSrc.Stats().OpenTransactions
	}
	return out
}

// lag is how many seconds of the source's history are not applied; none are
// missing once its newest majority write is, however long ago that was.
func lag(applied mongo.OpTime, p mongo.Positions) float64 {
	if applied.IsZero() || p.Last.IsZero() {
		return -1
	}
	if !applied.Before(p.Majority) {
		return 0
	}
	return max(float64(int64(p.Majority.TS.T)-int64(applied.TS.T)), 0.5)
}

func (s *progress) rates(st *Status) {
	docs, bytes, ops, applied, cpu := s.samples.rates()
	st.Copy.DocsRate, st.Copy.BytesRate = docs, bytes
	st.Follow.OperationsRate, st.Follow.BytesRate = ops, applied
	st.Process.CPUPercent = 100 * cpu
	if bytes > 0 && st.Copy.BytesTotal > 0 {
		st.Copy.ETASeconds = float64(st.Copy.BytesTotal-st.Copy.Bytes) / bytes
	}
}
