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

// Choice registers a flag that takes one of some words, separated by spaces. The one with a star is its default.
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

// BindURI registers a connection string. Details are more of its usage.
func BindURI(fs *pflag.FlagSet, p *string, flag, of string, details ...string) {
	details = append(details, "with a password, set "+EnvName(flag))
	fs.StringVar(p, flag, "", "connection string `URI` of "+of+"\n"+strings.Join(details, "; "))
}

func bindClusters(fs *pflag.FlagSet, source, target *string) {
	BindURI(fs, source, flagSource, "the source")
	BindURI(fs, target, flagTarget, "the target")
}

// bindSpool registers where changes go that the source's oplog may lose during a copy.
func bindSpool(fs *pflag.FlagSet, dir, most *string) {
	fs.StringVar(dir, flagSpoolDir, "", "local `directory` for spooled changes\nmade during the copy of a replica set; "+
		"by default millrace/spool below $XDG_STATE_HOME or ~/.local/state")
	fs.StringVar(most, "spool-max", "10GB", "most `bytes` of spooled changes of a job; 0 disables")
}

func bindAllowShard(fs *pflag.FlagSet, allow *bool) {
	fs.BoolVar(allow, "allow-shard", false, "permit a single shard as source or target")
}

func bindShards(fs *pflag.FlagSet, list *[]string, side string) {
	fs.StringArrayVar(list, side+"-shard", nil, "override the address `name=URI` of a "+side+
		" shard\nthe name is that of config.shards; may be repeated")
}

func bindNames(fs *pflag.FlagSet, r *transform.Config) {
	fs.StringSliceVar(&r.Include, "include", nil,
		"only namespaces that match this `pattern`\ndb.coll, db.*, or with globs; may be repeated")
	fs.StringSliceVar(&r.Exclude, "exclude", nil, "no namespaces that match this `pattern`\nmay be repeated")
	fs.StringSliceVar(&r.Rename, "rename", nil,
		"rename a database or collection on the target, as `from=to`\nmay be repeated")
}

func bindRules(fs *pflag.FlagSet, r *transform.Config) {
	fs.StringArrayVar(&r.Filter, "filter", nil, "copy only documents that match, as `pattern=filter`\nwith a filter of "+
		"find, as in 'db.coll={\"status\": \"open\"}'; may be repeated")
	fs.StringArrayVar(&r.Skip, "skip", nil, "leave out operations, as `pattern=operations`\nas in "+
		"'db.coll=delete,drop'; 'db.coll=ttl' leaves out only deletions of expired documents; may be repeated")
	fs.StringArrayVar(&r.SoftDelete, "soft-delete", nil, "keep deleted documents, as `pattern=field`\nthe field records "+
		"the deletion time, as in 'db.coll=deletedAt'; may be repeated")
	fs.StringSliceVar(&r.History, "history", nil, "keep all versions of documents that match this `pattern`\neach "+
		"version is a document on the target, with its position and operation; may be repeated")
	fs.StringArrayVar(&r.Fields, "fields", nil, "map fields of documents, as `pattern=rules`\nas in "+
		"'db.coll={\"drop\": [\"card\"]}', see docs/reference/rules.md; may be repeated")
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

	sourceShards, targetShards          []string // name=URI
	maxRateBytes, spoolMax, applyBuffer string   // amounts of bytes: "50MB", "8MiB", "0"
}

// Bind implements Settings.
func (s *Sync) Bind(fs *pflag.FlagSet, _ string) {
	bindClusters(fs, &s.Source, &s.Target)
	bindNames(fs, &s.Rules)
	Choice(fs, (*string)(&s.Mode), "mode", "all* full incremental structure",
		"`mode` of the job: all, full, incremental or structure\nall copies, then follows; full only copies; "+
			"incremental only follows; structure makes collections, indexes, views and shard keys, then ends")
	Choice(fs, (*string)(&s.OnExisting), "on-existing", "fail* merge drop",
		"`policy` for existing target collections: fail, merge or drop\nfail rejects the job before anything is written")
	fs.StringVar(&s.Until, "until", "never",
		"`when` to finalize: never, caught-up or a time\nnever follows until millrace finalize; a time is in RFC 3339")
	_ = fs.SetAnnotation("until", offers, []string{"never", "caught-up"})
	fs.BoolVar(&s.DryRun, "dry-run", false, "show plan and precheck, write nothing\nexit code 2 when a check fails")
	fs.BoolVar(&s.Verify, "verify", false, "compare source and target after finalize")
	section(fs, "Most used")
	s.bindSides(fs)
	section(fs, "Source and target")
	s.bindContent(fs)
	section(fs, "What is copied")
	fs.StringVar(&s.Job, "job", "",
		"`name` of the job\nby default derived from source, target and rules: the same command "+
			"resumes it")
	fs.BoolVar(&s.Restart, "restart", false, "delete the job's checkpoint and start again\nwith --on-existing drop, "+
		"collections that the job made are dropped too")
	fs.DurationVar(&s.WarnWindow, "warn-window", time.Hour, "warn when a full oplog window is shorter; 0 disables\nthe "+
		"window is the time from the oplog's oldest entry to the job's position")
	fs.DurationVar(&s.GiveUpAfter, "give-up-after", 0, "end the job when one failure lasts longer; 0 disables")
	fs.DurationVar(&s.IndexWait, "index-wait", 10*time.Minute,
		"longest wait of finalize for index builds; 0 is unlimited\nbuilds under way on the source; finalize is "+
			"rejected after this time")
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

func (s *Sync) bindSides(fs *pflag.FlagSet) {
	bindShards(fs, &s.sourceShards, "source")
	bindShards(fs, &s.targetShards, "target")
	Choice(fs, &s.ReadPreference, "read-preference", "primary* primaryPreferred secondary secondaryPreferred nearest",
		"read `preference` for the source\nprimary, primaryPreferred, secondary, secondaryPreferred or nearest")
	fs.StringVar(&s.ReadTags, "read-tags", "",
		"`tags` of members to read from\nsuch as dc:east,rack:1;dc:west: the first set that some member has")
	fs.StringVar(&s.WriteConcern, "write-concern", "majority", "write `concern` before a position is stored\nmajority or "+
		"a number of members")
	fs.BoolVar(&s.AllowDowngrade, "allow-downgrade", false, "permit a target older than the source")
	bindAllowShard(fs, &s.AllowShard)
}

func (s *Sync) bindContent(fs *pflag.FlagSet) {
	bindRules(fs, &s.Rules)
	fs.StringArrayVar(&s.Shard, flagShard, nil,
		"shard key on a sharded target, as `db.coll=key`\nthe key is fields (customer:1,_id:hashed), JSON, or none; by "+
			"default that of a sharded source; may be repeated")
	fs.StringArrayVar(&s.Zones, flagZone, nil,
		"shards of a zone on the target, as `zone=shard,shard`\nzone=none leaves a zone of the source out; by default "+
			"the target's zone of that name, else shards of the same names; may be repeated")
	fs.BoolVar(&s.Users, "users", false, "copy users and roles of the chosen databases\nwith their credentials; later "+
		"changes arrive within a minute; other users of the target stay")
	fs.BoolVar(&s.AllowMissing, "allow-missing", false,
		"permit rules that match nothing yet\nthese are --include, --shard and --zone")
	fs.StringVar(&s.StartAt, "start-at", "",
		"`position` where incremental mode begins\nseconds:increment, a time (RFC 3339), checkpoint or job:NAME")
	_ = fs.SetAnnotation("start-at", offers, []string{"checkpoint"})
	fs.StringSliceVar(&s.AcceptLoss, "accept-loss", nil, "accept this `loss` of reverse")
	fs.BoolVar(&s.AllowOverlap, "allow-overlap", false, "permit other jobs on the same target collections\nfor jobs that "+
		"are not finalized; their documents are merged")
	Choice(fs, (*string)(&s.OnConflict), "on-conflict", "stop* skip overwrite",
		"`policy` for refused documents: stop, skip or overwrite\nskip leaves the target as it is, overwrite removes "+
			"conflicting documents; millrace.deadletters on the target keeps skipped and removed documents; with skip and "+
			"overwrite, documents that --fields cannot map are missing on the target")
}

func (s *Sync) bindSpeed(fs *pflag.FlagSet) {
	fs.IntVar(&s.Readers, "readers", 0, "most slices read at once; 0 takes 2 to 16\nby default one per core")
	fs.IntVar(&s.Writers, "writers", 0,
		"most batches inserted at once; 0 takes 4 to 16\nby default one per core, and more to a distant target")
	fs.IntVar(&s.Partitions, "partitions", 0,
		"parallel appliers of changes; 0 takes 8 to 16\nby default more to a distant target")
	fs.StringVar(&s.applyBuffer, flagApplyBuffer, "256MiB", "most `bytes` of changes in memory\nread and not yet "+
		"applied, in all partitions together; a single reply or document may be larger")
	bindPace(fs, &s.Limits.Docs, &s.maxRateBytes, &s.Loads)
	Choice(fs, (*string)(&s.Compress), "compress", "auto* off", "`when` to compress network traffic: auto or off\nauto "+
		"uses zstd to a distant cluster while that is faster; compressors of the connection string win")
	bindSpool(fs, &s.SpoolDir, &s.spoolMax)
}

func (s *Sync) bindControl(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:0", "control API `address`\nhost:port; port 0 takes a free one")
	fs.StringVar(&s.Token, flagToken, "",
		"secret of the control API\nby default a new random one; prefer MILLRACE_TOKEN to the flag")
	bindTLS(fs, &s.TLSCert, &s.TLSKey, "read again for each connection")
	fs.BoolVar(&s.Insecure, "listen-insecure", false,
		"permit remote access without TLS\nwhoever sees the traffic can then use the token")
	fs.BoolVar(&s.OpenStatus, "open-status", false, "show the status without a token")
	fs.BoolVar(&s.PProf, "pprof", false, "serve Go profiles\nbelow /debug/pprof/ of the control API, with its token")
}

func bindTLS(fs *pflag.FlagSet, cert, key *string, how string) {
	fs.StringVar(cert, flagListenCert, "",
		"TLS certificate `file`, in PEM form\nwith the certificates of its authorities; "+
			how)
	fs.StringVar(key, flagListenKey, "", "TLS key `file`\nby default that of --listen-tls-cert")
}

// bindPace registers the limits of a job; bytes is an amount such as 50MB.
func bindPace(fs *pflag.FlagSet, docs *int64, bytes *string, l *pace.Loads) {
	fs.Int64Var(docs, flagRateDocs, 0,
		"most documents a second; 0 is unlimited\ncounts documents copied, or changes applied")
	fs.StringVar(bytes, flagRateBytes, "0",
		"most `bytes` a second; 0 is unlimited\ncounts bytes copied, or of changes applied; such as 50MB or 8MiB")
	Choice(fs, (*string)(&l.Source), flagSourceLoad, "low normal* max",
		"`load` on the source: low, normal or max\nlow reads one at a time and pauses as long as each took; "+
			"normal has --readers at once; max adds more while the copy gets faster")
	Choice(fs, (*string)(&l.Target), flagTargetLoad, "low normal* max",
		"`load` on the target: low, normal or max\nlow writes one at a time and pauses as long as each took; "+
			"normal has --writers at once; max adds more while the copy gets faster")
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
		"compare collections, options, indexes and views, but no documents")
	fs.BoolVar(&v.Users, "users", false, "compare users and roles of the chosen databases too")
	fs.BoolVar(&v.IgnoreFieldOrder, "ignore-field-order", false,
		"ignore the order of fields in documents")
	Choice(fs, (*string)(&v.Method), "method", "auto* ranges digest",
		"how documents are compared: auto, ranges or digest\nranges compares bytes in the order of _id; digest "+
			"compares hashes in storage order; auto takes ranges for small collections")
	fs.DurationVar(&v.Recheck.For, "recheck-for", time.Minute,
		"time after which a changing difference counts; 0 compares "+
			"once\na difference where both sides stand still counts after 10 s")
	fs.IntVar(&v.Workers, "workers", 0,
		"ranges compared at once; 0 is one per core, 4 to 6\neach has one connection a side")
	fs.IntVar(&v.MaxDifferences, "max-differences", 1000,
		"most differing documents listed by _id; all are counted")
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
	fs.StringVar(&s.Address, "address", "", "`address` of the sync's control API, as the sync printed it\n"+
		"https://host:port or http://host:port; without a scheme http on this machine, https elsewhere")
	fs.StringVar(&s.Server, flagServer, "", "`address` of a service, as millrace serve printed it\nMILLRACE_SERVER "+
		"counts where no sync of this machine is meant")
	fs.StringVar(&s.CAFile, flagCA, "", caUsage)
	fs.StringVar(&s.Job, "job", "", "`name` of the job; not needed while there is only one")
	BindURI(fs, &s.Target, flagTarget, "the job's target", "it knows a job that no process runs")
	fs.StringVar(&s.Token, flagToken, "",
		"secret of a service, or of a remote sync; prefer MILLRACE_TOKEN to the flag")
	if command == CommandStatus {
		fs.BoolVar(&s.Watch, "watch", false, "show the status again and again until the job ends")
		fs.DurationVar(&s.Interval, "interval", time.Second, "time between two looks with --watch")
	}
	if command == CommandFinalize {
		fs.BoolVar(&s.WhenCaughtUp, "when-caught-up", false, "finalize as soon as the job follows\na sync's process forgets "+
			"the request when it ends, a service keeps it")
		fs.BoolVar(&s.Cancel, "cancel", false,
			"take back a finalize that has not begun, also that of --until")
		fs.BoolVar(&s.Wait, "wait", false, "return when the job of a service is finalized\na sync always waits")
	}
	if command == CommandThrottle {
		bindPace(fs, &s.rates.Docs, &s.maxRateBytes, &s.loads)
	}
	s.Common.bind(fs)
}

const caUsage = "`file` with the certificate authority of the API; by default the system's\nin PEM form"

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
	fs.StringVar(&s.NS, "ns", "", "collection of the documents, as `db.coll`")
	fs.StringVar(&s.Doc, "doc", "", "`file` of documents in extended JSON; - is standard input")
	fs.IntVar(&s.Sample, "sample", 20, "without --doc, draw so many documents from the source, 1 to 1000")
	BindURI(fs, &s.Source, flagSource, "the source, for --sample")
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
