package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
)

func valid(t *testing.T) *Sync {
	t.Helper()
	var s Sync
	s.Bind(pflag.NewFlagSet("sync", pflag.ContinueOnError), CommandSync)
	s.Source, s.Target = "mongodb://a:1/?replicaSet=x", "mongodb+srv://u:p@b/"
	return &s
}

func TestValidateSync(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Sync)
		setting string // "" when all is well
	}{
		{"defaults", func(*Sync) {}, ""},
		{"no source", func(s *Sync) { s.Source = "" }, "source"},
		{"wrong scheme", func(s *Sync) { s.Target = "http://b" }, "target"},
		{"unescaped password", func(s *Sync) { s.Source = "mongodb://u:a/b@h" }, "source"},
		{"database of the source", func(s *Sync) { s.Source = "mongodb://u:p@a/shop?replicaSet=x" }, "source"},
		{"database of the target", func(s *Sync) { s.Target = "mongodb+srv://u:p@b/shop" }, "target"},
		{"database of the user", func(s *Sync) { s.Source = "mongodb://u:p@a/admin" }, ""},
		{"database of the user as option", func(s *Sync) { s.Source = "mongodb://u:p@a/?authSource=shop" }, ""},
		{"mode", func(s *Sync) { s.Mode = "ful" }, "mode"},
		{"start of a copy", func(s *Sync) { s.StartAt = "1:1" }, "start-at"},
		{"start", func(s *Sync) { s.Mode, s.StartAt = "incremental", "1700000000:1" }, ""},
		{"start as time", func(s *Sync) { s.Mode, s.StartAt = "incremental", "2026-01-02T15:04:05Z" }, ""},
		{"start as nonsense", func(s *Sync) { s.Mode, s.StartAt = "incremental", "now" }, "start-at"},
		{"start at a forgotten checkpoint",
			func(s *Sync) { s.Mode, s.StartAt, s.Restart = "incremental", "checkpoint", true }, "start-at"},
		{"until time", func(s *Sync) { s.Until = "2026-01-02T15:04:05+02:00" }, ""},
		{"until nonsense", func(s *Sync) { s.Until = "later" }, "until"},
		{"until time of a copy", func(s *Sync) { s.Mode, s.Until = "full", "2026-01-02T15:04:05Z" }, "until"},
		{"until caught up of a copy", func(s *Sync) { s.Mode, s.Until = "full", "caught-up" }, ""},
		{"structure", func(s *Sync) { s.Mode = "structure" }, ""},
		{"until caught up of a structure", func(s *Sync) { s.Mode, s.Until = "structure", "caught-up" }, ""},
		{"start of a structure", func(s *Sync) { s.Mode, s.StartAt = "structure", "1:1" }, "start-at"},
		{"filter of a structure", func(s *Sync) { s.Mode, s.Rules.Filter = "structure", []string{"d.a={}"} }, "filter"},
		{"job", func(s *Sync) { s.Job = "orders-2026.v1" }, ""},
		{"job path", func(s *Sync) { s.Job = "../x" }, "job"},
		{"existing", func(s *Sync) { s.OnExisting = "overwrite" }, "on-existing"},
		{"write concern number", func(s *Sync) { s.WriteConcern = "3" }, ""},
		{"write concern zero", func(s *Sync) { s.WriteConcern = "0" }, "write-concern"},
		{"read preference", func(s *Sync) { s.ReadPreference = "second" }, "read-preference"},
		{"tags", func(s *Sync) { s.ReadPreference, s.ReadTags = "nearest", "dc:east,rack:1;dc:west" }, ""},
		{"tags of the primary", func(s *Sync) { s.ReadTags = "dc:east" }, "read-tags"},
		{"tags without value", func(s *Sync) { s.ReadPreference, s.ReadTags = "nearest", "dc" }, "read-tags"},
		{"shard", func(s *Sync) { s.sourceShards = []string{"s0=mongodb://u:p@a,b/", "s1=mongodb://c/"} }, ""},
		{"routers", func(s *Sync) { s.Via = "routers" }, ""},
		{"capture", func(s *Sync) { s.Capture = "binlog" }, "capture"},
		{"oplog by routers", func(s *Sync) { s.Via, s.Capture = "routers", "oplog" }, "via"},
		{"streams of shards", func(s *Sync) { s.Via, s.Capture = "shards", "change-streams" }, "via"},
		{"shard by routers",
			func(s *Sync) { s.Via, s.sourceShards = "routers", []string{"s0=mongodb://a/"} }, "source-shard"},
		{"keys", func(s *Sync) { s.Shard = []string{"d.a=x:1,_id:hashed", `d.b={"y.z": 1}`, "d.c=none"} }, ""},
		{"key without a name", func(s *Sync) { s.Shard = []string{"d=x:1"} }, "shard"},
		{"key twice", func(s *Sync) { s.Shard = []string{"d.a=x:1", "d.a=none"} }, "shard"},
		{"key that descends", func(s *Sync) { s.Shard = []string{"d.a=x:-1"} }, "shard"},
		{"key hashed twice", func(s *Sync) { s.Shard = []string{"d.a=x:hashed,y:hashed"} }, "shard"},
		{"zones", func(s *Sync) { s.Zones = []string{"EU=s0, s1", "US=none"} }, ""},
		{"zone twice", func(s *Sync) { s.Zones = []string{"EU=s0", "EU=none"} }, "zone"},
		{"zone without a shard", func(s *Sync) { s.Zones = []string{"EU=s0,"} }, "zone"},
		{"zone without a name", func(s *Sync) { s.Zones = []string{"=s0"} }, "zone"},
		{"key without fields", func(s *Sync) { s.Shard = []string{"d.a={}"} }, "shard"},
		{"shards of the target", func(s *Sync) { s.Verify, s.targetShards = true, []string{"s0=mongodb://a/"} }, ""},
		{"unknown loss", func(s *Sync) { s.AcceptLoss = []string{"filter", "all"} }, "accept-loss"},
		{"start at no job", func(s *Sync) { s.Mode, s.StartAt = job.ModeIncremental, "job:" }, "start-at"},
		{"shard without name", func(s *Sync) { s.sourceShards = []string{"mongodb://a/?replicaSet=x"} }, "source-shard"},
		{"shard twice", func(s *Sync) { s.sourceShards = []string{"s0=mongodb://a/", "s0=mongodb://b/"} }, "source-shard"},
		{"shard elsewhere", func(s *Sync) { s.sourceShards = []string{"s0=http://a/"} }, "source-shard"},
		{"readers", func(s *Sync) { s.Readers = -1 }, "readers"},
		{"many readers", func(s *Sync) { s.Readers = 257 }, "readers"},
		{"many writers", func(s *Sync) { s.Writers = 1_000_000 }, "writers"},
		{"many partitions", func(s *Sync) { s.Partitions = 257 }, "partitions"},
		{"apply buffer", func(s *Sync) { s.applyBuffer = "8MB" }, ""},
		{"small apply buffer", func(s *Sync) { s.applyBuffer = "7999999" }, "apply-buffer"},
		{"no apply buffer", func(s *Sync) { s.applyBuffer = "0" }, "apply-buffer"},
		{"apply buffer as nonsense", func(s *Sync) { s.applyBuffer = "much" }, "apply-buffer"},
		{"rates", func(s *Sync) { s.Limits.Docs, s.maxRateBytes = 10, "50 MiB" }, ""},
		{"loads", func(s *Sync) { s.Loads.Source, s.Loads.Target = "low", "max" }, ""},
		{"load of the source", func(s *Sync) { s.Loads.Source = "lots" }, "source-load"},
		{"load of the target", func(s *Sync) { s.Loads.Target = "" }, "target-load"},
		{"rate of documents", func(s *Sync) { s.Limits.Docs = -1 }, "max-rate-docs"},
		{"rate of bytes", func(s *Sync) { s.maxRateBytes = "fast" }, "max-rate-bytes"},
		{"spool", func(s *Sync) { s.spoolMax = "0" }, ""},
		{"size of the spool", func(s *Sync) { s.spoolMax = "much" }, "spool-max"},
		{"window", func(s *Sync) { s.WarnWindow = -time.Second }, "warn-window"},
		{"report in a directory that is not", func(s *Sync) { s.Report = "/no/such/dir/r.json" }, "report"},
		{"report is a directory", func(s *Sync) { s.Report = "." }, "report"},
		{"listen", func(s *Sync) { s.Listen = "localhost" }, "listen"},
		{"listen port", func(s *Sync) { s.Listen = "127.0.0.1:70000" }, "listen"},
		{"listen on all", func(s *Sync) { s.Listen = ":0" }, "listen"},
		{"listen on another address", func(s *Sync) { s.Listen = "10.0.0.1:7000" }, "listen"},
		{"listen on all, accepted", func(s *Sync) { s.Listen, s.Insecure = ":0", true }, ""},
		{"certificate that is not there", func(s *Sync) { s.Listen, s.TLSCert = ":0", "/no/such/cert.pem" },
			"listen-tls-cert"},
		{"key alone", func(s *Sync) { s.TLSKey = "key.pem" }, "listen-tls-key"},
		{"token", func(s *Sync) { s.Token = "short" }, "token"},
		{"include", func(s *Sync) { s.Rules.Include = []string{"a.b", ".x"} }, "include"},
		{"rename", func(s *Sync) { s.Rules.Rename = []string{"a"} }, "rename"},
		{"renames that contradict", func(s *Sync) { s.Rules.Rename = []string{"a=b", "a=c"} }, "rename"},
		{"output", func(s *Sync) { s.Output = "xml" }, "output"},
		{"log level", func(s *Sync) { s.LogLevel = "loud" }, "log-level"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := valid(t)
			c.change(s)
			expect(t, s.Validate(nil, nil), c.setting)
		})
	}
}

// TestApplyBuffer: what the help and the messages say is what a job does.
func TestApplyBuffer(t *testing.T) {
	s := valid(t)
	for text, want := range map[string]int64{s.applyBuffer: job.DefaultApplyBuffer, "8MB": job.LeastApplyBuffer} {
		s.applyBuffer = text
		if expect(t, s.Validate(nil, nil), ""); s.ApplyBuffer != want {
			t.Errorf("%s is %d bytes, want %d", text, s.ApplyBuffer, want)
		}
	}
}

// expect wants exactly one problem, that of the setting, with a remedy.
func expect(t *testing.T, p Problems, setting string) {
	t.Helper()
	if setting == "" {
		if len(p) > 0 {
			t.Fatal(p)
		}
		return
	}
	if len(p) != 1 || p[0].Setting != setting {
		t.Fatalf("want a problem of %s, got %v", setting, p)
	}
	if p[0].How == "" || p[0].What == "" {
		t.Errorf("no remedy in %v", p[0])
	}
}

// TestReasonOfAnAddress: what is wrong with a connection string is said, although it is about an @.
func TestReasonOfAnAddress(t *testing.T) {
	s := valid(t)
	s.Source = "mongodb://u:p@ss/@h/"
	if p := s.Validate(Origins{}, nil); len(p) != 1 || !strings.Contains(p[0].What, "an @ after a slash") {
		t.Errorf("%v", p)
	}
	var back Reverse
	back.Bind(pflag.NewFlagSet("reverse", pflag.ContinueOnError), CommandReverse)
	back.Source, back.Target = s.Target, s.Target
	if p := back.Validate(Origins{}, nil); len(p) != 1 || p[0].Setting != "job" {
		t.Errorf("reverse without a job: %v", p)
	}
	if _, p := CheckDefinition("a", "target: env:B"); len(p) != 1 || !strings.Contains(p[0].How, "source: env:NAME") {
		t.Errorf("a definition has no flags: %v", p)
	}
}

func TestValidateOthers(t *testing.T) {
	var v Verify
	v.Bind(pflag.NewFlagSet("verify", pflag.ContinueOnError), CommandVerify)
	v.Source, v.Target, v.Output = "mongodb://a", "mongodb://b", "json"
	expect(t, v.Validate(nil, nil), "")
	v.Method = "guess"
	expect(t, v.Validate(nil, nil), "method")
	v.Method = "ranges"
	v.Workers = -1
	expect(t, v.Validate(nil, nil), "workers")
	v.Workers = 0
	v.sourceShards = []string{"s0=mongodb://a/", "s1=mongodb://b/"}
	v.targetShards = v.sourceShards[:1]
	expect(t, v.Validate(nil, nil), "")
	if len(v.SourceShards) != 2 || v.TargetShards["s0"] != "mongodb://a/" {
		t.Errorf("shards %v and %v", v.SourceShards, v.TargetShards)
	}
	v.sourceShards = []string{"mongodb://a/"}
	expect(t, v.Validate(nil, nil), "source-shard")
	v.sourceShards, v.targetShards = nil, []string{"s0=http://a/"}
	expect(t, v.Validate(nil, nil), "target-shard")

	var c Control
	c.Bind(pflag.NewFlagSet("status", pflag.ContinueOnError), CommandStatus)
	expect(t, c.Validate(nil, nil), "")
	c.Address = "nowhere"
	expect(t, c.Validate(nil, nil), "address")
	c.Address = "https://db.example:7000"
	expect(t, c.Validate(nil, nil), "")
	c.Address, c.Watch, c.Interval = "", true, 0
	expect(t, c.Validate(nil, nil), "interval")
}

func TestEverythingWrongIsTold(t *testing.T) {
	s := valid(t)
	s.Source, s.Mode, s.Readers, s.Output = "", "x", -1, "y"
	p := s.Validate(Origins{"mode": {Kind: FromEnvironment, Name: "MILLRACE_MODE"}}, nil)
	if len(p) != 4 {
		t.Fatalf("%v", p)
	}
	if !strings.Contains(p.Error(), "environment MILLRACE_MODE") {
		t.Errorf("origin missing in %s", p)
	}
}

func TestSpec(t *testing.T) {
	s, _, err := load(t,
		[]string{"--source=mongodb://a", "--target=mongodb://b", "--include=x.*", "--rename=x=y", "--until=caught-up",
			"--on-existing=merge", "--read-preference=nearest", "--partitions=7", "--give-up-after=5m", "--max-rate-bytes=8MiB"},
		nil, "")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, s.Validate(nil, nil), "")
	spec := s.Spec
	if spec.Source != "mongodb://a" || spec.Mode != job.ModeAll || spec.Until != "caught-up" ||
		spec.OnExisting != job.ExistingMerge ||
		spec.ReadPreference != "nearest" || spec.Partitions != 7 || spec.GiveUpAfter != 5*time.Minute ||
		spec.WriteConcern != "majority" || spec.Limits != (pace.Rates{Bytes: 8 << 20}) ||
		len(spec.Rules.Include) != 1 || len(spec.Rules.Rename) != 1 {
		t.Errorf("%+v", spec)
	}
}

// TestAgentIsMissing: an agent that was not given is not called a wrong one.
func TestAgentIsMissing(t *testing.T) {
	s, o, err := load(t, []string{"--source=mongodb://a", "--target=mongodb://b/?replicaSet=b", "--copy=files",
		"--target-agents=https://h:1", "--token-file=t"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Validate(o, nil).Error(); !strings.HasPrefix(got, "source-agent is missing") {
		t.Error(got)
	}
	if want := []string{"--target", "mongodb://b/?replicaSet=b", "--copy", "files"}; !slices.Equal(s.Settings[:4], want) {
		t.Errorf("%q, want %q first", s.Settings, want)
	}
}

// TestSettingsOfARun: what resumes a job is stored, from wherever it came, without secrets.
func TestSettingsOfARun(t *testing.T) {
	s, o, err := load(t, []string{
		"--source=mongodb://a", "--target=mongodb://b", "--config=conf.yaml", "--allow-downgrade",
		"--source-shard=s0=mongodb://u:secret@h/?tls=true", "--include=shop.*", "--report=r.json", "--copy=documents"},
		map[string]string{"MILLRACE_SPOOL_DIR": "/big disk"}, "on-conflict: skip")
	problems := s.Validate(o, nil)
	want := []string{"--source-shard", "s0=mongodb://h", "--allow-downgrade=true", "--on-conflict", "skip", "--spool-dir",
		"/big disk"}
	if err != nil || len(problems) > 0 || !slices.Equal(s.Settings, want) {
		t.Errorf("%q, want %q; %v, %v", s.Settings, want, err, problems)
	}
}

func TestWarnings(t *testing.T) {
	anybodys, ours := fileWithMode(t, 0o644), fileWithMode(t, 0o600)
	var s Sync
	set := pflag.NewFlagSet("sync", pflag.ContinueOnError)
	s.Bind(set, CommandSync)
	s.Source, s.Target = "mongodb://u:hidden@h", "mongodb://h"
	for _, c := range []struct {
		origin Origin
		want   int
	}{
		{Origin{Kind: FromFlag, Name: "source"}, 1},
		{Origin{Kind: FromEnvironment, Name: "MILLRACE_SOURCE"}, 0},
		{Origin{Kind: FromFile, Name: anybodys, Line: 1}, 1},
		{Origin{Kind: FromFile, Name: ours, Line: 1}, 0},
	} {
		got := Warnings(set, Origins{"source": c.origin, "target": {Kind: FromFlag, Name: "target"},
			"token": {Kind: FromFlag, Name: "token"}})
		if len(got) != c.want {
			t.Errorf("%v: %v", c.origin, got)
		}
		for _, p := range got {
			if strings.Contains(p.String(), "hidden") {
				t.Errorf("secret shown: %s", p)
			}
		}
	}
}

func fileWithMode(t *testing.T, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
	return name
}

// A key that others can read is told of, also where the certificate's file has it.
func TestWarningOfAKeyThatOthersRead(t *testing.T) {
	for mode, want := range map[os.FileMode]int{0o600: 0, 0o640: 1, 0o644: 1} {
		var s Sync
		set := pflag.NewFlagSet("sync", pflag.ContinueOnError)
		s.Bind(set, CommandSync)
		s.TLSCert = fileWithMode(t, mode)
		s.Validate(nil, nil)
		got := Warnings(set, Origins{})
		if len(got) != want || want > 0 && got[0].How != "chmod 600 "+s.TLSCert {
			t.Errorf("%o: %v", mode, got)
		}
	}
}

// TestStructureRefuses wants what is about documents or changes to be refused where it
// was given, and not where it is a default.
func TestStructureRefuses(t *testing.T) {
	for setting, change := range map[string]func(*Sync){
		"until":       func(s *Sync) { s.Until = "never" },
		"on-conflict": func(s *Sync) { s.OnConflict = job.ConflictSkip },
	} {
		s := valid(t)
		s.Mode = job.ModeStructure
		if p := s.Validate(nil, nil); len(p) > 0 {
			t.Errorf("%s by default: %v", setting, p)
		}
		change(s)
		p := s.Validate(Origins{setting: {Kind: FromFlag, Name: setting}}, nil)
		if len(p) != 1 || p[0].Setting != setting || p[0].How == "" {
			t.Errorf("%s: %v", setting, p)
		}
	}
}
