package seed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/workshop/lab"
)

// saying is a mongod that says a version and options.
func saying(t *testing.T, version, config string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "mongod")
	must(t, os.WriteFile(name,
		[]byte("#!/bin/sh\ncase \"$*\" in *--version) echo 'db version v"+version+"';; *) cat <<E\n"+config+"\nE\nesac\n"),
		0o700))
	return name
}

func TestVersionsAreCompared(t *testing.T) {
	for _, c := range []struct {
		source, fcv, started string
		want                 precheck.Level
	}{
		{"6.0.5", "6.0", "6.0.27", precheck.OK},
		{"6.0.27", "6.0", "6.0.5", precheck.OK},
		{"6.0.5", "6.0", "5.0.4", precheck.Fail},
		{"6.0.5", "5.0", "5.0.4", precheck.Fail},
		{"5.0.4", "5.0", "6.0.5", precheck.Warn},
		{"5.0.4", "4.4", "6.0.5", precheck.Fail},
		{"4.4.2", "4.4", "5.0.4", precheck.Warn},
		{"4.2.6", "4.2", "6.0.5", precheck.Fail},
		{"6.0.6-5", "6.0", "7.0.2", precheck.Warn},
		{"7.0.2", "7.0", "10.0.1", precheck.Fail},
		{"5.0.4", "", "6.0.5", precheck.Fail},
		{"", "", "6.0.5", precheck.Warn},
		{"6.0.5", "6.0", "nothing", precheck.Warn},
	} {
		p := &Plan{Origin: Origin{Version: c.source, FCV: c.fcv}}
		p.checkVersion(t.Context(), []string{saying(t, c.started, "")})
		got := precheck.OK
		for _, x := range p.Checks {
			if got = x.Level; x.Hint == "" {
				t.Errorf("%+v: no hint", c)
			}
		}
		if got != c.want {
			t.Errorf("%+v: %s, %+v", c, got, p.Checks)
		}
	}
}

// What the mongod says of its own options is compared, wherever they come from.
func TestStartCommandIsCompared(t *testing.T) {
	lab.NeedServers(t)
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "mongod.conf")
	must(t, os.WriteFile(file,
		[]byte("storage: {dbPath: "+dir+", directoryPerDB: true}\nreplication: {replSetName: rs}\n"), 0o600))
	real := mongod(t, "6.0")
	flags := []string{"--dbpath", dir, "--replSet", "rs", "--fork", "--logpath", filepath.Join(t.TempDir(), "log")}
	for _, c := range []struct {
		name    string
		command []string
		storage Storage
		role    string
		newSet  string
		level   precheck.Level
		says    string
	}{
		{name: "the same", command: append([]string{real}, flags...), level: precheck.OK},
		{name: "behind a helper", command: append([]string{"env", "A=b", real}, flags...), level: precheck.OK},
		{name: "from a file", command: []string{real, "-f", file}, storage: Storage{DirectoryPerDB: true},
			level: precheck.OK},
		{name: "other layout, from a file", command: []string{real, "-f", file}, level: precheck.Fail,
			says: "directoryPerDB is true"},
		{name: "index directories", command: append([]string{real}, flags...), storage: Storage{DirectoryForIndexes: true},
			level: precheck.Fail, says: "directoryForIndexes is false"},
		{name: "compressor", command: append([]string{real, "--wiredTigerCollectionBlockCompressor", "zstd"}, flags...),
			level: precheck.Warn, says: "zstd"},
		{name: "compressor of the source", command: append([]string{real}, flags...), storage: Storage{Compressor: "zlib"},
			level: precheck.Warn, says: "zlib"},
		{name: "directory", command: []string{real, "--dbpath", t.TempDir(), "--replSet", "rs"}, level: precheck.Fail,
			says: "dbPath"},
		{name: "no directory", command: []string{real, "--replSet", "rs"}, level: precheck.Fail, says: "dbPath"},
		{name: "set", command: []string{real, "--dbpath", dir, "--replSet", "other"}, level: precheck.Fail, says: `"other"`},
		{name: "no set", command: []string{real, "--dbpath", dir}, level: precheck.Fail, says: "replica set"},
		{name: "new set", command: append([]string{real}, flags...), newSet: "stage", level: precheck.Fail, says: "stage"},
		{name: "member of a shard", command: append([]string{real}, flags...), role: "shardsvr", level: precheck.Fail,
			says: `role is "", the source's is "shardsvr"`},
		{name: "member of a shard, with its role", command: append([]string{real, "--shardsvr"}, flags...), role: "shardsvr",
			level: precheck.OK},
		{name: "config server as a shard", command: append([]string{real, "--shardsvr"}, flags...), role: "configsvr",
			level: precheck.Fail, says: `"configsvr"`},
		{name: "new set of a shard", command: append([]string{real, "--shardsvr"}, flags...), role: "shardsvr", newSet: "rs",
			level: precheck.Fail, says: "a shard"},
		{name: "new set of a config server", role: "configsvr", newSet: "rs", level: precheck.Fail, says: "a config server"},
		{name: "no mongod", command: []string{"/etc/init.d/db", "start"}, level: precheck.Warn,
			says: "no mongod is to be seen"},
		{name: "unknown option", command: []string{real, "--nonsense"}, level: precheck.Warn,
			says: "does not print its options"},
		{name: "encrypted",
			command: []string{saying(t, "6.0.5", "storage: {dbPath: "+dir+"}\nsecurity: {enableEncryption: true}\nreplication: "+
				"{replSet: rs}")}, level: precheck.Fail, says: "encrypts"},
		{name: "engine",
			command: []string{saying(t, "6.0.5", "storage: {dbPath: "+dir+", engine: inMemory}\nreplication: {replSet: rs}")},
			level:   precheck.Fail, says: "inMemory"},
	} {
		p := &Plan{Origin: Origin{Version: "6.0.5", FCV: "6.0", SetName: "rs", Storage: c.storage, ClusterRole: c.role}}
		p.checkPrograms(t.Context(),
			Options{Pull: PullOptions{DBPath: dir}, Member: MemberOptions{Command: c.command, NewSet: c.newSet}})
		got := precheck.Check{Level: precheck.OK}
		if len(p.Checks) > 0 {
			got = p.Checks[0]
		}
		if got.Level != c.level || !strings.Contains(got.Message, c.says) || got.Level != precheck.OK && got.Hint == "" ||
			len(p.Checks) > 1 {
			t.Errorf("%s: %+v", c.name, p.Checks)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a mongod was started: %v, %v", entries, err)
	}
}

// A command that cannot work is refused before anything is copied.
func TestWrongCommandIsRefusedBeforeTheCopy(t *testing.T) {
	dir := fakeMember(t)
	to := filepath.Join(t.TempDir(), "to")
	a := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: &changingFreezer{}})
	a.opts.Describe = nil
	_, err := Run(t.Context(), a, Options{Pull: PullOptions{DBPath: to}, Member: MemberOptions{
		Command: []string{saying(t, "6.0.5", "storage: {dbPath: /elsewhere}\nreplication: {replSet: rs}")}}})
	if err == nil || !strings.Contains(err.Error(), "/elsewhere") || mongo.HintOf(err) == "" {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(to, "index-2.wt")); err == nil {
		t.Error("it was copied")
	}
}

func TestTargetIsChecked(t *testing.T) {
	used := t.TempDir()
	must(t, os.WriteFile(filepath.Join(used, "x"), nil, 0o600))
	for _, c := range []struct {
		dir   string
		bytes int64
		want  []string
	}{
		{filepath.Join(t.TempDir(), "a", "b"), 1000, nil},
		{filepath.Join(t.TempDir(), "a", "b"), 1 << 60, []string{"free space"}},
		{used, 1000, []string{"target directory"}},
	} {
		p := &Plan{Bytes: c.bytes}
		CheckMember(t.Context(), p, Options{Pull: PullOptions{DBPath: c.dir}})
		var got []string
		for _, x := range p.Checks {
			got = append(got, x.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v", c.dir, p.Checks)
		}
	}
}

func TestOplogWindowIsCompared(t *testing.T) {
	p := &Plan{Bytes: 1 << 40}
	p.compareWindow(24*3600, 0)
	p.compareWindow(4*3600, 1<<30)
	if len(p.Checks) != 0 {
		t.Errorf("%+v", p.Checks)
	}
	p.compareWindow(4*3600, 0)
	p.compareWindow(24*3600, 10<<20)
	if len(p.Checks) != 2 || p.Checks[0].Level != precheck.Warn || p.Checks[0].Hint == "" {
		t.Errorf("%+v", p.Checks)
	}
}

func TestLagAndDelayAreSeen(t *testing.T) {
	now := time.Now()
	p := &Plan{Origin: Origin{Host: "b:1"}}
	p.lag(mongo.SetStatus{Members: []mongo.MemberStatus{{Self: true, AppliedDate: now.Add(-2 * time.Minute)},
		{AppliedDate: now}}})
	for _, field := range []string{"secondaryDelaySecs", "slaveDelay"} { // since 5.0, and before
		raw, err := bson.Marshal(bson.D{{Key: "members", Value: bson.A{
			bson.D{{Key: "host", Value: "a:1"}, {Key: field, Value: int64(9)}},
			bson.D{{Key: "host", Value: "b:1"}, {Key: field, Value: int64(3600)}}}}})
		must(t, err)
		var config mongo.SetConfig
		must(t, bson.Unmarshal(raw, &config))
		p.delay(config)
	}
	if len(p.Checks) != 3 || p.Checks[0].Level != precheck.Warn || p.Checks[1].Level != precheck.Fail ||
		p.Checks[2].Level != precheck.Fail || !strings.Contains(p.Checks[2].Message, "3600") {
		t.Errorf("%+v", p.Checks)
	}
}

// What millrace was told in secret is none of a mongod's business.
func TestStartedProgramsGetNoSecrets(t *testing.T) {
	t.Setenv("MILLRACE_SET_URI", "mongodb://u:password@h")
	out, err := outputOf(t.Context(), []string{"env"})
	must(t, err)
	if strings.Contains(out, "MILLRACE_SET_URI") || !strings.Contains(out, "PATH=") {
		t.Errorf("MILLRACE_SET_URI: %v, PATH: %v; want false, true", strings.Contains(out, "MILLRACE_SET_URI"),
			strings.Contains(out, "PATH="))
	}
}
