package config

import (
	"strings"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// Rules are the rules that the settings describe.
func (n Namespaces) Rules() transform.Config {
	return transform.Config{Include: n.Include, Exclude: n.Exclude, Rename: n.Rename}
}

// namespaces checks every item by itself, so that all bad ones are told, and
// then the renames together, because they may contradict each other.
func (c *checker) namespaces(n Namespaces) {
	before := len(c.problems)
	each := func(setting string, items []string, rules func([]string) transform.Config) {
		for _, item := range items {
			c.rules(setting, rules([]string{item}))
		}
	}
	each("include", n.Include, func(s []string) transform.Config { return transform.Config{Include: s} })
	each("exclude", n.Exclude, func(s []string) transform.Config { return transform.Config{Exclude: s} })
	each("rename", n.Rename, func(s []string) transform.Config { return transform.Config{Rename: s} })
	if len(c.problems) == before {
		c.rules("rename", n.Rules())
	}
}

// rules reports what is wrong with r; a rule's error says how it is to be
// written.
func (c *checker) rules(setting string, r transform.Config) {
	if _, err := transform.New(r); err != nil {
		what, how, ok := strings.Cut(err.Error(), "; ")
		if !ok {
			how = "leave out one of the rules"
		}
		c.fail(setting, "cannot be used: "+what, how)
	}
}

// Spec is the job that the settings describe, without a logger; --verify is the
// command's own. The settings have to be valid.
func (s *Sync) Spec() job.Spec {
	spoolBytes, _ := parseBytes(s.SpoolMax)
	return job.Spec{
		Job:            s.Job,
		Source:         s.Source,
		Target:         s.Target,
		Mode:           job.Mode(s.Mode),
		StartAt:        s.StartAt,
		Until:          s.Until,
		Rules:          s.Rules(),
		OnExisting:     job.OnExisting(s.OnExisting),
		OnConflict:     job.OnConflict(s.OnConflict),
		Restart:        s.Restart,
		AllowDowngrade: s.AllowDowngrade,
		WriteConcern:   s.WriteConcern,
		ReadPreference: s.ReadPreference,
		ReadTags:       s.ReadTags,
		Readers:        s.Readers,
		Writers:        s.Writers,
		Partitions:     s.Partitions,
		Limits:         s.rates(),
		Loads:          s.loads(),
		SpoolDir:       s.SpoolDir,
		SpoolBytes:     spoolBytes,
		WarnWindow:     s.WarnWindow,
		GiveUpAfter:    s.GiveUpAfter,
	}
}

// Warnings are things that work but should be known: secrets that others on
// this machine can see. secrets holds the values by setting; statMode gives a
// file's permission bits.
func Warnings(o Origins, secrets map[string]string, statMode func(path string) (uint32, error)) []Problem {
	var out []Problem
	for _, name := range []string{flagSource, flagTarget, flagToken} {
		value, ok := secrets[name]
		if !ok || value == "" || name != flagToken && !mongo.HasPassword(value) {
			continue
		}
		origin := o[name]
		switch origin.Kind {
		case FromFlag:
			out = append(out, Problem{Setting: name, Where: origin.String(),
				What: "is a secret that other users of this machine can see in the list of processes",
				How:  "set " + EnvName(name) + " or use a config file"})
		case FromFile:
			if mode, err := statMode(origin.Name); err == nil && mode&0o077 != 0 {
				out = append(out, Problem{Setting: name, Where: origin.String(),
					What: "is a secret in a file that other users can read", How: "chmod 600 " + origin.Name})
			}
		}
	}
	return out
}
