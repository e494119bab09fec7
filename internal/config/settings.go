// Package config holds the settings of the commands: where they come from
// (flag, environment, file, default, in this order) and whether they can be
// used. Everything that is wrong with them is said before any connection is
// opened, each problem with what it is, where it was set and how to mend it.
package config

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
)

// Settings are those of one command.
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

func (c *Common) bind(fs *pflag.FlagSet) {
	c.flags = fs
	fs.String(flagConfig, "", "read settings from this YAML `file`; its keys are the names of flags")
	Choice(fs, &c.Output, "output", "text* json", "`form` of the result on standard output: text or json")
	BindLog(fs, &c.LogLevel, &c.LogFormat)
}

func (c *Common) bindProgress(fs *pflag.FlagSet, besides string) {
	fs.DurationVar(&c.ProgressInterval, flagProgress, 10*time.Second,
		"time between two lines of the log about progress"+besides+"; 0 writes none")
}

// ReportFile is the file for the result, "" for none.
func (c *Common) ReportFile() string { return c.Report }

// BindLog registers the flags of a log.
func BindLog(fs *pflag.FlagSet, level, format *string) {
	Choice(fs, level, "log-level", "debug info* warn error", "least `level` that is logged: debug, info, warn or error")
	Choice(fs, format, "log-format", "text* json", "`form` of the log on standard error: text or json")
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

// choices is the annotation of a flag that takes one of a few words.
const choices = "choices"

// Choices are the words that a flag takes, nil for one that takes others.
func Choices(f *pflag.Flag) []string { return f.Annotations[choices] }

// Restrict has CheckChoices find what is none of the allowed words in a flag.
func Restrict(fs *pflag.FlagSet, flag string, allowed ...string) {
	_ = fs.SetAnnotation(flag, choices, allowed)
}

// Choice registers a flag that takes one of some words, separated by spaces. The one with a
// star is its default.
func Choice(fs *pflag.FlagSet, p *string, name, words, usage string) {
	allowed := strings.Fields(words)
	for i, word := range allowed {
		if plain, is := strings.CutSuffix(word, "*"); is {
			allowed[i] = plain
			fs.StringVar(p, name, plain, usage)
		}
	}
	Restrict(fs, name, allowed...)
}

func bindClusters(fs *pflag.FlagSet, source, target *string) {
	fs.StringVar(source, flagSource, "",
		"connection string `URI` of the source; with a password, set MILLRACE_SOURCE or a config file instead")
	fs.StringVar(target, flagTarget, "",
		"connection string `URI` of the target; with a password, set MILLRACE_TARGET or a config file instead")
}

func bindAllowShard(fs *pflag.FlagSet, allow *bool) {
	fs.BoolVar(allow, "allow-shard", false,
		"permit a source or target that is one shard of a sharded cluster, without its routers")
}

func bindShards(fs *pflag.FlagSet, list *[]string, name, side string) {
	fs.StringArrayVar(list, name, nil,
		"where a shard of a sharded "+side+" is reached otherwise than the cluster says, as `name=URI`; may be repeated")
}

func bindRules(fs *pflag.FlagSet, r *transform.Config) {
	fs.StringSliceVar(&r.Include, "include", nil,
		"only namespaces that match this `pattern`: db.coll, db.*, or with globs; may be repeated")
	fs.StringSliceVar(&r.Exclude, "exclude", nil, "not the namespaces that match this `pattern`; may be repeated")
	fs.StringArrayVar(&r.Filter, "filter", nil, "of the collections that match a pattern only the documents that find "+
		"returns for a `filter`, as 'db.coll={\"status\": \"open\"}'; may be repeated")
	fs.StringArrayVar(&r.Skip, "skip", nil, "of the collections that match a pattern leave out some `operations`, as "+
		"'db.coll=delete,drop', or with 'db.coll=ttl' only the deletions of documents that have expired; may be repeated")
	fs.StringArrayVar(&r.SoftDelete, "soft-delete", nil,
		"have documents that the source deletes stay, with the time in a `field`, as 'db.coll=deletedAt'; may be repeated")
	fs.StringSliceVar(&r.History, "history", nil, "of the documents of collections that match this `pattern` keep all "+
		"versions on the target, each as a document with its position and operation; may be repeated")
	fs.StringArrayVar(&r.Fields, "fields", nil, "map the fields of the documents of collections that match a pattern, as "+
		"'db.coll={\"drop\": [\"card\"]}'; may be `repeated`, see docs/reference/rules.md")
	fs.StringSliceVar(&r.Rename, "rename", nil,
		"give a database or a collection another name on the target, as `from=to`; may be repeated")
}

// Sync are the settings of `millrace sync`. Its logger and where it spools by
// default are the command's own.
type Sync struct {
	Common
	job.Spec

	DryRun, Verify bool
	// TargetShards are connection strings of the target's shards for Verify, by name.
	TargetShards         map[string]string
	Listen, Token        string
	TLSCert, TLSKey      string // of the control API
	OpenStatus, Insecure bool
	PProf                bool
	// SteadyInterval is the ProgressInterval of a job that follows.
	SteadyInterval time.Duration

	sourceShards, targetShards          []string // name=URI
	maxRateBytes, spoolMax, applyBuffer string   // amounts of bytes: "50MB", "8MiB", "0"
}

// Bind implements Settings.
func (s *Sync) Bind(fs *pflag.FlagSet, _ string) {
	bindClusters(fs, &s.Source, &s.Target)
	bindShards(fs, &s.sourceShards, flagSourceShard, "source")
	Choice(fs, &s.ReadPreference, "read-preference", "primary* primaryPreferred secondary secondaryPreferred nearest",
		"`preference` for members of the source to read from: primary, primaryPreferred, secondary, secondaryPreferred or "+
			"nearest")
	fs.StringVar(&s.ReadTags, "read-tags", "",
		"`tags` of the members to read from, such as dc:east,rack:1;dc:west; the first set that a member has counts")
	fs.StringVar(&s.WriteConcern, "write-concern", "majority",
		"`concern` that a position must have reached before it is recorded: majority or a number of members")
	fs.BoolVar(&s.AllowDowngrade, "allow-downgrade", false, "permit a target that is older than the source")
	bindAllowShard(fs, &s.AllowShard)
	section(fs, "Source and target")
	bindRules(fs, &s.Rules)
	fs.StringArrayVar(&s.Shard, flagShard, nil,
		"by which key a collection of the source is sharded on a sharded target, as `db.coll=key`: the key as fields "+
			"(customer:1,_id:hashed), as JSON, or none; by default as on a sharded source; may be repeated")
	fs.StringArrayVar(&s.Zones, flagZone, nil,
		"which `zone=shard,shard` of a sharded target are to be in a zone of a sharded source, or zone=none to leave it "+
			"out; by default the shards that are in a zone of that name, else those with the names of the source's; may be "+
			"repeated")
	fs.BoolVar(&s.AllowMissing, "allow-missing", false,
		"permit an --include, a --shard or a --zone that matches nothing on the source yet")
	Choice(fs, (*string)(&s.Mode), "mode", "all* full incremental structure",
		"`mode` of the job: all (copy, then follow), full (copy only), incremental (follow only) or structure (collections "+
			"with their options, indexes and views, no documents)")
	fs.StringVar(&s.StartAt, "start-at", "",
		"`position` where incremental mode begins: seconds:increment, a time (RFC 3339) or checkpoint")
	Choice(fs, (*string)(&s.OnExisting), "on-existing", "fail* merge drop",
		"`policy` for target collections that exist: fail (before anything is written), merge or drop")
	fs.BoolVar(&s.AllowOverlap, "allow-overlap", false,
		"permit other jobs that are not finalized to have the same collections of the target, so that all are merged there")
	Choice(fs, (*string)(&s.OnConflict), "on-conflict", "stop* skip overwrite",
		"`policy` for a document that the target refuses: stop, skip (leave the target as it is) or overwrite (remove what "+
			"stands in the way); what is skipped or removed is kept in millrace.deadletters on the target. With skip and "+
			"overwrite the target also goes without documents that --fields cannot map")
	section(fs, "What is copied")
	fs.StringVar(&s.Until, "until", "never",
		"`when` to finalize and end: never (follow until told), caught-up, or a time (RFC 3339)")
	fs.StringVar(&s.Job, "job", "", "`name` of the job; by default it follows from source, target and rules, so that the "+
		"same command resumes the same job")
	fs.BoolVar(&s.Restart, "restart", false,
		"forget the job's checkpoint and begin anew; with --on-existing drop, what the job had made is dropped too")
	fs.BoolVar(&s.DryRun, "dry-run", false,
		"print the plan and the precheck, write nothing; exit code 2 when a check fails")
	fs.BoolVar(&s.Verify, "verify", false, "compare source and target after the job is finalized")
	bindShards(fs, &s.targetShards, flagTargetShard, "target, which --verify reads,")
	fs.DurationVar(&s.WarnWindow, "warn-window", time.Hour,
		"warn, and during a copy begin to spool, when the source's oplog will hold the position for less than this")
	fs.DurationVar(&s.GiveUpAfter, "give-up-after", 0, "end the job when one failure lasts this long; 0 tries for ever")
	fs.DurationVar(&s.IndexWait, "index-wait", 10*time.Minute,
		"how long finalize waits for index builds under way on the source before it is rejected; 0 is without limit")
	section(fs, "Running")
	fs.IntVar(&s.Readers, "readers", 0, "most collection slices read at once; 0 chooses")
	fs.IntVar(&s.Writers, "writers", 0, "most insert batches under way at once; 0 chooses")
	fs.IntVar(&s.Partitions, "partitions", 0, "parallel appliers of changes; 0 chooses")
	fs.StringVar(&s.applyBuffer, flagApplyBuffer, "256MiB", "most `bytes` of changes that were read and are not applied "+
		"yet, in all partitions together; one reply of the source and one document pass however large they are")
	bindPace(fs, &s.Limits.Docs, &s.maxRateBytes, &s.Loads)
	Choice(fs, (*string)(&s.Compress), "compress", "auto* off",
		"`when` to compress what is exchanged with a far source or target, where the connection string names no "+
			"compressors: auto (with zstd, while that is found to be faster) or off")
	fs.StringVar(&s.SpoolDir, "spool-dir", "", "`directory` on local disk for changes that the source's oplog may forget "+
		"before the copy is done; by default millrace/spool below $XDG_STATE_HOME or ~/.local/state")
	fs.StringVar(&s.spoolMax, "spool-max", "10GB", "most `bytes` of such changes to keep; 0 keeps none")
	section(fs, "Speed and room")
	s.bindControl(fs)
	section(fs, "Control")
	fs.StringVar(&s.Report, "report", "", "write the final report as JSON to this `file`")
	s.bindProgress(fs, "; while the job follows 5m, unless this flag says otherwise")
	s.Common.bind(fs)
	section(fs, outputSection)
}

// bindControl registers how the control API is reached, and by whom.
func (s *Sync) bindControl(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:0", "`address` of the control API, host:port; port 0 takes a free one")
	fs.StringVar(&s.Token, flagToken, "",
		"secret that the control API asks for; by default a new random one; set MILLRACE_TOKEN rather than the flag")
	fs.StringVar(&s.TLSCert, flagListenCert, "", "`file` with the control API's TLS certificate and those of its "+
		"authorities, in PEM form; it and the key are read again for each connection")
	fs.StringVar(&s.TLSKey, flagListenKey, "", "`file` with its key; by default the same as --listen-tls-cert")
	fs.BoolVar(&s.Insecure, "listen-insecure", false,
		"let other machines reach the control API without TLS: whoever sees the traffic on the way can use its token")
	fs.BoolVar(&s.OpenStatus, "open-status", false, "show the status to those who have no token, too")
	fs.BoolVar(&s.PProf, "pprof", false,
		"serve Go's profiles below /debug/pprof/ of the control API, to those who have its token")
}

// bindPace registers what holds a job back; bytes is an amount such as 50MB.
func bindPace(fs *pflag.FlagSet, docs *int64, bytes *string, l *pace.Loads) {
	fs.Int64Var(docs, flagRateDocs, 0, "most documents copied, or changes applied, in a second; 0 is unlimited")
	fs.StringVar(bytes, flagRateBytes, "0",
		"most `bytes` copied, or of changes applied, in a second, such as 50MB or 8MiB; 0 is unlimited")
	Choice(fs, (*string)(&l.Source), flagSourceLoad, "low normal* max",
		"`load` that the source may bear: low (one read at a time, and as long a pause after each as it took), normal (as "+
			"many as this machine has cores) or max (more, as far as the copy gets faster)")
	Choice(fs, (*string)(&l.Target), flagTargetLoad, "low normal* max",
		"`load` that the target may bear: low (one write at a time, and as long a pause after each as it took), normal (by "+
			"the cores of this machine) or max (more, as far as the copy gets faster)")
}

// Verify are the settings of `millrace verify`.
type Verify struct {
	Common
	verify.Spec

	sourceShards, targetShards []string // name=URI
}

// Bind implements Settings.
func (v *Verify) Bind(fs *pflag.FlagSet, _ string) {
	bindClusters(fs, &v.Source, &v.Target)
	bindShards(fs, &v.sourceShards, flagSourceShard, "source")
	bindShards(fs, &v.targetShards, flagTargetShard, "target")
	bindAllowShard(fs, &v.AllowShard)
	section(fs, "Source and target")
	bindRules(fs, &v.Rules)
	section(fs, "What is compared")
	fs.BoolVar(&v.StructureOnly, "structure", false,
		"compare collections, options, indexes and views alone, and no document")
	fs.BoolVar(&v.IgnoreFieldOrder, "ignore-field-order", false,
		"take documents as equal that differ in the order of their fields only")
	Choice(fs, (*string)(&v.Method), "method", "auto* ranges digest",
		"how documents are compared: digest, ranges (byte for byte, in the order of _id), or auto, which is digest for all "+
			"but small collections")
	fs.DurationVar(&v.Recheck.For, "recheck-for", time.Minute, "look at a difference again for at most this long, until "+
		"both sides stand still on it; 0 compares once, for clusters that nobody writes to")
	fs.IntVar(&v.Workers, "workers", 0, "ranges compared at once, each with one connection a side; 0 chooses")
	fs.IntVar(&v.MaxDifferences, "max-differences", 1000,
		"most differing documents that are listed by _id; all are counted")
	section(fs, "How it is compared")
	fs.StringVar(&v.Report, "report", "", "write the report as JSON to this `file`")
	v.bindProgress(fs, "")
	v.Common.bind(fs)
	section(fs, outputSection)
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
	// Watch, Interval and Target belong to status alone.
	Watch    bool
	Target   string
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
	fs.StringVar(&s.Address, "address", "", "`address` of the sync's control API, as the sync printed it: "+
		"https://host:port or http://host:port; without a scheme http on this machine, https elsewhere")
	fs.StringVar(&s.Server, flagServer, "", "`address` of a service of many jobs, as millrace serve printed it; that of "+
		"MILLRACE_SERVER is asked where no sync of this machine is meant")
	fs.StringVar(&s.CAFile, flagCA, "", "`file` with the authority of the certificate of a service, or of a sync on "+
		"another machine, in PEM form; by default the system's authorities")
	fs.StringVar(&s.Job, "job", "", "`name` of the job; not needed while there is only one")
	fs.StringVar(&s.Token, flagToken, "",
		"secret of a service, or of a sync on another machine; set MILLRACE_TOKEN rather than the flag")
	if command == CommandStatus {
		fs.BoolVar(&s.Watch, "watch", false, "show the status again and again until the sync ends")
		fs.DurationVar(&s.Interval, "interval", time.Second, "time between two looks with --watch")
		fs.StringVar(&s.Target, flagTarget, "", "connection string `URI` of the job's target, which knows where a job that "+
			"does not run stands; with a password, set MILLRACE_TARGET or a config file instead")
	}
	if command == CommandFinalize {
		fs.BoolVar(&s.WhenCaughtUp, "when-caught-up", false, "where the job does not follow yet, finalize as soon as it "+
			"does; the request ends with a sync's process, and a service keeps it")
		fs.BoolVar(&s.Cancel, "cancel", false,
			"take back that the job is to be finalized, also by --until; possible until it has begun to")
		fs.BoolVar(&s.Wait, "wait", false, "return when the job of a service is finalized, as a sync always does")
	}
	if command == CommandThrottle {
		bindPace(fs, &s.rates.Docs, &s.maxRateBytes, &s.loads)
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

	CommandServe  = "serve"
	CommandWorker = "worker"

	CommandSeedLocal = "seed-local"
	CommandSeedServe = "seed-serve"
	CommandSeedPull  = "seed-pull"
)

const (
	outputSection = "Settings and output"

	flagConfig      = "config"
	flagProgress    = "progress-interval"
	flagSource      = "source"
	flagSourceShard = "source-shard"
	flagShard       = "shard"
	flagZone        = "zone"
	flagTarget      = "target"
	flagTargetShard = "target-shard"
	flagToken       = "token"
	flagServer      = "server"

	flagApplyBuffer = "apply-buffer"

	flagRateDocs   = "max-rate-docs"
	flagRateBytes  = "max-rate-bytes"
	flagSourceLoad = "source-load"
	flagTargetLoad = "target-load"

	flagListenCert = "listen-tls-cert"
	flagListenKey  = "listen-tls-key"
	flagCA         = "ca-file"

	flagFromURI    = "from-uri"
	flagSeedURI    = "uri"
	flagSetURI     = "set-uri"
	flagSeedDBPath = "dbpath"
)

// secretFiles are the settings that name a file which holds a secret.
func secretFiles() []string {
	return []string{flagListenKey, "tls-key", "token-file", "nats-token-file", "nats-creds", "tokens"}
}

// settingNames lists each command's settings, so that one file may serve several
// commands.
func settingNames() map[string][]string {
	names := map[string][]string{}
	for command, fs := range settingFlags() {
		fs.VisitAll(func(f *pflag.Flag) { names[command] = append(names[command], f.Name) })
	}
	return names
}

// settingFlags are the settings of each command as flags.
func settingFlags() map[string]*pflag.FlagSet {
	sets := map[string]*pflag.FlagSet{}
	for s, commands := range map[Settings][]string{
		new(Sync): {CommandSync}, new(Verify): {CommandVerify},
		new(Control):   {CommandStatus, CommandPause, CommandResume, CommandThrottle, CommandFinalize},
		new(Seed):      {CommandSeedLocal, CommandSeedServe, CommandSeedPull},
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
	fs.StringVar(&s.NS, "ns", "", "the collection that the documents are of, as `db.coll`")
	fs.StringVar(&s.Doc, "doc", "", "`file` of documents in extended JSON, one after the other; - is standard input")
	fs.IntVar(&s.Sample, "sample", 20, "without --doc, draw so many documents of the collection from the source")
	fs.StringVar(&s.Source, flagSource, "",
		"connection string `URI` of the source, for --sample; with a password, set MILLRACE_SOURCE or a config file instead")
	section(fs, "Documents")
	bindRules(fs, &s.Rules)
	section(fs, "Rules")
	s.Common.bind(fs)
	section(fs, outputSection)
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
