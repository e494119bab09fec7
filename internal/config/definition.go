package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/mongo"
)

// Resolver gives the value that a reference stands for: env:NAME, file:NAME, or
// sealed:JOB:TEXT, which is a sealed value that a job wants.
type Resolver func(reference string) (string, error)

// Placeholder resolves each reference to an address that is none, for checks where the
// secrets are not to be had.
func Placeholder(string) (string, error) { return "mongodb://reference.invalid/", nil }

// IsReference reports whether a value stands for another one.
func IsReference(value string) bool {
	return strings.HasPrefix(value, "env:") || strings.HasPrefix(value, "file:") || strings.HasPrefix(value, sealedPrefix)
}

// ofProcess are settings of sync that belong to a process, or that would do a thing
// again each time a worker takes the job.
func ofProcess() []string {
	return []string{flagConfig, "job", "restart", "dry-run", "verify", flagTargetShard, "listen", flagToken, flagListenCert, flagListenKey, "listen-insecure",
		"open-status", "pprof", "report", "output", "log-level", "log-format", flagProgress}
}

// Definition reads the settings of a job from YAML or JSON as `millrace sync --config`
// has them. Connection strings with a password are refused: a reference stands for
// them, which resolve reads where the job runs. Nothing of the environment counts.
func Definition(name, text string, resolve Resolver) (*Sync, Problems) {
	var s Sync
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	s.Bind(fs, CommandSync)
	l := loader{fs: fs, origins: Origins{}, job: name}
	entries, problems := parseFile("settings", []byte(text), CommandSync)
	l.problems = problems
	for _, e := range entries {
		o := Origin{Kind: FromFile, Name: "settings", Line: e.line, Lines: e.lines}
		if slices.Contains(ofProcess(), e.key) {
			l.problems = append(l.problems, Problem{Setting: e.key, Where: o.String(), What: "does not belong in the definition of a job", How: "leave it out"})
			continue
		}
		for i := range e.values {
			e.values[i] = l.secret(e.key, e.values[i], o.item(i), resolve)
		}
		l.set(e.key, o, e.values...)
	}
	s.Job = name
	s.Rules.Secret = func(ref string) (string, error) { // as for connection strings
		text, err := resolve(ref)
		return strings.TrimRight(text, "\r\n"), err
	}
	return &s, append(l.problems, s.Validate(l.origins, nil)...)
}

// secret is the value of a setting that may be a reference, or the part of one behind
// the name of a shard.
func (l *loader) secret(key, value string, o Origin, resolve Resolver) string {
	prefix := ""
	if key == flagSourceShard {
		if name, uri, ok := strings.Cut(value, "="); ok {
			prefix, value = name+"=", uri
		}
	} else if key != flagSource && key != flagTarget {
		return value
	}
	problem := Problem{Setting: key, Where: o.String()}
	switch {
	case mongo.HasPassword(value):
		problem.What, problem.How = "holds a password, which everybody could read who may look at the job",
			"write env:NAME or file:NAME, and give the connection string to the workers under that name, or seal it (millrace secrets seal)"
		value, _ = Placeholder("")
	case IsReference(value):
		reference, err := value, error(nil)
		if strings.HasPrefix(value, sealedPrefix) {
			reference, err = sealedFor(l.job, value), checkSealed(value)
			value = "the sealed value"
		}
		text := ""
		if err == nil {
			text, err = resolve(reference)
		}
		if err == nil {
			return prefix + strings.TrimSpace(text)
		}
		problem.What, problem.How = fmt.Sprintf("%s cannot be had here: %s", value, err), "give it to this process"
		value, _ = Placeholder("")
	default:
		return prefix + value
	}
	l.problems = append(l.problems, problem)
	return prefix + value
}
