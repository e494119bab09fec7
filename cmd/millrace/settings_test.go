package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
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
