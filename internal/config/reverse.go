package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/reverse"
	"github.com/millrace/millrace/internal/state"
)

// CommandReverse has settings of this package.
const CommandReverse = "reverse"

// Reverse are the settings of `millrace reverse`. Source and Target are those of the job that is
// reversed until Exchange.
type Reverse struct {
	Sync  // Job is the one that is reversed until Exchange
	Watch bool
	// NewJob is the name of the reversed job.
	NewJob string

	as string
}

// ofOriginal are the settings of sync that follow from the job that is reversed.
func ofOriginal() []string {
	return []string{"mode", "on-existing", "start-at", "include", "exclude", "rename", "filter", "skip", "fields",
		"soft-delete", "history", "allow-missing", flagShard, flagZone, flagSpoolDir, "spool-max",
		flagCopy, flagSourceAgent, flagTargetAgents, flagTokenFile, flagCA}
}

// Bind implements Settings.
func (s *Reverse) Bind(fs *pflag.FlagSet, command string) {
	all := pflag.NewFlagSet(command, pflag.ContinueOnError)
	s.Sync.Bind(all, command)
	all.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(ofOriginal(), f.Name) {
			fs.AddFlag(f)
		}
	})
	fs.Lookup("job").Usage = "`name` of the finalized job that is reversed"
	fs.Lookup(flagSource).Usage = "connection string `URI` of the finalized job's source\nit becomes the target; with a " +
		"password, set MILLRACE_SOURCE or use a config file instead"
	fs.Lookup(flagTarget).Usage = "connection string `URI` of the finalized job's target\nit becomes the source; with a " +
		"password, set MILLRACE_TARGET or use a config file instead"
	Bind(fs, flagTexts, CommandReverse, Vars{"as": &s.as, "watch": &s.Watch})
}

// Validate implements Settings.
func (s *Reverse) Validate(o Origins, args []string) Problems {
	original := s.Job
	s.NewJob = cmp.Or(s.as, reverse.JobName(original))
	s.Mode, s.StartAt, s.AllowMissing = job.ModeIncremental, state.PrefixJob+original, true
	var problems Problems
	if original == "" {
		problems = Problems{{Setting: "job", Where: o["job"].String(), What: "is missing",
			How: "name the finalized job; millrace jobs list --target shows those that are stored"}}
		s.StartAt, s.NewJob = "", "unnamed" // which causes no second problem
	}
	s.Job = s.NewJob
	defer func() { s.Job = original }()
	return append(problems, s.Sync.Validate(o, args)...)
}

// Exchange makes the settings those of the new job, whose rules lead back.
func (s *Reverse) Exchange(back reverse.Definition) {
	secret := s.Rules.Secret
	s.Job, s.Source, s.Target = s.NewJob, s.Target, s.Source
	s.SourceShards, s.TargetShards = s.TargetShards, s.SourceShards
	s.Rules, s.Rules.Secret = back.Rules, secret
}

// ReverseDefinition is the definition of a job that leads another one back, from the definition of
// that one, and what that loses. returns is the definition of the job that it reverses itself, ""
// for none. Settings about the old target, as shard keys, and about files of its process go.
func ReverseDefinition(name, text, returns string, accept []string) (string, []reverse.Loss, error) {
	was, problems := CheckDefinition(name, text)
	if len(problems) > 0 {
		return "", nil, problems
	}
	d := reverse.Definition{Rules: was.Rules}
	if returns != "" {
		first, problems := CheckDefinition(reverse.JobName(name), returns)
		if len(problems) > 0 {
			return "", nil, problems
		}
		d.Returns = &first.Rules
	}
	back, losses, err := reverse.Invert(d)
	if err != nil {
		return "", nil, err
	}
	r := back.Rules
	settings := map[string][]string{"mode": {string(job.ModeIncremental)}, "start-at": {state.PrefixJob + name},
		"include": r.Include, "exclude": r.Exclude, "rename": r.Rename, "filter": r.Filter, "skip": r.Skip,
		"fields": r.Fields, "soft-delete": r.SoftDelete, "allow-missing": {"true"}, "accept-loss": accept}
	own := []string{"mode", "start-at", "include", "exclude", "rename", "filter", "skip", "fields", "soft-delete",
		"allow-missing", "accept-loss"}
	gone := append(ofOriginal(), flagSourceShard, flagCapture, flagVia, "until", "accept-loss", "allow-overlap")
	order := []string{flagSource, flagTarget}
	entries, _ := parseFile("settings", []byte(text), CommandSync)
	for _, e := range entries {
		if e.key == flagSource || e.key == flagTarget {
			settings[map[string]string{flagSource: flagTarget, flagTarget: flagSource}[e.key]] = e.values
		} else if !slices.Contains(gone, e.key) && settings[e.key] == nil {
			settings[e.key] = e.values
			order = append(order, e.key)
		}
	}
	order = append(order, own...)
	var b strings.Builder
	for _, key := range order {
		switch values := settings[key]; {
		case len(values) == 0:
		case len(values) == 1 && !slices.Contains(own[2:], key) || key == "allow-missing":
			fmt.Fprintf(&b, "%s: %s\n", key, quoted(values[0]))
		default:
			fmt.Fprintf(&b, "%s:\n", key)
			for _, v := range values {
				fmt.Fprintf(&b, "  - %s\n", quoted(v))
			}
		}
	}
	return b.String(), losses, nil
}

// ReversedJob is the job that a definition leads back, "" for none.
func ReversedJob(name, text string) string {
	s, _ := CheckDefinition(name, text)
	of, _ := state.StartAtJob(s.StartAt)
	return of
}
