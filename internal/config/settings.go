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
	"github.com/millrace/millrace/internal/reverse"
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
	fs.String(flagConfig, "", "read settings from this YAML `file`\nits keys are the names of flags")
	Choice(fs, &c.Output, "output", "text* json", "`form` of the result: text or json\non standard output")
	BindLog(fs, &c.LogLevel, &c.LogFormat)
}

func (c *Common) bindProgress(fs *pflag.FlagSet, details string) {
	fs.DurationVar(&c.ProgressInterval, flagProgress, 10*time.Second,
		strings.TrimSuffix("interval of progress log lines; 0 disables\n"+details, "\n"))
}

// ReportFile is the file for the result, "" for none.
func (c *Common) ReportFile() string { return c.Report }

// BindLog registers the flags of a log.
func BindLog(fs *pflag.FlagSet, level, format *string) {
	Choice(fs, level, "log-level", "debug info* warn error", "least log `level`: debug, info, warn or error")
	Choice(fs, format, "log-format", "text* json", "`form` of the log: text or json\non standard error")
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
		"connection string `URI` of the source\nwith a password, set MILLRACE_SOURCE or use a config file instead")
	fs.StringVar(target, flagTarget, "",
		"connection string `URI` of the target\nwith a password, set MILLRACE_TARGET or use a config file instead")
}

func bindAllowShard(fs *pflag.FlagSet, allow *bool) {
	fs.BoolVar(allow, "allow-shard", false, "permit a single shard as source or target, without its routers")
}

func bindShards(fs *pflag.FlagSet, list *[]string, side string) {
	fs.StringArrayVar(list, side+"-shard", nil, "override the address of a shard of the "+side+
		", as `name=URI`\nthe name is that of config.shards; may be repeated")
}

// bindNames registers the rules that choose and rename namespaces.
func bindNames(fs *pflag.FlagSet, r *transform.Config) {
	fs.StringSliceVar(&r.Include, "include", nil,
		"only namespaces that match this `pattern`\na pattern is db.coll, db.*, or has globs; may be repeated")
	fs.StringSliceVar(&r.Exclude, "exclude", nil, "no namespaces that match this `pattern`\nmay be repeated")
	fs.StringSliceVar(&r.Rename, "rename", nil,
		"rename a database or collection on the target, as `from=to`\nmay be repeated")
}

// bindRules registers the rules for documents and operations.
func bindRules(fs *pflag.FlagSet, r *transform.Config) {
	fs.StringArrayVar(&r.Filter, "filter", nil, "copy only documents that match, as `pattern=filter`\nthe filter is one "+
		"of find, as in 'db.coll={\"status\": \"open\"}'; may be repeated")
	fs.StringArrayVar(&r.Skip, "skip", nil, "leave out operations, as `pattern=operations`\nas in "+
		"'db.coll=delete,drop'; 'db.coll=ttl' leaves out only deletions of expired documents; may be repeated")
	fs.StringArrayVar(&r.SoftDelete, "soft-delete", nil, "keep deleted documents, as `pattern=field`\nthe field records "+
		"the deletion time, as in 'db.coll=deletedAt'; may be repeated")
	fs.StringSliceVar(&r.History, "history", nil, "keep all versions of documents that match this `pattern`\neach "+
		"version is a document on the target, with its position and operation; may be repeated")
	fs.StringArrayVar(&r.Fields, "fields", nil, "map fields of documents, as `pattern=rules`\nas in "+
		"'db.coll={\"drop\": [\"card\"]}', see docs/reference/rules.md; may be repeated")
}

// Sync are the settings of `millrace sync`. Its logger and where it spools by
// default are the command's own.
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

	sourceShards, targetShards          []string // name=URI
	maxRateBytes, spoolMax, applyBuffer string   // amounts of bytes: "50MB", "8MiB", "0"
}

// Bind implements Settings.
func (s *Sync) Bind(fs *pflag.FlagSet, _ string) {
	bindClusters(fs, &s.Source, &s.Target)
	bindNames(fs, &s.Rules)
	Choice(fs, (*string)(&s.Mode), "mode", "all* full incremental structure",
		"`mode` of the job: all, full, incremental or structure\nall copies, then follows; full only copies; "+
			"incremental only follows; structure makes collections with their options, indexes, views and, on a sharded "+
			"target, shard keys, copies no document and ends by itself")
	Choice(fs, (*string)(&s.OnExisting), "on-existing", "fail* merge drop",
		"`policy` for existing target collections: fail, merge or drop\nfail ends the job before anything is written")
	fs.StringVar(&s.Until, "until", "never",
		"`when` to finalize: never, caught-up or a time\nnever follows until millrace finalize; a time is in RFC 3339")
	fs.BoolVar(&s.DryRun, "dry-run", false, "show plan and precheck, write nothing\nexit code 2 when a check fails")
	fs.BoolVar(&s.Verify, "verify", false, "compare source and target after finalize")
	section(fs, "Most used")
	s.bindSides(fs)
	section(fs, "Source and target")
	s.bindContent(fs)
	section(fs, "What is copied")
	fs.StringVar(&s.Job, "job", "", "`name` of the job\nby default it follows from source, target and rules, so that the "+
		"same command resumes the same job")
	fs.BoolVar(&s.Restart, "restart", false, "delete the job's checkpoint and start again\nwith --on-existing drop, "+
		"collections that the job made are dropped too")
	fs.DurationVar(&s.WarnWindow, "warn-window", time.Hour, "warn when the oplog window is shorter\nduring a copy, begin "+
		"to spool then, too; the window is how long the source's oplog will still hold the position")
	fs.DurationVar(&s.GiveUpAfter, "give-up-after", 0, "end the job when one failure lasts longer\n0 retries for ever")
	fs.DurationVar(&s.IndexWait, "index-wait", 10*time.Minute,
		"longest wait of finalize for index builds\nit waits for builds under way on the source, and is rejected after "+
			"this time; 0 is without limit")
	section(fs, "Running")
	s.bindSpeed(fs)
	section(fs, "Speed and room")
	s.bindControl(fs)
	section(fs, "Control")
	fs.StringVar(&s.Report, "report", "", "write the final report as JSON to this `file`")
	s.bindProgress(fs, "while the job follows, 5m is the default")
	s.Common.bind(fs)
	section(fs, outputSection)
}

// bindSides registers how source and target are read and written.
func (s *Sync) bindSides(fs *pflag.FlagSet) {
	bindShards(fs, &s.sourceShards, "source")
	bindShards(fs, &s.targetShards, "target")
	fs.Lookup(flagTargetShard).Usage += "; finalize and --verify read them"
	Choice(fs, &s.ReadPreference, "read-preference", "primary* primaryPreferred secondary secondaryPreferred nearest",
		"read `preference` for the source\nprimary, primaryPreferred, secondary, secondaryPreferred or nearest")
	fs.StringVar(&s.ReadTags, "read-tags", "",
		"`tags` of members to read from\nsuch as dc:east,rack:1;dc:west: the first set that a member has counts")
	fs.StringVar(&s.WriteConcern, "write-concern", "majority", "write `concern` before a position is stored\nmajority or "+
		"a number of members")
	fs.BoolVar(&s.AllowDowngrade, "allow-downgrade", false, "permit a target older than the source")
	bindAllowShard(fs, &s.AllowShard)
}

// bindContent registers the rules, and how the target takes what they keep.
func (s *Sync) bindContent(fs *pflag.FlagSet) {
	bindRules(fs, &s.Rules)
	fs.StringArrayVar(&s.Shard, flagShard, nil,
		"shard key on a sharded target, as `db.coll=key`\nthe key is fields (customer:1,_id:hashed), JSON, or none; by "+
			"default that of a sharded source; may be repeated")
	fs.StringArrayVar(&s.Zones, flagZone, nil,
		"shards of a zone on the target, as `zone=shard,shard`\nzone=none leaves a zone of the source out; by default the "+
			"target's shards in a zone of that name, else those with the names of the source's shards; may be repeated")
	fs.BoolVar(&s.Users, "users", false, "copy users and roles of the chosen databases\nwith their credentials; later "+
		"changes arrive within a minute; users that the target has otherwise stay")
	fs.BoolVar(&s.AllowMissing, "allow-missing", false,
		"permit rules that match nothing yet\nthese are --include, --shard and --zone")
	fs.StringVar(&s.StartAt, "start-at", "",
		"`position` where incremental mode begins\nseconds:increment, a time (RFC 3339), checkpoint, or job:NAME for "+
			"where a finalized job ended that this one reverses")
	fs.StringSliceVar(&s.AcceptLoss, "accept-loss", nil, "go on despite this `loss` of a reversed job\nthe precheck "+
		"names them; "+strings.Join(reverse.Losses(), ", ")+"; may be repeated")
	fs.BoolVar(&s.AllowOverlap, "allow-overlap", false, "permit other jobs on the same target collections\njobs that are "+
		"not finalized; the documents of all are merged")
	Choice(fs, (*string)(&s.OnConflict), "on-conflict", "stop* skip overwrite",
		"`policy` for refused documents: stop, skip or overwrite\nskip leaves the target as it is, overwrite removes "+
			"conflicting documents; millrace.deadletters on the target keeps skipped and removed documents; with skip and "+
			"overwrite, documents that --fields cannot map are missing on the target")
}

// bindSpeed registers limits of speed, memory and disk.
func (s *Sync) bindSpeed(fs *pflag.FlagSet) {
	fs.IntVar(&s.Readers, "readers", 0, "most slices read at once; 0 chooses")
	fs.IntVar(&s.Writers, "writers", 0, "most batches inserted at once; 0 chooses")
	fs.IntVar(&s.Partitions, "partitions", 0, "parallel appliers of changes; 0 chooses")
	fs.StringVar(&s.applyBuffer, flagApplyBuffer, "256MiB", "most `bytes` of changes in memory\nchanges that are read "+
		"and not yet applied, in all partitions together; one reply of the source and one document may be larger")
	bindPace(fs, &s.Limits.Docs, &s.maxRateBytes, &s.Loads)
	Choice(fs, (*string)(&s.Compress), "compress", "auto* off", "`when` to compress network traffic: auto or off\nauto "+
		"uses zstd to a distant cluster while that is faster; compressors of the connection string win")
	fs.StringVar(&s.SpoolDir, flagSpoolDir, "", "local `directory` for spooled changes\nchanges that the source's oplog "+
		"may lose before the copy is done; by default millrace/spool below $XDG_STATE_HOME or ~/.local/state")
	fs.StringVar(&s.spoolMax, "spool-max", "10GB", "most `bytes` of spooled changes; 0 disables")
}

// bindControl registers the address and the access rules of the control API.
func (s *Sync) bindControl(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:0", "control API `address`\nhost:port; port 0 takes a free one")
	fs.StringVar(&s.Token, flagToken, "",
		"secret of the control API\nby default a new random one; set MILLRACE_TOKEN rather than the flag")
	fs.StringVar(&s.TLSCert, flagListenCert, "", "TLS certificate `file` of the control API\nin PEM form, with the "+
		"certificates of its authorities; certificate and key are read again for each connection")
	fs.StringVar(&s.TLSKey, flagListenKey, "", "TLS key `file`\nby default the same as --listen-tls-cert")
	fs.BoolVar(&s.Insecure, "listen-insecure", false,
		"permit remote access without TLS\nwhoever sees the traffic can then use the token")
	fs.BoolVar(&s.OpenStatus, "open-status", false, "show the status without a token")
	fs.BoolVar(&s.PProf, "pprof", false, "serve Go profiles\nbelow /debug/pprof/ of the control API, with its token")
}

// bindPace registers the limits of a job; bytes is an amount such as 50MB.
func bindPace(fs *pflag.FlagSet, docs *int64, bytes *string, l *pace.Loads) {
	fs.Int64Var(docs, flagRateDocs, 0, "most documents a second; 0 is unlimited\ndocuments copied, or changes applied")
	fs.StringVar(bytes, flagRateBytes, "0",
		"most `bytes` a second; 0 is unlimited\nbytes copied, or of changes applied, such as 50MB or 8MiB")
	Choice(fs, (*string)(&l.Source), flagSourceLoad, "low normal* max",
		"`load` on the source: low, normal or max\nlow is one read at a time, and as long a pause after each as it took; "+
			"normal is as many as this machine has cores; max is more, as far as the copy gets faster")
	Choice(fs, (*string)(&l.Target), flagTargetLoad, "low normal* max",
		"`load` on the target: low, normal or max\nlow is one write at a time, and as long a pause after each as it took; "+
			"normal is by the cores of this machine; max is more, as far as the copy gets faster")
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
	bindShards(fs, &v.sourceShards, "source")
	bindShards(fs, &v.targetShards, "target")
	bindAllowShard(fs, &v.AllowShard)
	section(fs, "Source and target")
	bindNames(fs, &v.Rules)
	bindRules(fs, &v.Rules)
	section(fs, "What is compared")
	fs.BoolVar(&v.StructureOnly, "structure", false,
		"compare collections, options, indexes and views alone, and no document")
	fs.BoolVar(&v.Users, "users", false, "compare users and roles of the chosen databases, too")
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
	flagSpoolDir    = "spool-dir"
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
		new(Sync): {CommandSync}, new(Reverse): {CommandReverse}, new(Verify): {CommandVerify},
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
	bindNames(fs, &s.Rules)
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
