// Package progress is what a job shows of itself: its status and the rates of the last seconds. It decides nothing.
// It is safe for concurrent use.
package progress

import (
	"maps"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Options name the job, and read what other packages count.
type Options struct {
	Job, Source, Target string
	Now                 func() time.Time
	Usage               func() procstat.Usage
	// Rules counts what the job's rules have done; nil is nothing.
	Rules *transform.Counters
	// ReadFrom returns the first change that a reader at a position needs.
	ReadFrom func(stream.Position) (mongo.OpTime, error)
	// OnEvent, if not nil, is called when a step begins or ends. It must return at once, and must not use the Progress.
	OnEvent func(Event)
	// Routers is what the target's routers were sent in this process; nil is nothing.
	Routers func() []RouterDone
}

// Progress is how far a job is.
type Progress struct {
	o Options

	mu      sync.Mutex
	st      Status    // what is set as it is shown
	entered time.Time // when the phase began
	waiting time.Time // since when the job waits
	err     error

	copying   copying
	assigning func() (waiting int, workers []assign.Figures)
	sink      stream.Sink
	source    stream.Source
	before    stream.SinkStats // of earlier sinks of this process
	earlier   Done             // of earlier copies of this process
	parts     parts

	durable, readFrom mongo.OpTime
	positions         mongo.Positions
	window            *oplog.Window // nil while it is unknown
	spooled           bool          // the spool keeps what the oplog may overwrite
	asked             time.Time     // when positions were got
	unasked           error         // why they are older than that

	samples []sample // the last ten seconds, one a second
}

// New begins in PhaseStarting.
func New(o Options) *Progress {
	now := o.Now()
	return &Progress{o: o, entered: now, parts: parts{before: map[string]ShardDone{}},
		st: Status{Job: o.Job, Source: o.Source, Target: o.Target, Phase: state.PhaseStarting, StartedAt: now,
			PhaseSeconds: map[state.Phase]float64{}, Errors: map[string]int64{}}}
}

func (p *Progress) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *Progress) Enter(phase state.Phase) { p.set(func() { p.enter(phase) }) }

// enter is called with p.mu locked.
func (p *Progress) enter(phase state.Phase) {
	now := p.o.Now()
	if was := p.st.Phase; was != phase {
		p.emit(Event{Step: StepPhase, Name: string(was), Ended: true})
		p.emit(Event{Step: StepPhase, Name: string(phase)})
	}
	p.st.PhaseSeconds[p.st.Phase] += now.Sub(p.entered).Seconds()
	p.st.Phase, p.entered = phase, now
}

// Phase returns the job's phase.
func (p *Progress) Phase() (phase state.Phase) {
	p.set(func() { phase = p.st.Phase })
	return phase
}

// Wait sets what the job waits for; "" ends the wait.
func (p *Progress) Wait(reason string) {
	p.set(func() {
		if p.st.Waiting == "" || reason == "" {
			p.waiting = p.o.Now()
		}
		p.st.Waiting = reason
	})
}

// Fail records why the job ended.
func (p *Progress) Fail(err error) {
	p.set(func() {
		p.err = err
		p.enter(state.PhaseFailed)
	})
}

func (p *Progress) CountError(class string) { p.set(func() { p.st.Errors[class]++ }) }

// copying is a copy.Engine, or several.
type copying interface {
	Stats() copy.Stats
	Copied() (docs, bytes int64)
	Done() (docs, bytes int64)
}

// Copying shows a copy, and adds up earlier ones.
func (p *Progress) Copying(e copying) {
	p.set(func() {
		p.earlier = p.done()
		p.parts.add(p.parts.before, copiedOf(p.copying))
		p.copying = e
	})
}

// Done is what a job has done in this process.
type Done struct {
	Docs, Bytes int64 // copied, those included that were read again
	// Operations were applied; AppliedBytes are those of the changes that were read for it.
	Operations, AppliedBytes int64
	// Shards and Routers are those of a sharded source and of a sharded target.
	Shards  []ShardDone
	Routers []RouterDone
}

// Done returns what the job has done in this process.
func (p *Progress) Done() (d Done) {
	p.set(func() {
		d = p.done()
		d.Shards, d.Routers = p.shardsDone(), p.routersDone()
	})
	return d
}

// done is called with p.mu locked.
func (p *Progress) done() Done {
	d := Done{Docs: p.earlier.Docs, Bytes: p.earlier.Bytes, Operations: p.before.Operations, AppliedBytes: p.before.Bytes}
	if p.copying != nil {
		docs, bytes := p.copying.Done()
		d.Docs, d.Bytes = d.Docs+docs, d.Bytes+bytes
	}
	if p.sink != nil {
		st := p.sink.Stats()
		d.Operations, d.AppliedBytes = d.Operations+st.Operations, d.AppliedBytes+st.Bytes
	}
	return d
}

// Assigning shows assigned slices: status returns how many wait, and the workers. It must not ask for the status.
func (p *Progress) Assigning(status func() (waiting int, workers []assign.Figures)) {
	p.set(func() { p.assigning = status })
}

// Following shows a run of continuous replication, and adds up earlier ones.
func (p *Progress) Following(sink stream.Sink, src stream.Source) {
	p.set(func() {
		if p.sink != nil {
			st := p.sink.Stats()
			p.before.Operations += st.Operations
			p.before.Schema += st.Schema
			p.before.Bytes += st.Bytes
		}
		p.parts.add(p.parts.before, readOf(p.source))
		p.sink, p.source = sink, src
	})
}

// SetApplied sets the durable position, and returns where reading would start from there.
func (p *Progress) SetApplied(pos stream.Position) (from mongo.OpTime) {
	p.set(func() {
		p.durable = pos.At
		if at, err := p.o.ReadFrom(pos); err == nil { // else the source refuses it
			p.readFrom = at
		}
		from = p.readFrom
	})
	return from
}

// ReadFrom is where reading would start after a crash now.
func (p *Progress) ReadFrom() (from mongo.OpTime) {
	p.set(func() { from = p.readFrom })
	return from
}

// NeedsNothing says that the job reads no more changes.
func (p *Progress) NeedsNothing() { p.set(func() { p.readFrom = mongo.OpTime{} }) }

// SourceAt notes where the source stands.
func (p *Progress) SourceAt(at mongo.Positions) {
	p.set(func() { p.positions, p.asked, p.unasked = at, p.o.Now(), nil })
}

// SourceWindow notes what the source's oplog holds. It may not be changed afterwards.
func (p *Progress) SourceWindow(w *oplog.Window) { p.set(func() { p.window = w }) }

// WindowHeld notes whether the spool keeps what the source's oplog may overwrite.
func (p *Progress) WindowHeld(spooled bool) { p.set(func() { p.spooled = spooled }) }

// SourceSilent records that the source's primary does not say where it stands.
func (p *Progress) SourceSilent(err error) { p.set(func() { p.unasked = err }) }

// SourceTime is the source's present time, zero if unknown.
func (p *Progress) SourceTime() (at bson.Timestamp) {
	p.set(func() {
		if !p.positions.Now.IsZero() {
			at.T = uint32(p.positions.Now.Add(p.o.Now().Sub(p.asked)).Unix())
		}
	})
	return at
}

// SetFinal notes what finalize found at a time, what the job has left out, and where the target stands.
func (p *Progress) SetFinal(at time.Time, differences, leftOut []string, target mongo.OpTime) {
	p.set(func() {
		p.st.FinalizedAt, p.st.LeftOut = &at, leftOut
		if p.st.Differences = differences; !target.IsZero() {
			p.st.TargetPosition = target.String()
		}
	})
}

// SetIndexes sets the builds on the target.
func (p *Progress) SetIndexes(i []Index) { p.set(func() { p.st.Indexes = i }) }

// Applied is the applied position, durable or not; zero unless the job follows.
func (p *Progress) Applied() (at mongo.OpTime) {
	p.set(func() {
		if p.sink != nil && p.st.Phase == state.PhaseFollowing {
			at = p.sink.Applied().At
		}
	})
	return at
}

// blind reports that the source's position is unknown: a member without a majority goes on to serve its oplog.
func (p *Progress) blind() bool { return p.unasked != nil && p.o.Now().Sub(p.asked) > 5*time.Second }

// Status is a snapshot. end returns the position up to which a reader needs no oplog.
func (p *Progress) Status(end func(readFrom mongo.OpTime) mongo.OpTime) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	st, since := p.st, p.waiting
	if st.Waiting == "" && p.blind() {
		st.Waiting, since = "the source's primary to say where it stands: "+mongo.Brief(p.unasked), p.asked
	}
	for _, x := range st.Indexes {
		if st.Waiting == "" && x.Stalled != "" {
			st.Waiting, since = "an index build of "+x.NS+" on the target: "+x.Stalled, *x.StalledSince
		}
	}
	if st.Waiting != "" {
		st.WaitingSince = &since
	}
	st.Structure = p.st.Structure.clone()
	st.Errors, st.PhaseSeconds = maps.Clone(st.Errors), maps.Clone(st.PhaseSeconds)
	st.PhaseSeconds[st.Phase] += p.o.Now().Sub(p.entered).Seconds()
	if p.err != nil {
		st.Error, st.Hint = mongo.Brief(p.err), mongo.HintOf(p.err)
	}
	st.Copy, st.Follow, st.Process = p.copyStatus(), p.followStatus(), p.o.Usage()
	if r := p.o.Rules; r != nil {
		st.Filters, st.Fields, st.Skips, st.SoftDeletes = r.List(), r.Fields(), r.Skips(), r.Marks()
	}
	if need := end(p.readFrom); !need.IsZero() && p.window != nil {
		st.Follow.WindowSeconds, st.Follow.WindowHeld = p.window.Left(need).Seconds(), p.spooled
	}
	r := perSecond(p.samples)
	st.Copy.DocsRate, st.Copy.BytesRate = r.docs, r.copied
	st.Follow.OperationsRate, st.Follow.BytesRate = r.operations, r.opBytes
	st.Process.CPUPercent = 100 * r.cpu
	if r.copied > 0 && st.Copy.BytesTotal > 0 {
		st.Copy.ETASeconds = float64(st.Copy.BytesTotal-st.Copy.Bytes) / r.copied
	}
	st.Shards, st.Routers = p.shardStatus(end(p.readFrom)), p.routerStatus()
	return st
}

// copyStatus is called with p.mu locked.
func (p *Progress) copyStatus() Copy {
	out := Copy{ETASeconds: -1}
	if p.copying == nil {
		return out
	}
	cs := p.copying.Stats()
	out.Docs, out.Bytes = cs.Docs, cs.Bytes
	if p.assigning != nil {
		out.Lendable, out.Workers = p.assigning()
	}
	for _, c := range cs.Collections {
		out.DocsTotal += max(c.TotalDocs, c.Docs)
		out.BytesTotal += max(c.TotalBytes, c.Bytes)
		out.Collections = append(out.Collections, Collection{
			Source: c.Source, Target: c.Target, Docs: c.Docs, DocsTotal: c.TotalDocs,
			Bytes: c.Bytes, BytesTotal: c.TotalBytes, Done: c.State == copy.StateDone || c.State == copy.StateDropped,
		})
	}
	return out
}

func (p *Progress) followStatus() Follow {
	out := Follow{Operations: p.before.Operations, SchemaChanges: p.before.Schema, Applied: p.durable.String(),
		Source: p.positions.Last.String(), LagSeconds: -1, WindowSeconds: -1}
	if p.sink != nil {
		as := p.sink.Stats()
		out.Operations += as.Operations
		out.SchemaChanges += as.Schema
		out.Folded, out.Parked, out.Located, out.Broadcast = as.Folded, as.Parked, as.Located, as.Broadcast
		if !p.blind() {
			out.LagSeconds = lag(p.sink.Applied().At, p.positions)
		}
	}
	if p.source != nil {
		st := p.source.Stats()
		out.OpenTransactions = st.OpenTransactions
		if w := st.Waits; w.Part != "" {
			out.Holding = &Holding{Shard: w.Part, Seconds: w.For.Seconds(), Since: w.Moved.UTC(), At: w.Since.String(),
				Undecided: w.Undecided}
		}
	}
	return out
}

// lag is how many seconds of the source's history are not applied, 0 once its newest majority write is.
func lag(applied mongo.OpTime, p mongo.Positions) float64 {
	if applied.IsZero() || p.Last.IsZero() {
		return -1
	}
	if !applied.Before(p.Majority) {
		return 0
	}
	return max(float64(int64(p.Majority.TS.T)-int64(applied.TS.T)), 0.5)
}

// Step is a kind of what a job does.
type Step string

const (
	StepPhase      Step = "phase"      // Name is the phase; one ends where the next begins
	StepCollection Step = "collection" // the copy of one; Name is its namespace on the source
	StepSchema     Step = "schema"     // a schema change; Name is the namespace, What its kind
	StepFinalize   Step = "finalize"   // a step of the phase finalizing, by its name
)

// Event says that a step begins or has ended. It has no values of documents.
type Event struct {
	At    time.Time
	Step  Step
	Name  string
	What  string // of a schema change its kind, of a collection the shard that it is read from
	Ended bool
	// Docs and Bytes are those of a copied collection.
	Docs, Bytes int64
	Class       string // that of the step's error; empty for none
}

func (p *Progress) emit(e Event) {
	if p.o.OnEvent != nil {
		e.At = p.o.Now()
		p.o.OnEvent(e)
	}
}

// Begin emits the begin of a step. end emits its end.
func (p *Progress) Begin(step Step, name, what string) (end func(error)) {
	p.emit(Event{Step: step, Name: name, What: what})
	return func(err error) {
		e := Event{Step: step, Name: name, What: what, Ended: true}
		if err != nil {
			e.Class = string(mongo.Classify(err))
		}
		p.emit(e)
	}
}

// Collection emits the begin or the end of the copy of a collection, or of its part on a shard.
func (p *Progress) Collection(c copy.CollectionStats, shard string) {
	p.emit(Event{Step: StepCollection, Name: c.Source, What: shard, Ended: c.State != copy.StateCopying, Docs: c.Docs,
		Bytes: c.Bytes})
}

// figures are counts at one moment, or their rates a second.
type figures struct{ docs, copied, operations, opBytes, cpu float64 }

type sample struct {
	at time.Time
	figures
	shards  []ShardDone
	routers []RouterDone
}

// Sample records the counters. It is called each second.
func (p *Progress) Sample() {
	x := sample{at: p.o.Now(), figures: figures{cpu: p.o.Usage().CPUSeconds}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.copying != nil {
		docs, bytes := p.copying.Copied()
		x.docs, x.copied = float64(docs), float64(bytes)
	}
	x.operations = float64(p.before.Operations)
	if p.sink != nil {
		st := p.sink.Stats()
		x.operations += float64(st.Operations)
		x.opBytes = float64(st.Bytes)
	}
	x.shards, x.routers = p.shardsDone(), p.routersDone()
	const mostSamples = 11 // ten seconds
	p.samples = append(p.samples[max(len(p.samples)+1-mostSamples, 0):], x)
}

func perSecond(all []sample) figures {
	if len(all) == 0 {
		return figures{}
	}
	from, to := all[0], all[len(all)-1]
	per := func(a, b float64) float64 { return perSpan(a, b, to.at.Sub(from.at).Seconds()) }
	return figures{per(from.docs, to.docs), per(from.copied, to.copied), per(from.operations, to.operations),
		per(from.opBytes, to.opBytes), per(from.cpu, to.cpu)}
}
