package cli

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
)

// eachFlag calls f with a flag of a command, for all that an operator may give. Each time
// the command line is a new one. It returns how many flags there are.
func eachFlag(t *testing.T, program New, f func(t *testing.T, w *World, cmd *cobra.Command, flag *pflag.Flag)) (n int) {
	each(Start(t, program).Root(), func(cmd *cobra.Command) {
		// A group without work of its own has no arguments in its usage.
		if cmd.Hidden || !cmd.Runnable() || cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") {
			return
		}
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Hidden || flag.Name == "help" {
				return
			}
			n++
			w := Start(t, program)
			again, _, err := w.Root().Find(strings.Fields(pathOf(cmd)))
			if err != nil {
				t.Fatal(err)
			}
			t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "-")+"--"+flag.Name,
				func(t *testing.T) { f(t, w, again, again.Flags().Lookup(flag.Name)) })
		})
	})
	return n
}

// CommandsAreForgotten checks that nothing keeps the flags of commands that are not used any
// more: tests make all commands thousands of times.
func CommandsAreForgotten(t *testing.T, program New) {
	var flags []weak.Pointer[pflag.Flag]
	each(Start(t, program).Root(), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { flags = append(flags, weak.Make(flag)) })
	})
	runtime.GC()
	for _, kept := range flags {
		if flag := kept.Value(); flag != nil {
			t.Errorf("--%s is kept", flag.Name)
		}
	}
}

// FlagsAreInTheEnvironment checks that every flag of every command has its variable, and
// that there are at least so many flags.
func FlagsAreInTheEnvironment(t *testing.T, program New, least int) {
	n := eachFlag(t, program, func(t *testing.T, w *World, cmd *cobra.Command, flag *pflag.Flag) {
		value := map[string]string{"bool": "true", "duration": "77s", "durationSlice": "77s", "string": "x77",
			"stringSlice": "x77", "stringArray": "x77"}[flag.Value.Type()]
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
			w.Env[name] = "mongodb://cluster" // of sync
			name = "MILLRACE_YCSB_TARGET"
		}
		w.Env[name] = value
		_ = cmd.PreRunE(cmd, nil) // what is missing is another matter
		if got := strings.Trim(flag.Value.String(), "[]"); got != value && got != "1m17s" || !flag.Changed {
			t.Errorf("%s=%s gives %q", name, value, got)
		}
	})
	if n < least {
		t.Errorf("only %d flags were looked at", n)
	}
}

// PasswordsInFlagsAreWarnedOf checks that whatever flag takes a connection string warns of its password, and names the
// variable that takes it as well.
func PasswordsInFlagsAreWarnedOf(t *testing.T, program New) {
	eachFlag(t, program, func(t *testing.T, w *World, cmd *cobra.Command, flag *pflag.Flag) {
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
		origins, problems := config.Load(cmd.Flags(), "",
			config.Inputs{LookupEnv: func(name string) (string, bool) { v, ok := w.Env[name]; return v, ok },
				ReadFile: os.ReadFile})
		warnings := config.Warnings(cmd.Flags(), origins)
		if len(problems) > 0 || len(warnings) != 1 || warnings[0].Setting != flag.Name ||
			!strings.Contains(warnings[0].How, "MILLRACE_") {
			t.Errorf("%v %v", problems, warnings)
		}
		err := cmd.PreRunE(cmd, nil)
		said := w.Stderr.String()
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

// WildPasswords checks that whatever characters a password has that should be percent-encoded,
// and whatever flag or variable it is given by, no command prints any part of it.
func WildPasswords(t *testing.T, program New, args map[string]string) {
	rng := rand.New(rand.NewPCG(1, 0))
	const marker = "qzk"
	wild := func() string {
		text := marker
		for range 1 + rng.IntN(4) {
			text += []string{"@", "/", "?", ":", "#", "%zz", "%", "@x/", "/y@", "=", "&", " "}[rng.IntN(12)] + marker
		}
		scheme := []string{"mongodb://", "mongodb://", "mongodb://", "mongodb+srv://", "nats://", "http://",
			"https://"}[rng.IntN(7)]
		return scheme + "user:" + text + []string{"@127.0.0.1:1/?serverSelectionTimeoutMS=50&connectTimeoutMS=50",
			"@127.0.0.1:99999/db"}[rng.IntN(2)]
	}
	ofURIs := func(flag *pflag.Flag) bool {
		kind, _ := pflag.UnquoteUsage(flag)
		return strings.HasSuffix(kind, "URI") ||
			slices.Contains([]string{"nats", "server", "from", "otlp-endpoint", "property"}, flag.Name)
	}
	eachFlag(t, program, func(t *testing.T, w *World, cmd *cobra.Command, flag *pflag.Flag) {
		if flag.Name == "config" || !strings.HasPrefix(flag.Value.Type(), "string") {
			return
		}
		prefix := map[string]string{"property": "mongodb.url=", "source-shard": "s0=", "target-shard": "s0="}[flag.Name]
		for _, env := range []bool{false, true}[:map[bool]int{true: 2, false: 1}[ofURIs(flag)]] {
			for i := range map[bool]int{true: 2, false: 1}[ofURIs(flag)] {
				value := wild()
				if i%2 == 1 { // the host was forgotten
					if short, _, _ := strings.Cut(value, "@127"); mongo.CheckURI(short) != nil {
						value = short
					}
				}
				cmd, _, err := w.Root().Find(strings.Fields(pathOf(cmd)))
				if err != nil {
					t.Fatal(err)
				}
				clear(w.Env)
				if env {
					w.Env[config.EnvName(flag.Name)] = prefix + value
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
				if said += w.Stderr.String() + w.Stdout.String(); strings.Contains(said, marker) {
					t.Fatalf("%s: %s", value, said)
				}
			}
		}
	})
	eachFlag(t, program, func(t *testing.T, w *World, cmd *cobra.Command, flag *pflag.Flag) {
		given, fails := args[pathOf(cmd)]
		if !fails || !ofURIs(flag) {
			return
		}
		for range 3 {
			w := Start(t, program)
			value := wild()
			if strings.HasPrefix(value, "mongodb+srv") && mongo.CheckURI(value) == nil {
				continue // its name would be looked up
			}
			prefix := map[string]string{"property": "mongodb.url=", "source-shard": "s0=", "target-shard": "s0="}[flag.Name]
			w.Run(t.Context(), append(strings.Fields(pathOf(cmd)+" "+given), "--"+flag.Name, prefix+value))
			if said := w.Stdout.String() + w.Stderr.String(); strings.Contains(said, marker) {
				t.Fatalf("%s: %s", value, said)
			}
		}
	})
}
