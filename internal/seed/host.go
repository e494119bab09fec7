package seed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
)

// Stage is how far the agent of a target host is.
type Stage string

// The stages of a host, in order. It leaves those that name a state only when the job orders it.
const (
	StageIdle     Stage = "idle"     // it has no order
	StageCopying  Stage = "copying"  // pulls the files
	StageCopied   Stage = "copied"   // the state until the order to form the member
	StageForming  Stage = "forming"  // makes the copy a member of the new set
	StageFormed   Stage = "formed"   // the state until the order to start
	StageRunning  Stage = "running"  // keeps the mongod running
	StageFinished Stage = "finished" // leaves the mongod to its operator
)

// Reached reports whether a host is at a stage or after it.
func (s Stage) Reached(other Stage) bool {
	order := []Stage{StageIdle, StageCopying, StageCopied, StageForming, StageFormed, StageRunning, StageFinished}
	at := slices.Index(order, other)
	return at >= 0 && slices.Index(order, s) >= at
}

// Order makes a host copy files, for a member of a new set.
type Order struct {
	ID        string    `json:"id"`   // of the migration: a host follows no other one
	From      string    `json:"from"` // address of the agent that has the files
	Formation Formation `json:"formation"`
}

// HostState is what a host says of itself.
type HostState struct {
	Stage Stage     `json:"stage"`
	Order *Order    `json:"order,omitempty"`
	Set   string    `json:"set"` // of the operator's command
	Own   SetMember `json:"member"`
	// At is the position of the recovered files; zero before.
	At mongo.OpTime `json:"at"`
	// Doing is a step of the copy. Done and Total are its bytes; Total 0 is unknown.
	Doing  Phase `json:"doing"`
	Done   int64 `json:"done"`
	Total  int64 `json:"total"`
	Paused bool  `json:"paused,omitempty"`
	// MaxBytes limits what it pulls a second; 0 is unlimited.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// Error is the last failure, which the host retries.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// Copy is the report of the copy, once it is complete.
	Copy *Report `json:"copy,omitempty"`
}

// HostOptions describe the one member that a host makes. All of it is its operator's.
type HostOptions struct {
	DBPath   string
	Command  []string // starts the mongod
	Mongod   string   // program for the recovery; empty is the first word of Command
	Guardian []string // command that runs Private with the command after it
	Own      SetMember
	Workers  int
	Zstd     bool
	// Peer connects to another agent.
	Peer func(address string) (*Client, error)
	// Keep makes of rules what keeps namespaces.
	Keep func(include, exclude []string) (func(ns string) bool, error)
	Log  *slog.Logger
}

// Host is the agent of a target host. It stores its order before it acts, and goes on by itself after a
// kill. It is safe for concurrent use.
type Host struct {
	o     HostOptions
	limit *pace.Limiter
	stats *Stats
	relay *relay

	mu      sync.Mutex
	kept    hostFile
	set     string // of the command
	failure error
	failed  Snapshot      // the progress at the failure
	copied  *Agent        // serves a copy that was complete before this process
	changed chan struct{} // closed and replaced by orders
}

// hostFile is what a host stores beside its directory.
type hostFile struct {
	Stage     Stage     `json:"stage"`
	Order     *Order    `json:"order,omitempty"`
	Paused    bool      `json:"paused,omitempty"`
	Recovered recovered `json:"recovered,omitzero"`
	Copy      *Report   `json:"copy,omitempty"`
}

// NewHost reads what an earlier process stored.
func NewHost(ctx context.Context, o HostOptions) (*Host, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	h := &Host{o: o, limit: pace.New(pace.Rates{}), stats: &Stats{}, relay: newRelay(o.DBPath),
		changed: make(chan struct{}), kept: hostFile{Stage: StageIdle}}
	c, err := configOf(ctx, o.Command)
	if err != nil { // its text may hold secrets
		return nil, mongo.WithHint(errors.New("seed: the command after -- does not print its options (--outputConfig)"),
			"give a mongod with its options, as it runs in a shell")
	}
	h.set, _, _ = strings.Cut(c.Replication.ReplSet+c.Replication.ReplSetName, "/")
	switch {
	case !sameDirectory(c.Storage.DBPath, o.DBPath):
		return nil, mongo.WithHint(fmt.Errorf("seed: the command's dbPath is %q, that of the agent %q", c.Storage.DBPath,
			o.DBPath), "give --dbpath of the agent's directory after --")
	case h.set == "":
		return nil, mongo.WithHint(errors.New("seed: the command names no replica set"), "give --replSet after --")
	}
	raw, err := os.ReadFile(h.file())
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &h.kept)
	}
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("seed: cannot read the agent's state %s: %w", h.file(), err),
			"remove it and the directory to begin anew")
	}
	if h.kept.Stage == StageCopied {
		h.copied, err = h.serveCopy()
	}
	return h, err
}

// file is beside the directory, which a mongod owns.
func (h *Host) file() string { return filepath.Clean(h.o.DBPath) + ".millrace" }

// serveCopy makes an agent for pullers of a complete copy.
func (h *Host) serveCopy() (*Agent, error) {
	return NewAgent(AgentOptions{DBPath: h.o.DBPath, Way: WayStopped, Why: "a copy is complete", SpoolDir: os.TempDir(),
		Workers: h.o.Workers, Log: h.o.Log})
}

// Close ends what serves pullers. Run must have returned.
func (h *Host) Close() error {
	if h.copied != nil {
		return h.copied.Close()
	}
	return nil
}

// State returns how far the host is.
func (h *Host) State() HostState {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.stats.Stats()
	s := HostState{Stage: h.kept.Stage, Order: h.kept.Order, Set: h.set, Own: h.o.Own, At: h.kept.Recovered.At,
		Doing: now.Phase, Done: now.Done, Total: now.Total, Paused: h.kept.Paused,
		MaxBytes: h.limit.Rates().Bytes, Copy: h.kept.Copy}
	// A step that was retried may take hours: it has an error only until it goes on.
	if h.failure != nil && now.Phase == h.failed.Phase && now.Done == h.failed.Done {
		s.Error, s.Hint = mongo.Brief(h.failure), mongo.HintOf(h.failure)
	}
	return s
}

// Check returns the checks of a copy of a source, and writes nothing.
func (h *Host) Check(ctx context.Context, p *Plan, set string) *Plan {
	o := h.options(set)
	if h.State().Stage == StageIdle {
		p.checkTarget(ctx, o)
	}
	p.checkPrograms(ctx, o)
	p.checkSeries(ctx, o)
	return p
}

func (h *Host) options(set string) Options {
	return Options{Pull: PullOptions{DBPath: h.o.DBPath, Workers: h.o.Workers, Limit: h.limit, Stats: h.stats,
		Log: h.o.Log, relay: h.relay}, Member: MemberOptions{Command: h.o.Command, NewSet: set, NewSetHost: h.o.Own.Host,
		Mongod: h.o.Mongod, Guardian: h.o.Guardian, LogPath: filepath.Clean(h.o.DBPath) + ".out"}}
}

// Obey takes an order. The same one again changes nothing.
func (h *Host) Obey(order Order) error {
	if _, err := h.o.Keep(order.Formation.Include, order.Formation.Exclude); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.kept.Order == nil:
	case h.kept.Order.ID == order.ID:
		return nil
	default:
		return mongo.WithHint(fmt.Errorf("seed: the agent of %s has the order of another migration, %s", h.o.Own.Host,
			h.kept.Order.ID), "end the agent and its mongod, and remove the directory and "+h.file())
	}
	if err := os.MkdirAll(h.o.DBPath, 0o700); err != nil {
		return fmt.Errorf("seed: cannot make the data directory: %w", err)
	}
	root, err := os.OpenRoot(h.o.DBPath)
	if err == nil {
		_, err = claim(root, false)
		err = errors.Join(err, root.Close())
	}
	if err != nil {
		return err
	}
	return h.store(hostFile{Stage: StageCopying, Order: &order, Paused: h.kept.Paused})
}

// Advance tells a host to leave a state. Where it is at or after the next stage, nothing changes.
func (h *Host) Advance(id string, to Stage) error {
	from := map[Stage]Stage{StageForming: StageCopied, StageRunning: StageFormed, StageFinished: StageRunning}[to]
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.kept.Order == nil || h.kept.Order.ID != id:
		return fmt.Errorf("seed: the agent of %s has no order %s", h.o.Own.Host, id)
	case h.kept.Stage.Reached(to):
		return nil
	case from == "" || h.kept.Stage != from:
		return fmt.Errorf("seed: the agent of %s is %s, it cannot be %s yet", h.o.Own.Host, h.kept.Stage, to)
	}
	next := h.kept
	next.Stage = to
	return h.store(next)
}

// SetPace limits the bytes a second that the host pulls, 0 is unlimited, and pauses the copy. A pause also lasts
// when the agent is started again.
func (h *Host) SetPace(bytes int64, paused bool) error {
	if h.limit.Rates().Bytes != bytes { // what waits at the old rate passes
		h.limit.Set(pace.Rates{Bytes: bytes})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.kept
	switch next.Paused = paused; {
	case paused == h.kept.Paused:
		return nil
	case next.Order == nil: // it is stored with the order
		h.kept = next
		return nil
	}
	return h.store(next)
}

// store is called with h.mu locked.
func (h *Host) store(next hostFile) error {
	raw, err := json.Marshal(next)
	if err == nil {
		err = outfile.Replace(h.file(), func(f *os.File) error { _, err := f.Write(raw); return err })
	}
	if err != nil {
		return fmt.Errorf("seed: cannot store the agent's state: %w", explain(err))
	}
	h.o.Log.Info("the agent goes on", "stage", next.Stage, "paused", next.Paused)
	h.kept, h.failure = next, nil
	h.signal()
	return nil
}

// signal is called with h.mu locked.
func (h *Host) signal() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Run follows orders until ctx ends or the host has finished. It retries all failures.
func (h *Host) Run(ctx context.Context) error {
	for {
		h.mu.Lock()
		kept, changed := h.kept, h.changed
		h.mu.Unlock()
		switch {
		case kept.Stage == StageFinished:
			return nil
		case kept.Stage == StageIdle, kept.Stage == StageCopied, kept.Stage == StageFormed, kept.Paused:
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		// A pause or another order ends the step.
		step, cancel := endingWith(ctx, changed, errOrdered)
		err := retry.Again(step, 500*time.Millisecond, 10*time.Second, func(failure error, pause time.Duration) bool {
			if step.Err() != nil {
				return false
			}
			h.o.Log.Warn("a step failed; trying again", "stage", kept.Stage, "error", failure, "hint", mongo.HintOf(failure),
				"retryIn", pause)
			h.fail(failure)
			return true
		}, func() error { return h.step(step, kept) })
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			h.fail(nil)
		}
	}
}

var errOrdered = errors.New("seed: the agent has another order")

func (h *Host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure, h.failed = err, h.stats.Stats()
}

func (h *Host) step(ctx context.Context, kept hostFile) error {
	switch kept.Stage {
	case StageCopying:
		return h.copy(ctx, kept)
	case StageForming:
		return h.formOwn(ctx, kept)
	}
	return h.keepRunning(ctx, kept)
}

// then stores the end of a step, unless another order came in between.
func (h *Host) then(was hostFile, change func(*hostFile)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept.Stage != was.Stage {
		return nil
	}
	next := h.kept
	change(&next)
	return h.store(next)
}

func (h *Host) copy(ctx context.Context, kept hostFile) error {
	if complete(h.o.DBPath) { // but that is not stored: the process was killed, or the disk was full
		if err := h.serveCopied(); err != nil {
			return err
		}
		return h.then(kept, func(f *hostFile) { f.Stage = StageCopied })
	}
	src, err := h.o.Peer(kept.Order.From)
	if err != nil {
		return err
	}
	defer src.Close()
	o := h.options(kept.Order.Formation.Set)
	o.Pull.Check = func(m *Manifest) error {
		p := &Plan{Way: m.Way, Origin: m.Origin, Files: len(m.Files), Bytes: m.Bytes}
		p.checkPrograms(ctx, o)
		return p.Checks.Err()
	}
	report, err := Pull(ctx, src, o.Pull)
	if err != nil {
		return err
	}
	return h.then(kept, func(f *hostFile) { f.Stage, f.Copy = StageCopied, report })
}

// serveCopied has pullers get a complete copy.
func (h *Host) serveCopied() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.copied == nil {
		h.copied, err = h.serveCopy()
	}
	return err
}

// complete reports a directory that Pull has completed.
func complete(dir string) bool {
	_, err := openDataDir(dir)
	return err == nil
}

func (h *Host) formOwn(ctx context.Context, kept hostFile) error {
	if err := h.release(); err != nil {
		return err
	}
	f := kept.Order.Formation
	keep, err := h.o.Keep(f.Include, f.Exclude)
	if err != nil {
		return err
	}
	d, err := openDataDir(h.o.DBPath)
	if err != nil {
		return err
	}
	h.stats.enter(PhaseRecover, 0)
	o := h.options(f.Set)
	if kept.Recovered.At.IsZero() {
		r, err := recoverOplog(ctx, o, d.storage)
		if err != nil {
			return err
		}
		// The next attempt does not find the oplog any more.
		return h.then(kept, func(f *hostFile) { f.Recovered = r })
	}
	deferred, err := formMember(ctx, o, d.storage, former{Formation: f, keep: keep}, kept.Recovered)
	if err != nil {
		return err
	}
	h.o.Log.Info("the copy is a member of the new set", "set", f.Set, "position", kept.Recovered.At,
		"deferredExpiries", deferred)
	return h.then(kept, func(f *hostFile) { f.Stage = StageFormed })
}

// release ends what serves the copy to others: it changes now.
func (h *Host) release() error {
	h.relay.end(errNoRound)
	h.mu.Lock()
	agent := h.copied
	h.copied = nil
	h.mu.Unlock()
	if agent != nil {
		return agent.Close()
	}
	return nil
}
