package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
)

// eachFlag calls f with a flag of a command, for all that an operator may give.
// Each time the whole command line is a new one.
func eachFlag(t *testing.T, f func(t *testing.T, b *bench, cmd *cobra.Command, flag *pflag.Flag)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.Hidden || !cmd.Runnable() || cmd.HasSubCommands() && cmd.Name() != "bench" {
			return
		}
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Hidden || flag.Name == "help" {
				return
			}
			b := newBench(t, nil)
			b.app.stdout, b.app.stderr = new(output), new(output)
			again, _, err := b.app.rootCommand().Find(strings.Fields(cmd.CommandPath())[1:])
			if err != nil {
				t.Fatal(err)
			}
			t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "-")+"--"+flag.Name, func(t *testing.T) { f(t, b, again, again.Flags().Lookup(flag.Name)) })
		})
	}
	walk(newApp().rootCommand())
}

// Every flag of every command has its variable.
func TestEveryFlagIsInTheEnvironment(t *testing.T) {
	n := 0
	eachFlag(t, func(t *testing.T, b *bench, cmd *cobra.Command, flag *pflag.Flag) {
		n++
		value := map[string]string{"bool": "true", "duration": "77s", "durationSlice": "77s", "string": "x77", "stringSlice": "x77", "stringArray": "x77"}[flag.Value.Type()]
		switch allowed := flag.Annotations["choices"]; {
		case allowed != nil:
			value = allowed[len(allowed)-1]
		case flag.Name == "config":
			value = filepath.Join(t.TempDir(), "x.yaml")
			if err := os.WriteFile(value, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		case value == "":
			value = "77"
		}
		name := config.EnvName(flag.Name)
		if cmd.Parent().Name() == "ycsb" && flag.Name == "target" {
			b.env[name] = "mongodb://cluster" // of sync
			name = "MILLRACE_YCSB_TARGET"
		}
		b.env[name] = value
		_ = cmd.PreRunE(cmd, nil) // what is missing is another matter
		if got := strings.Trim(flag.Value.String(), "[]"); got != value && got != "1m17s" || !flag.Changed {
			t.Errorf("%s=%s gives %q", name, value, got)
		}
	})
	if n < 150 {
		t.Errorf("only %d flags were looked at", n)
	}
}

// Whatever flag takes a connection string warns of its password, and names the
// variable that takes it as well.
func TestEveryPasswordInAFlagIsWarnedOf(t *testing.T) {
	eachFlag(t, func(t *testing.T, b *bench, cmd *cobra.Command, flag *pflag.Flag) {
		prefix := ""
		switch {
		case flag.Name == "config" || !strings.HasPrefix(flag.Value.Type(), "string"):
			return
		case flag.Name == "property":
			prefix = "mongodb.url="
		}
		if err := cmd.Flags().Set(flag.Name, prefix+"mongodb://u:hidden@h"); err != nil {
			t.Fatal(err)
		}
		origins, problems := config.Load(cmd.Flags(), "", config.Inputs{LookupEnv: b.app.lookupEnv, ReadFile: os.ReadFile})
		warnings := config.Warnings(cmd.Flags(), origins, fileMode)
		if len(problems) > 0 || len(warnings) != 1 || warnings[0].Setting != flag.Name || !strings.Contains(warnings[0].How, "MILLRACE_") {
			t.Errorf("%v %v", problems, warnings)
		}
		err := cmd.PreRunE(cmd, nil)
		said := b.app.stderr.(*output).String()
		if err == nil && !strings.Contains(said, "list of processes") {
			t.Errorf("not warned: %s", said)
		}
		if err != nil {
			said += err.Error()
		}
		if strings.Contains(said, "hidden") {
			t.Errorf("it is shown: %s", said)
		}
	})
}

func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	environ := []string{"MILLRACE_TARGTE=mongodb://u:hidden@a", "MILLRACE_SOURCE=mongodb://a", "MILLRACE_LAB_DIR=/x", "MILLRACE_MONGOD_6_0=/x",
		"MILLRACE_SET_URI=x", "MILLRACE_YCSB_URL=x", "MILLRACE_SERVICE_HOST=10.0.0.1", "MILLRACE_XYZZY_PLUGH=1", "MILLRACE_EMPTY=", "OTHER=1"}
	for _, args := range [][]string{{"version"}, {"sync"}, {"lab", "list", "--output=xml"}} {
		b := newBench(t, nil)
		b.app.environ = environ
		b.run(t.Context(), args...)
		got := b.stderr.String()
		if !strings.Contains(got, "MILLRACE_TARGTE means nothing") || !strings.Contains(got, "did you mean MILLRACE_TARGET?") ||
			!strings.Contains(got, "MILLRACE_XYZZY_PLUGH means nothing") || strings.Count(got, "WARN") != 2 || strings.Contains(got, "hidden") {
			t.Errorf("%v: %s", args, got)
		}
	}
}

// No variable that the project itself reads is unknown to it.
func TestOwnVariablesAreKnown(t *testing.T) {
	own := regexp.MustCompile(`"?MILLRACE_[A-Z0-9_]*[A-Z0-9]\b`)
	root := newApp().rootCommand()
	flags := allFlags(root)
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") && d.Name() != "Makefile" && !strings.HasSuffix(path, ".md") || d.Name() == "settings_test.go" {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, name := range own.FindAllString(string(raw), -1) {
			if p := config.Unknown([]string{strings.Trim(name, `"`) + "=x"}, root.Flags(), flags); len(p) > 0 {
				t.Errorf("%s: %s", path, p[0])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWildPasswords: whatever characters a password has that should be percent-encoded,
// and whatever flag or variable it is given by, no command prints any part of it.
func TestWildPasswords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	const marker = "qzk"
	wild := func() string {
		text := marker
		for range 1 + rng.IntN(4) {
			text += []string{"@", "/", "?", ":", "#", "%zz", "%", "@x/", "/y@", "=", "&", " "}[rng.IntN(12)] + marker
		}
		scheme := []string{"mongodb://", "mongodb://", "mongodb://", "mongodb+srv://", "nats://", "http://", "https://"}[rng.IntN(7)]
		return scheme + "user:" + text + []string{"@127.0.0.1:1/?serverSelectionTimeoutMS=50&connectTimeoutMS=50", "@127.0.0.1:99999/db"}[rng.IntN(2)]
	}
	ofURIs := func(flag *pflag.Flag) bool {
		kind, _ := pflag.UnquoteUsage(flag)
		return strings.HasSuffix(kind, "URI") || slices.Contains([]string{"nats", "server", "from", "otlp-endpoint", "property"}, flag.Name)
	}
	eachFlag(t, func(t *testing.T, b *bench, cmd *cobra.Command, flag *pflag.Flag) {
		if flag.Name == "config" || !strings.HasPrefix(flag.Value.Type(), "string") {
			return
		}
		prefix := map[string]string{"property": "mongodb.url=", "source-shard": "s0=", "target-shard": "s0="}[flag.Name]
		for _, env := range []bool{false, true}[:map[bool]int{true: 2, false: 1}[ofURIs(flag)]] {
			for i := range map[bool]int{true: 4, false: 1}[ofURIs(flag)] {
				value := wild()
				if i%4 == 3 { // the host was forgotten
					if short, _, _ := strings.Cut(value, "@127"); mongo.CheckURI(short) != nil {
						value = short
					}
				}
				cmd, _, err := b.app.rootCommand().Find(strings.Fields(cmd.CommandPath())[1:])
				if err != nil {
					t.Fatal(err)
				}
				clear(b.env)
				if env {
					b.env[config.EnvName(flag.Name)] = prefix + value
				} else if err = cmd.Flags().Set(flag.Name, prefix+value); err == nil {
					cmd.Flags().Lookup(flag.Name).Changed = true
				}
				said := ""
				if err == nil && cmd.PreRunE != nil {
					err = cmd.PreRunE(cmd, nil)
				}
				if err != nil {
					said = err.Error() + mongo.HintOf(err)
				}
				if said += b.app.stderr.(*output).String() + b.app.stdout.(*output).String(); strings.Contains(said, marker) {
					t.Fatalf("%s: %s", value, said)
				}
			}
		}
	})
	args := failingArgs(t)
	eachFlag(t, func(t *testing.T, b *bench, cmd *cobra.Command, flag *pflag.Flag) {
		given, fails := args[strings.TrimPrefix(cmd.CommandPath(), "millrace ")]
		if !fails || !ofURIs(flag) {
			return
		}
		for range 3 {
			var stdout, stderr output
			a := newApp()
			a.stdout, a.stderr, a.screen = &stdout, &stderr, func() *screen { return nil }
			env := map[string]string{"XDG_STATE_HOME": t.TempDir(), "XDG_CONFIG_HOME": t.TempDir()}
			a.lookupEnv = func(name string) (string, bool) { v, ok := env[name]; return v, ok }
			value := wild()
			if strings.HasPrefix(value, "mongodb+srv") && mongo.CheckURI(value) == nil {
				continue // its name would be looked up
			}
			prefix := map[string]string{"property": "mongodb.url=", "source-shard": "s0=", "target-shard": "s0="}[flag.Name]
			a.run(t.Context(), append(strings.Fields(cmd.CommandPath()[len("millrace "):]+" "+given), "--"+flag.Name, prefix+value))
			if said := stdout.String() + stderr.String(); strings.Contains(said, marker) {
				t.Fatalf("%s: %s", value, said)
			}
		}
	})
}
