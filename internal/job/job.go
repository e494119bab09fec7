package job

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
)

// Job is one source replicated into one target. Run is called once; the other
// methods are safe for concurrent use with it, except Plan, which comes before.
type Job struct {
	spec  Spec
	id    string
	run   string // names this run on the target
	log   *slog.Logger
	src   *mongo.Cluster
	dst   *mongo.Cluster
	rules *transform.Set
	store state.Store
	cat   *schema.Target
	txn   *mongo.Transactions // on the target
	// letters are the documents that the target refuses.
	letters *deadletter.Store
	resumed bool          // an earlier process began the job
	ttlHeld bool          // by holdTTL of this process
	names   *schema.Names // what the job has on the target; one phase at a time
	unclear int           // conflicts that could not be judged yet; phases only
	until   until
	// pauseNoted says that the checkpoint may say paused; phases only.
	pauseNoted bool
	answeredAt time.Time // when both sides answered in this attempt; phases only
	plan       *Plan     // the latest one
	formatWas  int       // of the checkpoint that was found, until it is brought up to date

	progress progress
	control  control
	limit    *pace.Limiter
	// srcGate and dstGate bound the exchanges with each side.
	srcGate, dstGate *pace.Gate
	spooler          *oplog.Spooler
}

// until is the parsed form of Spec.Until.
type until struct {
	caughtUp bool
	at       time.Time // zero: no time
}

// Open parses the spec, connects both sides and reads nothing but their
// identity. Nothing is written.
func Open(ctx context.Context, spec Spec) (*Job, error) {
	rules, err := transform.New(spec.Rules)
	if err != nil {
		return nil, err
	}
	u, err := parseUntil(spec.Until)
	if err != nil {
		return nil, err
	}
	rp, err := readPreference(spec.ReadPreference, spec.ReadTags)
	if err != nil {
		return nil, err
	}
	wc, err := writeConcern(spec.WriteConcern)
	if err != nil {
		return nil, err
	}
	if spec.OnConflict == "" {
		spec.OnConflict = ConflictStop
	}
	if spec.Log == nil {
		spec.Log = slog.New(slog.DiscardHandler)
	}
	src, err := mongo.Connect(ctx, spec.Source, mongo.Options{AppName: "millrace-source", ReadPreference: rp})
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	run := state.NewRun()
	dst, err := mongo.Connect(ctx, spec.Target, mongo.Options{AppName: mongo.TargetApp})
	if err != nil {
		src.Close()
		return nil, fmt.Errorf("target: %w", err)
	}
	j := &Job{spec: spec, run: run, log: spec.Log, src: src, dst: dst, rules: rules, until: u,
		limit: pace.New(spec.Limits), srcGate: pace.NewGate(spec.Loads.Source), dstGate: pace.NewGate(spec.Loads.Target)}
	j.id = jobID(spec, src, dst, rules)
	j.store = state.Open(dst, state.Options{Job: j.id, Run: run, Write: wc, EndOthers: j.endOthers})
	j.spooler = j.newSpooler()
	dst.Pool.SetGuard(j.store.Owned)
	if j.txn, err = dst.NewTransactions(); err != nil {
		j.Close()
		return nil, fmt.Errorf("target: %w", err)
	}
	j.letters = deadletter.New(dst, j.id, j.store.SameTerm)
	j.cat = schema.NewTarget(dst, schema.TargetOptions{Job: j.id, Log: spec.Log, SameTerm: j.store.SameTerm})
	j.progress.init(j)
	j.control.init()
	if u.caughtUp || spec.Mode == ModeFull {
		j.control.finalize.Store(true)
	}
	return j, nil
}

// Close disconnects both sides. Run must have returned.
func (j *Job) Close() {
	if j.txn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		j.txn.End(ctx)
	}
	j.src.Close()
	j.dst.Close()
}

// ID is the job's name in the target.
func (j *Job) ID() string { return j.id }

// jobID derives a stable name from what makes a job: source, target and rules.
// Replica sets are told by their ids, so that other addresses of the same set
// are the same job.
func jobID(spec Spec, src, dst *mongo.Cluster, rules *transform.Set) string {
	if spec.Job != "" {
		return spec.Job
	}
	h := sha256.New()
	for _, s := range []string{identity(src), identity(dst), rules.String()} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return "job-" + hex.EncodeToString(h.Sum(nil))[:12]
}

func identity(c *mongo.Cluster) string {
	if !c.Info.SetID.IsZero() {
		return c.Info.SetID.Hex()
	}
	return c.Address()
}

func parseUntil(s string) (until, error) {
	switch s {
	case "", "never":
		return until{}, nil
	case "caught-up":
		return until{caughtUp: true}, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return until{}, fmt.Errorf("--until %q: want never, caught-up or a time (2026-01-02T15:04:05Z)", s)
	}
	return until{at: t}, nil
}

func writeConcern(s string) (any, error) {
	if s == "" || s == "majority" {
		return "majority", nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 50 {
		return nil, fmt.Errorf("--write-concern %q: want majority or a number of members from 1 to 50", s)
	}
	return n, nil
}

// keep reports whether the rules keep a source namespace.
func (j *Job) keep(ns string) bool { return j.rules.Match(ns) }

// scope is what of the source the rules keep.
func (j *Job) scope() schema.Scope { return schema.Scope{NS: j.keep, DB: j.rules.MatchDB} }

// errPaused and errFinished end a phase on purpose.
var (
	errPaused   = errors.New("paused")
	errFinished = errors.New("finalized")
)

// newJob is the document of a job that begins.
func (j *Job) newJob() state.Job {
	return state.Job{
		Source: j.src.Address(), Target: j.dst.Address(),
		SourceSet: j.src.Info.SetID, TargetSet: j.dst.Info.SetID,
		Rules: j.rules.String(), Mode: string(j.spec.Mode), OnExisting: string(j.spec.OnExisting), Phase: string(PhaseCatalog),
	}
}

// savePhase moves the job on, with fields that belong to the step.
func (j *Job) savePhase(ctx context.Context, p Phase, set ...bson.E) error {
	failpoint.Hit("phase.before")
	defer failpoint.Hit("phase.after")
	if err := j.store.SaveDurably(ctx, append(bson.D{{Key: "phase", Value: string(p)}}, set...)); err != nil {
		return err
	}
	j.progress.setPhase(p)
	return nil
}
