package config

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load parses args as the flags of command sync, with an environment and a
// file named conf.yaml.
func load(t *testing.T, args []string, env map[string]string, file string) (*Sync, Origins, error) {
	t.Helper()
	var s Sync
	set := pflag.NewFlagSet("sync", pflag.ContinueOnError)
	s.Bind(set, CommandSync)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	o, p := Load(set, CommandSync, Inputs{
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if path != "conf.yaml" {
				return nil, fs.ErrNotExist
			}
			return []byte(file), nil
		},
	})
	return &s, o, asError(p)
}

// asError is nil where there are no problems.
func asError(p Problems) error {
	if len(p) == 0 {
		return nil
	}
	return p
}

func TestPrecedence(t *testing.T) {
	file := "mode: full\nreaders: 3\nwarn-window: 2h\nverify: true\n"
	env := map[string]string{"MILLRACE_MODE": "incremental", "MILLRACE_WRITERS": "5", "MILLRACE_READERS": ""}
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want string
		from Kind
	}{
		{"default", nil, nil, "all", FromDefault},
		{"file", []string{"--config=conf.yaml"}, nil, "full", FromFile},
		{"environment over file", []string{"--config=conf.yaml"}, env, "incremental", FromEnvironment},
		{"flag over all", []string{"--config=conf.yaml", "--mode=all"}, env, "all", FromFlag},
		{"file named by the environment", nil, map[string]string{"MILLRACE_CONFIG": "conf.yaml"}, "full", FromFile},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, o, err := load(t, c.args, c.env, file)
			if err != nil {
				t.Fatal(err)
			}
			if string(s.Mode) != c.want || o["mode"].Kind != c.from {
				t.Errorf("mode %q from %v, want %q from %v", s.Mode, o["mode"].Kind, c.want, c.from)
			}
		})
	}
	s, _, err := load(t, []string{"--config=conf.yaml"}, env, file)
	if err != nil {
		t.Fatal(err)
	}
	if s.Readers != 3 || s.Writers != 5 || s.WarnWindow != 2*time.Hour || !s.Verify {
		t.Errorf("readers %d writers %d window %s verify %v", s.Readers, s.Writers, s.WarnWindow, s.Verify)
	}
}

func TestLists(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		file string
		want []string
	}{
		{"flags add up", []string{"--include=a.*,b", "--include=c"}, nil, "", []string{"a.*", "b", "c"}},
		{"environment", nil, map[string]string{"MILLRACE_INCLUDE": "a.*,b"}, "", []string{"a.*", "b"}},
		{"quoted comma", nil, map[string]string{"MILLRACE_INCLUDE": `"a.x,y",b`}, "", []string{"a.x,y", "b"}},
		{"file, list", nil, nil, "include: ['a.x,y', b]", []string{"a.x,y", "b"}},
		{"file, block list", nil, nil, "include:\n  - a.*\n  - \"b.*\"", []string{"a.*", "b.*"}},
		{"file, text", nil, nil, "include: a.x, b", []string{"a.x", "b"}},
		{"file, one", nil, nil, "include: [a]", []string{"a"}},
		{"file, section wins", nil, nil, "include: [a]\nsync:\n  include: [b]\nverify:\n  include: [c]\n", []string{"b"}},
		{"environment replaces the file's", nil, map[string]string{"MILLRACE_INCLUDE": "z"}, "include: [a, b]",
			[]string{"z"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := c.args
			if c.file != "" {
				args = append(args, "--config=conf.yaml")
			}
			s, _, err := load(t, args, c.env, c.file)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.Rules.Include, c.want) {
				t.Errorf("%q, want %q", s.Rules.Include, c.want)
			}
		})
	}
}

// Text is a list wherever the flag is one.
func TestTextOfLists(t *testing.T) {
	s, _, err := load(t, []string{"--config=conf.yaml"}, nil, "exclude: a.x, b\nhistory: c.x, d.*\n")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Rules.Exclude, []string{"a.x", "b"}) || !slices.Equal(s.Rules.History, []string{"c.x", "d.*"}) {
		t.Errorf("%q %q", s.Rules.Exclude, s.Rules.History)
	}
}

func TestFileValuesStayText(t *testing.T) {
	s, o, err := load(t, []string{"--config=conf.yaml"}, nil, `# a comment
job: 6.0
until: 2026-01-02T15:04:05Z
rename:
  crm: crm2
  a=b.c: "d.e"
source: >-
  mongodb://u:p@h:1/?x=y
sync:
  write-concern: 2
  start-at: 1700000000:1
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.Job != "6.0" || s.Until != "2026-01-02T15:04:05Z" || s.WriteConcern != "2" || s.StartAt != "1700000000:1" {
		t.Errorf("job %q until %q w %q start %q", s.Job, s.Until, s.WriteConcern, s.StartAt)
	}
	if s.Source != "mongodb://u:p@h:1/?x=y" {
		t.Errorf("source %q", s.Source)
	}
	if want := []string{"crm=crm2", `a\=b.c=d.e`}; !slices.Equal(s.Rules.Rename, want) {
		t.Errorf("rename %q, want %q", s.Rules.Rename, want)
	}
	if o["job"].String() != "file conf.yaml line 2" || o["write-concern"].Line != 10 {
		t.Errorf("origins %v", o)
	}
}

func TestLoadProblems(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        map[string]string
		want       []string
	}{
		{"unknown key", "mode: all\nreader: 3\n", nil, []string{`"reader"`, "line 2", "did you mean readers?"}},
		{"unknown key in a section", "sync:\n  sauce: x\n", nil, []string{`"sauce"`, "line 2"}},
		{"key of another command in a section", "sync:\n  workers: 4\n", nil, []string{`"workers"`, "line 2"}},
		{"section of nothing", "sink:\n  mode: all\n", nil, []string{`"sink"`, "did you mean sync?"}},
		{"config in the file", "config: x\n", nil, []string{"config", "line 1"}},
		{"number", "readers: many\n", nil, []string{"readers", `"many"`, "line 1", "whole number"}},
		{"list for one value", "mode: [all, full]\n", nil, []string{"mode", "line 1"}},
		{"mapping for one value", "mode:\n  a: b\n", nil, []string{"mode", "line 2"}},
		{"duplicate key", "mode: all\nmode: full\n", nil, []string{"line 2"}},
		{"not a mapping", "- a\n- b\n", nil, []string{"mapping"}},
		{"two documents", "mode: all\n---\nmode: full\n", nil, []string{"second document"}},
		{"anchors", "mode: &m all\n", nil, []string{"mode", "line 1"}},
		{"broken", "mode: [all\n", nil, []string{"YAML"}},
		{"secret not shown", "source: mongodb://u:s3cret@h\n\tx: 'mongodb://u:s3cret@h\n", nil, []string{"conf.yaml"}},
		{"environment", "", map[string]string{"MILLRACE_WARN_WINDOW": "soon"},
			[]string{"warn-window", "MILLRACE_WARN_WINDOW", "duration"}},
		{"several", "reader: 3\nwriters: x\n", map[string]string{"MILLRACE_DRY_RUN": "maybe"},
			[]string{"3 settings", "dry-run", "reader", "writers"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, []string{"--config=conf.yaml"}, c.env, c.file)
			var p Problems
			if !errors.As(err, &p) {
				t.Fatalf("no problems: %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in %q", w, err)
				}
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("secret shown: %s", err)
			}
		})
	}
}

func TestOneFileForAllCommands(t *testing.T) {
	file := "source: mongodb://a\ntarget: mongodb://b\nworkers: 9\nverify:\n  max-differences: 5\nstatus:\n  watch: true\n"
	if _, _, err := load(t, []string{"--config=conf.yaml"}, nil, file); err != nil {
		t.Fatal(err)
	}
	var v Verify
	set := pflag.NewFlagSet("verify", pflag.ContinueOnError)
	v.Bind(set, CommandVerify)
	if err := set.Parse([]string{"--config=conf.yaml"}); err != nil {
		t.Fatal(err)
	}
	_, p := Load(set, CommandVerify, Inputs{
		LookupEnv: func(string) (string, bool) { return "", false },
		ReadFile:  func(string) ([]byte, error) { return []byte(file), nil },
	})
	if len(p) > 0 {
		t.Fatal(p)
	}
	if v.Workers != 9 || v.MaxDifferences != 5 || v.Source != "mongodb://a" {
		t.Errorf("%+v", v)
	}
}

func TestMissingFile(t *testing.T) {
	_, _, err := load(t, []string{"--config=nowhere.yaml"}, nil, "")
	if err == nil || !strings.Contains(err.Error(), "flag --config") {
		t.Fatalf("%v", err)
	}
}

func TestLargeFile(t *testing.T) {
	_, _, err := load(t, []string{"--config=conf.yaml"}, nil, "#"+strings.Repeat("x", maxFile))
	if err == nil || !strings.Contains(err.Error(), "bytes long") {
		t.Fatalf("%v", err)
	}
}

// TestManyProblems: a file of nothing but mistakes gets a short answer.
func TestManyProblems(t *testing.T) {
	var text strings.Builder
	for i := range 10 * maxProblems {
		fmt.Fprintf(&text, "k%d: 1\nsync%d: {a: b}\n", i, i)
	}
	_, problems := parseFile("f", []byte(text.String()), CommandSync)
	if last := problems[len(problems)-1]; len(problems) != maxProblems+1 || !strings.Contains(last.What, "more problems") {
		t.Errorf("%d problems, at last %v", len(problems), last)
	}
}

// FuzzFile says that no file ends the program, and that whatever is accepted
// is made of known settings.
func FuzzFile(f *testing.F) {
	for _, s := range []string{"mode: all", "sync:\n  include: [a, b]\n", "rename: {a: b}", "a: &x 1\nb: *x", "- 1",
		"? a : b", "mode: |\n  x\n", "\t", "---\n...\n---", "include: !!str x", "<<: {mode: all}", "\"mode\": 'all'",
		"{mode: all, job: [}"} {
		f.Add([]byte(s))
	}
	sets := settingNames()
	f.Fuzz(func(t *testing.T, raw []byte) {
		for command := range sets {
			entries, problems := parseFile("f", raw, command)
			for _, e := range entries {
				if !slices.Contains(sets[command], e.key) {
					t.Errorf("%s took %q", command, e.key)
				}
			}
			if len(problems) > 0 && problems.Error() == "" {
				t.Error("a problem without words")
			}
		}
	})
}

// TestLongFile: a file that would take the parser seconds is refused before it is parsed.
func TestLongFile(t *testing.T) {
	for text, want := range map[string]string{"---\na: 1\n": "documents", "---\ra: 1\r": "documents",
		"a: 1\n...\n": "documents", "a:\n": "keys", "a:\r": "keys", "? a\n": "keys", "? a\n: b\n": "keys"} {
		_, problems := CheckDefinition("a", strings.Repeat(text, maxFile/len(text)))
		if got := problems.Error(); !strings.Contains(got, "has more than") || !strings.Contains(got, want) {
			t.Errorf("%q: %.200s", text, got)
		}
	}
	long := "---\nsource: env:A\ntarget: env:B\nexclude:\n" + strings.Repeat("- a.b\n", 2*maxKeys) + "...\n"
	if _, problems := CheckDefinition("a", long); len(problems) > 0 {
		t.Errorf("one document with a long list: %s", problems)
	}
}

// TestDeepFile: what is nested so deep that the parser would take all memory is refused
// before it is parsed.
func TestDeepFile(t *testing.T) {
	for what, text := range map[string]string{
		"lists": "source: " + strings.Repeat("[", maxNesting+1), "mappings": strings.Repeat("{a: ", maxNesting+1),
		"items": strings.Repeat("- ", maxNesting+1), "keys": strings.Repeat("? ", maxNesting+1),
		"both":          strings.Repeat("- ", maxNesting/2) + strings.Repeat("[", maxNesting/2+1),
		"all that fits": strings.Repeat("[", maxFile),
	} {
		_, problems := CheckDefinition("a", text)
		if !strings.Contains(problems.Error(), "is nested more than") {
			t.Errorf("%s: %s", what, problems)
		}
	}
	wide := "source: env:A\ntarget: env:B\nexclude:\n" + strings.Repeat("- a.b\n", 2*maxNesting)
	if _, problems := CheckDefinition("a", wide); strings.Contains(problems.Error(), "nested") {
		t.Errorf("a long list: %s", problems)
	}
}
