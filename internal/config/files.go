package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
)

// Files name the agents of a copy by files, and how they are trusted.
type Files struct {
	SourceAgent  string
	TargetAgents []string
	TokenFile    string // "" is that of an agent of the same user on this machine
	CAFile       string
}

const copyFiles = "files"

// copied checks --copy and what belongs to it, and completes s.Files.
func (c *checker) copied(s *Sync) {
	f := &s.files
	if s.copyBy != copyFiles {
		const how = "leave it out, or give --copy files"
		given := func(setting string, is bool) { c.bad(is, setting, "goes with --copy files only", how) }
		given(flagSourceAgent, f.SourceAgent != "")
		given(flagTargetAgents, len(f.TargetAgents) > 0)
		given(flagTokenFile, f.TokenFile != "")
		given(flagCA, f.CAFile != "")
		return
	}
	s.Files = f
	if c.origins[flagUsers].Kind == FromDefault {
		s.Users = true
	}
	c.agent(flagSourceAgent, f.SourceAgent, f.TokenFile)
	c.bad(len(f.TargetAgents) == 0, flagTargetAgents, "is missing", "give the address of each member's agent")
	for i, address := range f.TargetAgents {
		c.agent(flagTargetAgents, address, f.TokenFile)
		c.bad(slices.Contains(f.TargetAgents[:i], address), flagTargetAgents, fmt.Sprintf("names %s twice", address),
			"leave out one of them")
	}
	if o, err := mongo.ParseURI(s.Target); err == nil {
		c.bad(o.ReplicaSet == nil, flagTarget, "names no replica set", "add replicaSet= with the name of the new set")
	}
	const instead = "leave it out, or use --copy documents"
	r := s.Rules
	for _, one := range []struct {
		setting string
		given   bool
	}{
		{"rename", len(r.Rename) > 0}, {"filter", len(r.Filter) > 0}, {"fields", len(r.Fields) > 0},
		{"history", len(r.History) > 0}, {flagShard, len(s.Shard) > 0}, {flagZone, len(s.Zones) > 0},
		{flagSourceShard, len(s.sourceShards) > 0}, {flagTargetShard, len(s.targetShards) > 0}, {"restart", s.Restart},
		{"start-at", s.StartAt != ""}, {"allow-shard", s.AllowShard},
	} {
		c.bad(one.given, one.setting, "cannot go with --copy files, which copies a replica set as it is", instead)
	}
	c.bad(s.Mode != job.ModeAll, "mode", "cannot go with --copy files, which copies and follows", "use --mode all")
	c.bad(s.OnExisting != job.ExistingFail, "on-existing", "cannot go with --copy files, which makes the target",
		"use --on-existing fail")
	c.bad(s.Capture == job.CaptureStreams, flagCapture, "cannot go with --copy files, which continues in the oplog",
		"use --capture auto or oplog")
}

// agent checks the address of an agent, which gets the token.
func (c *checker) agent(setting, address, token string) {
	u, err := url.Parse(address)
	switch {
	case address == "":
		c.fail(setting, "is missing", "give --"+setting+" https://host:port")
	case err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.Scheme != "https" && u.Scheme != "http":
		c.fail(setting, "is not the address of an agent", "give --"+setting+" https://host:port")
	case u.Scheme == "http" && !loopback.Host(u.Hostname()):
		c.fail(setting, "is not encrypted, and not on this machine", "use https")
	case !loopback.Host(u.Hostname()):
		c.bad(token == "", flagTokenFile, "is missing: an agent on another machine asks for it",
			"give the file that it was started with")
	}
}
