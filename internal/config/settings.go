package config

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/pace"
)

// Common are the settings that every command of this package has.
type Common struct {
	ConfigFile string
	Output     string // text or json
	LogLevel   string
	LogFormat  string // text or json
}

func (c *Common) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.ConfigFile, flagConfig, "", "read settings from this YAML `file`; its keys are the names of flags")
	fs.StringVar(&c.Output, "output", "text", "`form` of the result on standard output: text or json")
	fs.StringVar(&c.LogLevel, "log-level", "info", "least `level` that is logged: debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "text", "`form` of the log on standard error: text or json")
}

// Clusters are the two deployments. Both strings may hold passwords.
type Clusters struct {
	Source, Target string
}

func (c *Clusters) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.Source, flagSource, "", "connection string `URI` of the source; with a password, set MILLRACE_SOURCE or a config file instead")
	fs.StringVar(&c.Target, flagTarget, "", "connection string `URI` of the target; with a password, set MILLRACE_TARGET or a config file instead")
}

// Namespaces choose what is moved and under which name.
type Namespaces struct {
	Include, Exclude, Rename []string
}

func (n *Namespaces) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&n.Include, "include", nil, "only namespaces that match this `pattern`: db.coll, db.*, or with globs; may be repeated")
	fs.StringSliceVar(&n.Exclude, "exclude", nil, "not the namespaces that match this `pattern`; may be repeated")
	fs.StringSliceVar(&n.Rename, "rename", nil, "give a database or a collection another name on the target, as `from=to`; may be repeated")
}

// Sync are the settings of `millrace sync`.
type Sync struct {
	Common
	Clusters
	Namespaces

	Mode, StartAt, Until, Job string
	Restart, DryRun           bool
	OnExisting, OnConflict    string

	WriteConcern, ReadPreference, ReadTags string
	Readers, Writers, Partitions           int

	Limits
	Loads
	SpoolDir, SpoolMax      string // SpoolMax is an amount of bytes, "0" is none
	WarnWindow, GiveUpAfter time.Duration
	AllowDowngrade, Verify  bool

	Report, Listen, Token string
	PProf                 bool
}

// Bind registers the settings as flags with their defaults.
func (s *Sync) Bind(fs *pflag.FlagSet) {
	s.Clusters.bind(fs)
	s.Namespaces.bind(fs)
	fs.StringVar(&s.Mode, "mode", "all", "`mode` of the job: all (copy, then follow), full (copy only) or incremental (follow only)")
	fs.StringVar(&s.StartAt, "start-at", "", "`position` where incremental mode begins: seconds:increment, a time (RFC 3339) or checkpoint")
	fs.StringVar(&s.Until, "until", "never", "`when` to finalize and end: never (follow until told), caught-up, or a time (RFC 3339)")
	fs.StringVar(&s.Job, "job", "", "`name` of the job; by default it follows from source, target and rules, so that the same command resumes the same job")
	fs.BoolVar(&s.Restart, "restart", false, "forget the job's checkpoint and begin anew")
	fs.BoolVar(&s.DryRun, "dry-run", false, "print the plan and the precheck, write nothing; exit code 2 when a check fails")
	fs.StringVar(&s.OnExisting, "on-existing", "fail", "`policy` for target collections that exist: fail (before anything is written), merge or drop")
	fs.StringVar(&s.OnConflict, "on-conflict", "stop", "`policy` for a document that the target refuses: stop, skip (leave the target as it is) or overwrite (remove what stands in the way); what is skipped or removed is kept in millrace.deadletters on the target")
	fs.StringVar(&s.WriteConcern, "write-concern", "majority", "`concern` that a position must have reached before it is recorded: majority or a number of members")
	fs.StringVar(&s.ReadPreference, "read-preference", "primary", "`preference` for members of the source to read from: primary, primaryPreferred, secondary, secondaryPreferred or nearest")
	fs.StringVar(&s.ReadTags, "read-tags", "", "`tags` of the members to read from, such as dc:east,rack:1;dc:west; the first set that a member has counts")
	fs.IntVar(&s.Readers, "readers", 0, "most collection slices read at once; 0 chooses")
	fs.IntVar(&s.Writers, "writers", 0, "most insert batches under way at once; 0 chooses")
	fs.IntVar(&s.Partitions, "partitions", 0, "parallel appliers of changes; 0 chooses")
	s.Limits.bind(fs)
	s.Loads.bind(fs)
	fs.StringVar(&s.SpoolDir, "spool-dir", "", "`directory` on local disk for changes that the source's oplog may forget before the copy is done; by default millrace/spool below $XDG_STATE_HOME or ~/.local/state")
	fs.StringVar(&s.SpoolMax, "spool-max", "10GB", "most `bytes` of such changes to keep; 0 keeps none")
	fs.DurationVar(&s.WarnWindow, "warn-window", time.Hour, "warn, and during a copy begin to spool, when the source's oplog will hold the position for less than this")
	fs.DurationVar(&s.GiveUpAfter, "give-up-after", 0, "end the job when one failure lasts this long; 0 tries for ever")
	fs.BoolVar(&s.AllowDowngrade, "allow-downgrade", false, "permit a target that is older than the source")
	fs.BoolVar(&s.Verify, "verify", false, "compare source and target after the job is finalized")
	fs.StringVar(&s.Report, "report", "", "write the final report as JSON to this `file`")
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:0", "`address` of the control API, host:port; port 0 takes a free one")
	fs.StringVar(&s.Token, flagToken, "", "secret that the control API asks for; by default a new random one; set MILLRACE_TOKEN rather than the flag")
	fs.BoolVar(&s.PProf, "pprof", false, "serve Go's profiles below /debug/pprof/ of the control API, to those who have its token")
	s.Common.bind(fs)
}

// Limits hold a job back.
type Limits struct {
	MaxRateDocs  int64
	MaxRateBytes string // "50MB", "8MiB", "0"
}

func (l *Limits) bind(fs *pflag.FlagSet) {
	fs.Int64Var(&l.MaxRateDocs, flagRateDocs, 0, "most documents copied, or changes applied, in a second; 0 is unlimited")
	fs.StringVar(&l.MaxRateBytes, flagRateBytes, "0", "most `bytes` copied, or of changes applied, in a second, such as 50MB or 8MiB; 0 is unlimited")
}

// rates are the limits; the settings have to be valid.
func (l *Limits) rates() pace.Rates {
	bytes, _ := parseBytes(l.MaxRateBytes)
	return pace.Rates{Docs: l.MaxRateDocs, Bytes: bytes}
}

// Loads are how much a job may ask of each side.
type Loads struct{ SourceLoad, TargetLoad string }

func (l *Loads) bind(fs *pflag.FlagSet) {
	fs.StringVar(&l.SourceLoad, flagSourceLoad, string(pace.Normal),
		"`load` that the source may bear: low (one read at a time, and as long a pause after each as it took), normal (as many as this machine has cores) or max (more, as far as the copy gets faster)")
	fs.StringVar(&l.TargetLoad, flagTargetLoad, string(pace.Normal),
		"`load` that the target may bear: low (one write at a time, and as long a pause after each as it took), normal (by the cores of this machine) or max (more, as far as the copy gets faster)")
}

// loads are the settings, which have to be valid.
func (l *Loads) loads() pace.Loads {
	return pace.Loads{Source: pace.Load(l.SourceLoad), Target: pace.Load(l.TargetLoad)}
}

func parseBytes(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is no amount of bytes", text)
	}
	return int64(n), nil
}

// Verify are the settings of `millrace verify`.
type Verify struct {
	Common
	Clusters
	Namespaces

	IgnoreFieldOrder        bool
	Method                  string
	RecheckFor              time.Duration
	Workers, MaxDifferences int
	Report                  string
}

// Bind registers the settings as flags with their defaults.
func (v *Verify) Bind(fs *pflag.FlagSet) {
	v.Clusters.bind(fs)
	v.Namespaces.bind(fs)
	fs.BoolVar(&v.IgnoreFieldOrder, "ignore-field-order", false, "take documents as equal that differ in the order of their fields only")
	fs.StringVar(&v.Method, "method", "auto", "how documents are compared: digest, ranges (byte for byte, in the order of _id), or auto, which is digest for all but small collections")
	fs.DurationVar(&v.RecheckFor, "recheck-for", time.Minute, "look at a difference again for at most this long, until both sides stand still on it; 0 compares once, for clusters that nobody writes to")
	fs.IntVar(&v.Workers, "workers", 0, "ranges compared at once, each with one connection a side; 0 chooses")
	fs.IntVar(&v.MaxDifferences, "max-differences", 1000, "most differing documents that are listed by _id; all are counted")
	fs.StringVar(&v.Report, "report", "", "write the report as JSON to this `file`")
	v.Common.bind(fs)
}

// Control are the settings of the commands that talk to a running sync:
// status, pause, resume, throttle and finalize.
type Control struct {
	Common
	Address, Job, Token string
	// Watch and Interval belong to status alone.
	Watch    bool
	Interval time.Duration
	// Limits belong to throttle alone; one that is nil or empty was not given.
	Limits struct {
		Docs, Bytes    *int64
		Source, Target pace.Load
	}

	command string
	limits  Limits
	loads   Loads
}

// Bind registers the settings of command as flags with their defaults.
func (s *Control) Bind(fs *pflag.FlagSet, command string) {
	s.command = command
	fs.StringVar(&s.Address, "address", "", "`address` of the sync's control API, host:port, as the sync printed it")
	fs.StringVar(&s.Job, "job", "", "`name` of the job; not needed while only one runs on this machine")
	fs.StringVar(&s.Token, flagToken, "", "secret of the control API, for a sync on another machine; set MILLRACE_TOKEN rather than the flag")
	if command == CommandStatus {
		fs.BoolVar(&s.Watch, "watch", false, "show the status again and again until the sync ends")
		fs.DurationVar(&s.Interval, "interval", time.Second, "time between two looks with --watch")
	}
	if command == CommandThrottle {
		s.limits.bind(fs)
		s.loads.bind(fs)
	}
	s.Common.bind(fs)
}

// The commands that have settings of this package.
const (
	CommandSync     = "sync"
	CommandVerify   = "verify"
	CommandStatus   = "status"
	CommandPause    = "pause"
	CommandResume   = "resume"
	CommandThrottle = "throttle"
	CommandFinalize = "finalize"

	CommandSeedLocal = "seed-local"
	CommandSeedServe = "seed-serve"
	CommandSeedPull  = "seed-pull"
)

const (
	flagConfig = "config"
	flagSource = "source"
	flagTarget = "target"
	flagToken  = "token"

	flagRateDocs  = "max-rate-docs"
	flagRateBytes = "max-rate-bytes"

	flagSourceLoad = "source-load"
	flagTargetLoad = "target-load"
)

// secret reports settings whose value is never shown.
func secret(name string) bool {
	return slices.Contains([]string{flagSource, flagTarget, flagToken, flagFromURI, flagSeedURI, flagSetURI}, name)
}

// flagSets gives each command's settings, so that one file may serve several
// commands.
func flagSets() map[string]*pflag.FlagSet {
	sets := map[string]*pflag.FlagSet{}
	add := func(command string, bind func(*pflag.FlagSet)) {
		fs := pflag.NewFlagSet(command, pflag.ContinueOnError)
		bind(fs)
		sets[command] = fs
	}
	add(CommandSync, new(Sync).Bind)
	add(CommandVerify, new(Verify).Bind)
	for _, c := range []string{CommandStatus, CommandPause, CommandResume, CommandThrottle, CommandFinalize} {
		add(c, func(fs *pflag.FlagSet) { new(Control).Bind(fs, c) })
	}
	for _, c := range []string{CommandSeedLocal, CommandSeedServe, CommandSeedPull} {
		add(c, func(fs *pflag.FlagSet) { new(Seed).Bind(fs, c) })
	}
	return sets
}
