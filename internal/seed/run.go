package seed

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// ServeOptions are the options of an agent and its member.
type ServeOptions struct {
	SourceOptions
	Guard     []string      // command of the guardian process
	LockLimit time.Duration // longest lock of the member
	MaxBehind time.Duration // how far behind the member a copy by WayCursor may be
	SpoolDir  string        // default: that of temporary files; files in it have no name
	Pullers   int
	Workers   int
	Limit     *pace.Limiter
	Log       *slog.Logger
}

func OpenAgent(plan *Plan, o ServeOptions) (*Agent, error) {
	if err := plan.Checks.Err(); err != nil {
		return nil, err
	}
	a := AgentOptions{DBPath: o.DBPath, Way: plan.Way, Why: plan.Why, SpoolDir: cmp.Or(o.SpoolDir, os.TempDir()),
		Pullers: o.Pullers, MaxBehind: o.MaxBehind, Workers: o.Workers, Limit: o.Limit, Log: o.Log}
	a.Describe = func(ctx context.Context) (Origin, error) {
		now := o.SourceOptions
		now.Way, now.chosen = plan.Way, true
		again, err := Inspect(ctx, now) // it may have become primary
		if plan.Way == WayStopped {
			return plan.Origin, nil // we have its lock
		}
		if err == nil {
			err = again.Checks.Err()
		}
		if err != nil {
			return Origin{}, err
		}
		return again.Origin, nil
	}
	switch plan.Way {
	case WayCursor:
		a.Cursor = &BackupCursor{URI: o.URI, Log: o.Log}
	case WayLock:
		a.Freezer = &Guardian{Command: o.Guard, Request: GuardRequest{
			URI: o.URI, LimitSeconds: o.LockLimit.Seconds(), Primary: o.AllowPrimary && o.YesBlockAllWrites}}
	}
	return NewAgent(a)
}

// MemberOptions are what is made of the copy.
type MemberOptions struct {
	Command []string // starts the new member; empty does not start it
	Join    string   // the new member's address in the set; empty does not add it
	// Replace is the address of a stopped member whose data the copy replaces. The set's configuration stays.
	Replace    string
	Votes      int
	Priority   float64
	Hidden     bool
	SetURI     string // any connection string of the set
	CatchUp    time.Duration
	NewSet     string   // name of the new replica set; empty is a member of the same one
	KeepExpiry bool     // the new set expires documents at once: it does not follow the old one
	NewSetHost string   // its only member's address
	Mongod     string   // program for the recovery of a new set
	Guardian   []string // command that runs Private with the command after it, for that recovery
	LogPath    string   // output of the started mongod
}

// Options are a copy and what is made of it.
type Options struct {
	Pull   PullOptions
	Member MemberOptions
}

// Result is what was done.
type Result struct {
	Report
	// Position is where a new set stands: the copy has nothing of the old set after it.
	Position string `json:"position,omitempty"`
	// HeldExpiries is how many expiries are deferred until Job is finalized.
	HeldExpiries   int         `json:"heldExpiries,omitempty"`
	Job            string      `json:"job,omitempty"`
	RecoverSeconds float64     `json:"recoverSeconds,omitempty"`
	StartSeconds   float64     `json:"startSeconds,omitempty"`
	CatchUpSeconds float64     `json:"catchUpSeconds,omitempty"`
	Times          MemberTimes `json:"memberTimes,omitzero"` // the steps of StartSeconds and CatchUpSeconds
	Pid            int         `json:"pid,omitempty"`
	Member         string      `json:"member,omitempty"`
	Seconds        float64     `json:"seconds"`
}

// MemberTimes are the consecutive steps of a member's start on a copy, in seconds.
type MemberTimes struct {
	Listen    float64 `json:"listenSeconds"`    // of the process, until it listens
	Answer    float64 `json:"answerSeconds"`    // until it answers
	Add       float64 `json:"addSeconds"`       // until the set's configuration has it
	Secondary float64 `json:"secondarySeconds"` // until it is SECONDARY
	Choose    float64 `json:"chooseSeconds"`    // until it has a sync source
	Apply     float64 `json:"applySeconds"`     // until it has what the primary had
	Vote      float64 `json:"voteSeconds"`      // until it has vote and priority
}

// Run copies, and then makes a member or a new set of the copy.
func Run(ctx context.Context, src Source, o Options) (*Result, error) {
	began := time.Now()
	if o.Pull.Stats == nil {
		o.Pull.Stats = &Stats{}
	}
	o.Pull.Log = cmp.Or(o.Pull.Log, slog.New(slog.DiscardHandler))
	if o.Pull.Check == nil {
		o.Pull.Check = func(m *Manifest) error {
			p := &Plan{Way: m.Way, Origin: m.Origin, Files: len(m.Files), Bytes: m.Bytes}
			p.checkPrograms(ctx, o) // Pull checks the directory
			p.Checks.LogWarnings(o.Pull.Log)
			return p.Checks.Err()
		}
	}
	res := &Result{}
	defer func() { res.Seconds = time.Since(began).Seconds() }()
	if o.Member.Replace != "" {
		replace, err := o.Member.replacing(ctx, o.Pull.DBPath, true)
		if err != nil {
			return res, err
		}
		o.Pull.Replace = replace
	}
	report, err := Pull(ctx, src, o.Pull)
	if report != nil {
		res.Report = *report
	}
	if err != nil {
		return res, err
	}
	if o.Member.LogPath == "" {
		o.Member.LogPath = filepath.Clean(o.Pull.DBPath) + ".out"
	}
	return res, makeMember(ctx, o, res)
}

func makeMember(ctx context.Context, o Options, res *Result) error {
	if o.Member.NewSet != "" {
		o.Pull.Stats.enter(PhaseRecover, 0)
		began := time.Now()
		at, deferred, err := makeIndependent(ctx, o, res.Origin.Storage)
		if err != nil {
			return mongo.WithHint(err,
				"the files are complete, but still a member of the old set: do not start them as another set")
		}
		res.Position, res.RecoverSeconds = at.String(), time.Since(began).Seconds()
		if res.HeldExpiries = deferred; deferred > 0 {
			res.Job = FollowJob(o.Member.NewSet)
		}
	}
	if len(o.Member.Command) == 0 {
		return nil
	}
	return startMember(ctx, o, res)
}

// Phase is a step of a copy.
type Phase string

const (
	PhaseStart   Phase = "starting"
	PhaseCopy    Phase = "copying"
	PhaseClone   Phase = "cloning"
	PhaseFreeze  Phase = "freezing the source"
	PhaseAgain   Phase = "copying what changed"
	PhaseSync    Phase = "making durable"
	PhaseRecover Phase = "recovering"
	PhaseMember  Phase = "starting the member"
	PhaseCatchUp Phase = "catching up"
)

// Stats counts the work of a copy. The zero value is ready. It is safe for concurrent use.
type Stats struct {
	mu    sync.Mutex
	now   Snapshot
	began time.Time
}

// Snapshot is the progress of a copy.
type Snapshot struct {
	Phase        Phase
	Done, Total  int64   // bytes of the phase; Total 0 is unknown
	PhaseSeconds float64 // since the phase began
}

func (s *Stats) Stats() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now
	now.Phase = cmp.Or(now.Phase, PhaseStart)
	if !s.began.IsZero() {
		now.PhaseSeconds = time.Since(s.began).Seconds()
	}
	return now
}

func (s *Stats) enter(p Phase, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.began = Snapshot{Phase: p, Total: total}, time.Now()
}

// pass counts bytes as done, and in counters of the report.
func (s *Stats) pass(n int64, counters ...*int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Done += n
	for _, c := range counters {
		*c += n
	}
}
