// Package config has the settings of the commands: where they come from (flag, environment, file,
// default, in this order) and whether they can be used. Before any connection is opened, it reports
// each problem with what it is, where it was set and how to correct it.
package config

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
)

type Settings interface {
	// Bind registers the settings of command as flags with their defaults.
	Bind(fs *pflag.FlagSet, command string)
	// Validate reports everything that is wrong with the settings and with the
	// arguments, without connecting anywhere. It completes what follows from them.
	Validate(o Origins, args []string) Problems
	// Logger logs to w as the settings say, which have to be valid.
	Logger(w io.Writer) *slog.Logger
	// ReportFile is the file for the result, "" for none.
	ReportFile() string
}

// Common are the settings that every command of this package has.
type Common struct {
	Output    string // text or json
	LogLevel  string
	LogFormat string // text or json
	Report    string // a file, of the commands that have reports
	// ProgressInterval is the time between two lines of the log about progress,
	// of the commands that take long; 0 is none.
	ProgressInterval time.Duration

	flags *pflag.FlagSet
}

func (c *Common) vars(fs *pflag.FlagSet) Vars {
	c.flags = fs
	return Vars{flagConfig: new(string), "output": &c.Output, "log-level": &c.LogLevel, "log-format": &c.LogFormat,
		"report": &c.Report, flagProgress: &c.ProgressInterval}
}

// ReportFile is the file for the result, "" for none.
func (c *Common) ReportFile() string { return c.Report }

func BindLog(fs *pflag.FlagSet, level, format *string) {
	Bind(fs, flagTexts, "log", Vars{"log-level": level, "log-format": format})
}

// Logger logs to w as the settings say, which have to be valid.
func (c *Common) Logger(w io.Writer) *slog.Logger { return NewLog(w, c.LogLevel, c.LogFormat) }

// NewLog logs to w from a level on, as text or as JSON.
func NewLog(w io.Writer, level, format string) *slog.Logger {
	var o slog.HandlerOptions
	var least slog.Level // info, if level is none
	_ = least.UnmarshalText([]byte(level))
	o.Level, o.ReplaceAttr = least, shortError
	if format == "json" {
		o.ReplaceAttr = jsonAttr
		return slog.New(slog.NewJSONHandler(w, &o))
	}
	return slog.New(slog.NewTextHandler(w, &o))
}

// shortError has errors quote no whole commands.
func shortError(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		return slog.String(a.Key, mongo.Brief(err))
	}
	return a
}

// jsonAttr has programs find numbers with their unit in the key, and positions
// and other things of ours in the form that they have in text.
func jsonAttr(groups []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		return slog.Float64(a.Key+"Seconds", v.Seconds())
	case error:
		return shortError(groups, a)
	case json.Marshaler:
	case fmt.Stringer:
		return slog.String(a.Key, v.String())
	}
	return a
}

// Describe returns the kind of a flag's value and its complete description. Only the first line of a
// usage is in a command's help, the details after it are in the reference.
func Describe(f *pflag.Flag) (kind, description string) {
	kind, usage := pflag.UnquoteUsage(f)
	return kind, strings.Replace(usage, "\n", "; ", 1)
}

const (
	choices = "choices"
	offers  = "offers"
)

// Choices are the words that a flag takes, nil for one that takes others.
func Choices(f *pflag.Flag) []string { return f.Annotations[choices] }

// Words are what a shell offers for a flag: its choices, or some of the values that it takes.
func Words(f *pflag.Flag) []string { return slices.Concat(Choices(f), f.Annotations[offers]) }

// Restrict has CheckChoices find what is none of the allowed words in a flag.
func Restrict(fs *pflag.FlagSet, flag string, allowed ...string) {
	_ = fs.SetAnnotation(flag, choices, allowed)
}

func rulesVars(r *transform.Config) Vars {
	return Vars{"include": &r.Include, "exclude": &r.Exclude, "rename": &r.Rename, "filter": &r.Filter, "skip": &r.Skip,
		"soft-delete": &r.SoftDelete, "history": &r.History, "fields": &r.Fields}
}

// paceVars are the limits of a job; bytes is an amount such as 50MB.
func paceVars(docs *int64, bytes *string, l *pace.Loads) Vars {
	return Vars{flagRateDocs: docs, flagRateBytes: bytes, flagSourceLoad: (*string)(&l.Source),
		flagTargetLoad: (*string)(&l.Target)}
}

// Sync are the settings of `millrace sync`. Its logger and where it spools by default are the command's own.
type Sync struct {
	Common
	job.Spec

	DryRun, Verify       bool
	Listen, Token        string
	TLSCert, TLSKey      string // of the control API
	OpenStatus, Insecure bool
	PProf                bool
	// SteadyInterval is the ProgressInterval of a job that follows.
	SteadyInterval time.Duration
	// Files name the agents of a copy by files; nil is a copy of documents.
	Files *Files

	copyBy                              string
	files                               Files
	sourceShards, targetShards          []string // name=URI
	maxRateBytes, spoolMax, applyBuffer string   // amounts of bytes: "50MB", "8MiB", "0"
}

// Bind implements Settings.
func (s *Sync) Bind(fs *pflag.FlagSet, _ string) {
	Bind(fs, flagTexts, CommandSync, s.Common.vars(fs), rulesVars(&s.Rules),
		paceVars(&s.Limits.Docs, &s.maxRateBytes, &s.Loads), Vars{
			flagSource: &s.Source, flagTarget: &s.Target, "mode": (*string)(&s.Mode),
			"on-existing": (*string)(&s.OnExisting), "until": &s.Until, "dry-run": &s.DryRun, "verify": &s.Verify,

			flagCapture: (*string)(&s.Capture), flagVia: (*string)(&s.Via),
			flagSourceShard: &s.sourceShards, flagTargetShard: &s.targetShards, "read-preference": &s.ReadPreference,
			"read-tags": &s.ReadTags, "write-concern": &s.WriteConcern, "allow-downgrade": &s.AllowDowngrade,
			"allow-shard": &s.AllowShard,

			flagShard: &s.Shard, flagZone: &s.Zones, flagUsers: &s.Users, "allow-missing": &s.AllowMissing,
			"start-at": &s.StartAt, "accept-loss": &s.AcceptLoss, "allow-overlap": &s.AllowOverlap,
			"on-conflict": (*string)(&s.OnConflict),

			flagCopy: &s.copyBy, flagSourceAgent: &s.files.SourceAgent, flagTargetAgents: &s.files.TargetAgents,
			flagTokenFile: &s.files.TokenFile, flagCA: &s.files.CAFile,

			"job": &s.Job, "restart": &s.Restart, "warn-window": &s.WarnWindow, "give-up-after": &s.GiveUpAfter,
			"index-wait": &s.IndexWait, "readers": &s.Readers, "writers": &s.Writers, "partitions": &s.Partitions,
			flagApplyBuffer: &s.applyBuffer, "compress": (*string)(&s.Compress), flagSpoolDir: &s.SpoolDir,
			"spool-max": &s.spoolMax,

			"listen": &s.Listen, flagToken: &s.Token, flagListenCert: &s.TLSCert, flagListenKey: &s.TLSKey,
			"listen-insecure": &s.Insecure, "open-status": &s.OpenStatus, "pprof": &s.PProf,
		})
}

// Verify are the settings of `millrace verify`.
type Verify struct {
	Common
	verify.Spec

	via                        origin.Via // of both sides
	sourceShards, targetShards []string   // name=URI
}

// Bind implements Settings.
func (v *Verify) Bind(fs *pflag.FlagSet, _ string) {
	Bind(fs, flagTexts, CommandVerify, v.Common.vars(fs), rulesVars(&v.Rules), Vars{
		flagSource: &v.Source, flagTarget: &v.Target, flagSourceShard: &v.sourceShards, flagTargetShard: &v.targetShards,
		flagVia: (*string)(&v.via), "allow-shard": &v.AllowShard, "structure": &v.StructureOnly, "users": &v.Users,
		"ignore-field-order": &v.IgnoreFieldOrder, "method": (*string)(&v.Method), "recheck-for": &v.Recheck.For,
		"workers": &v.Workers, "max-differences": &v.MaxDifferences,
	})
}

// Service locates the API of a service, or of a sync, and says how to trust it.
type Service struct{ Server, Token, CAFile string }

// Control are the settings of the commands that talk to a running sync, or to a service:
// status, pause, resume, throttle and finalize.
type Control struct {
	Common
	// Service has the Server of the environment, which is asked where no sync of this machine
	// is meant; Address is that of an API which was named.
	Service
	Address, Job string
	// Target knows a job that no process runs.
	Target string
	// Watch and Interval belong to status alone.
	Watch    bool
	Interval time.Duration
	// Limits belong to throttle alone: those that it was given.
	Limits server.Limits
	// WhenCaughtUp, Cancel and Wait belong to finalize alone.
	WhenCaughtUp, Cancel, Wait bool

	command      string
	rates        pace.Rates
	maxRateBytes string
	loads        pace.Loads
}

// Bind implements Settings.
func (s *Control) Bind(fs *pflag.FlagSet, command string) {
	s.command = command
	Bind(fs, flagTexts, command, s.Common.vars(fs), paceVars(&s.rates.Docs, &s.maxRateBytes, &s.loads), Vars{
		"address": &s.Address, flagServer: &s.Server, flagCA: &s.CAFile, "job": &s.Job, flagTarget: &s.Target,
		flagToken: &s.Token, "watch": &s.Watch, "interval": &s.Interval, "when-caught-up": &s.WhenCaughtUp,
		"cancel": &s.Cancel, "wait": &s.Wait,
	})
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

	CommandServe  = "serve"
	CommandWorker = "worker"

	CommandSeedLocal = "seed-local"
	CommandSeedServe = "seed-serve"
	CommandSeedPull  = "seed-pull"
	CommandSeedAgent = "seed-agent"
)

const (
	flagConfig      = "config"
	flagProgress    = "progress-interval"
	flagSource      = "source"
	flagSourceShard = "source-shard"
	flagCapture     = "capture"
	flagVia         = "via"
	flagShard       = "shard"
	flagZone        = "zone"
	flagTarget      = "target"
	flagTargetShard = "target-shard"
	flagToken       = "token"
	flagSpoolDir    = "spool-dir"

	flagUsers        = "users"
	flagCopy         = "copy"
	flagSourceAgent  = "source-agent"
	flagTargetAgents = "target-agents"
	flagServer       = "server"

	flagApplyBuffer = "apply-buffer"

	flagRateDocs   = "max-rate-docs"
	flagRateBytes  = "max-rate-bytes"
	flagSourceLoad = "source-load"
	flagTargetLoad = "target-load"

	flagListenCert = "listen-tls-cert"
	flagListenKey  = "listen-tls-key"
	flagCA         = "ca-file"
	flagTokenFile  = "token-file"

	flagFromURI    = "from-uri"
	flagSeedURI    = "uri"
	flagSetURI     = "set-uri"
	flagSeedDBPath = "dbpath"
)

func secretFiles() []string {
	return []string{flagListenKey, flagTokenFile, "nats-token-file", "nats-creds", "tokens"}
}

// settingNames lists each command's settings, so that one file may serve several commands.
func settingNames() map[string][]string {
	names := map[string][]string{}
	for command, fs := range settingFlags() {
		fs.VisitAll(func(f *pflag.Flag) { names[command] = append(names[command], f.Name) })
	}
	return names
}

func settingFlags() map[string]*pflag.FlagSet {
	sets := map[string]*pflag.FlagSet{}
	for s, commands := range map[Settings][]string{
		new(Sync): {CommandSync}, new(Reverse): {CommandReverse}, new(Verify): {CommandVerify},
		new(Control):   {CommandStatus, CommandPause, CommandResume, CommandThrottle, CommandFinalize},
		new(Seed):      {CommandSeedLocal, CommandSeedServe, CommandSeedPull, CommandSeedAgent},
		new(Transform): {CommandTransformTest},
		new(Serve):     {CommandServe}, new(Worker): {CommandWorker},
	} {
		for _, c := range commands {
			fs := pflag.NewFlagSet(c, pflag.ContinueOnError)
			s.Bind(fs, c)
			sets[c] = fs
		}
	}
	return sets
}

// Transform are the settings of `millrace transform test`.
type Transform struct {
	Common
	Source string
	Rules  transform.Config
	NS     string // the collection that documents are taken to be of
	Doc    string // a file of documents, "-" for standard input
	Sample int    // documents to be drawn from the source, where Doc is not given
}

// CommandTransformTest has settings of this package.
const CommandTransformTest = "transform-test"

// Bind implements Settings.
func (s *Transform) Bind(fs *pflag.FlagSet, _ string) {
	Bind(fs, flagTexts, CommandTransformTest, s.Common.vars(fs), rulesVars(&s.Rules),
		Vars{"ns": &s.NS, "doc": &s.Doc, "sample": &s.Sample, flagSource: &s.Source})
}

// Validate implements Settings.
func (s *Transform) Validate(o Origins, _ []string) Problems {
	c := newChecker(&s.Common, o)
	c.namespaces(s.Rules)
	db, coll := mongo.SplitNS(s.NS)
	c.bad(db == "" || coll == "", "ns", "names no collection", "give --ns db.coll")
	if s.Doc == "" {
		c.uri(flagSource, s.Source)
		c.bad(s.Sample < 1 || s.Sample > 1000, "sample", "is out of range", "give a number from 1 to 1000")
	}
	return c.problems
}
