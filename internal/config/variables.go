package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/near"
)

// prefix is that of all variables.
const prefix = "MILLRACE_"

// EnvName is the environment variable of a flag: MILLRACE_ON_EXISTING of
// on-existing.
func EnvName(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variable is the annotation of a flag with other variables than EnvName.
const variable = "variable"

// Variables gives a flag other variables than EnvName: the first is read as its
// value, the last is where a secret in it belongs.
func Variables(fs *pflag.FlagSet, flag string, names ...string) {
	_ = fs.SetAnnotation(flag, variable, names)
}

// variables are those of a flag.
func variables(f *pflag.Flag) []string {
	if names := f.Annotations[variable]; len(names) > 0 {
		return names
	}
	return []string{EnvName(f.Name)}
}

// AllVariables returns the names of all variables of flags, sorted, each once.
func AllVariables(flags []*pflag.Flag) (names []string) {
	for _, f := range flags {
		names = append(names, variables(f)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// otherVariables are those that no flag stands for: of the lab, of tests, secrets of the
// service's jobs, and what Kubernetes sets for a service named millrace. One that ends in _ is a beginning.
func otherVariables() []string {
	return []string{"MONGOD_", "LAB_", "FAILPOINTS", "TEST_", "TRIAL", "TRIAL_", "SOAK", "SEED_", "SECRET_", "SERVICE_", "PORT_"}
}

// Unknown finds what in an environment (NAME=value) is called like a variable of
// a flag, but is none. A name is rather meant to be of the command that runs than
// of another. Names in foreign are those of other programs.
func Unknown(environ []string, command *pflag.FlagSet, all []*pflag.Flag, foreign []string) (out []Problem) {
	var own, known []string // without the prefix, in which all are alike
	add := func(to *[]string, f *pflag.Flag) {
		for _, name := range variables(f) {
			*to = append(*to, strings.TrimPrefix(name, prefix))
		}
	}
	command.VisitAll(func(f *pflag.Flag) { add(&own, f) })
	for _, f := range all {
		add(&known, f)
	}
	for _, one := range environ {
		name, value, _ := strings.Cut(one, "=")
		short, ours := strings.CutPrefix(name, prefix)
		if !ours || value == "" || slices.Contains(known, short) || slices.Contains(foreign, name) ||
			slices.ContainsFunc(otherVariables(), func(o string) bool { return o == short || strings.HasSuffix(o, "_") && strings.HasPrefix(short, o) }) {
			continue
		}
		p := Problem{Setting: name, Where: "environment", What: "means nothing to any command", How: "see the command's --help for its flags"}
		if best := cmp.Or(near.Name(short, own), near.Name(short, known)); best != "" {
			p.How = "did you mean " + prefix + best + "?"
		}
		out = append(out, p)
	}
	return out
}
