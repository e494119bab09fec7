package config

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/seed"
)

// Seed are the settings of `millrace seed local`, `serve`, `pull` and `agent`; each has a part of them.
type Seed struct {
	Common
	seed.ServeOptions // the member that is copied, and its agent
	seed.Options      // the copy, and the new member

	Listen, TokenFile, TLSCert, TLSKey string // of the agent
	From, TLSCA                        string
	Compress, DryRun, Start            bool
	Own                                seed.SetMember // that an agent makes

	command, maxRateBytes string
}

// Bind implements Settings.
func (s *Seed) Bind(fs *pflag.FlagSet, command string) {
	s.command = command
	dir, m := &s.DBPath, &s.Member
	if command == CommandSeedPull || command == CommandSeedAgent {
		dir = &s.Pull.DBPath
	}
	Bind(fs, flagTexts, command, s.Common.vars(fs), Vars{
		flagSeedURI: &s.URI, flagFromURI: &s.URI, flagSeedDBPath: dir, "from-dbpath": &s.DBPath,
		"to-dbpath": &s.Pull.DBPath, "way": (*string)(&s.Way), "max-behind": &s.MaxBehind, "lock-limit": &s.LockLimit,
		"allow-primary": &s.AllowPrimary, "yes-block-all-writes": &s.YesBlockAllWrites, flagSpoolDir: &s.SpoolDir,

		"listen": &s.Listen, flagTokenFile: &s.TokenFile, flagListenCert: &s.TLSCert, flagListenKey: &s.TLSKey,
		"pullers": &s.Pullers, "from": &s.From, flagCA: &s.TLSCA, "zstd": &s.Compress, "dry-run": &s.DryRun,
		"no-reflink": &s.Pull.NoClone, "workers": &s.Workers, flagRateBytes: &s.maxRateBytes,

		"start": &s.Start, flagSetURI: &m.SetURI, "join": &m.Join, "replace": &m.Replace, "join-votes": &m.Votes,
		"join-priority": &m.Priority, "join-hidden": &m.Hidden, "catch-up": &m.CatchUp, "as-new-set": &m.NewSet,
		"new-set-host": &m.NewSetHost, "keep-expiry": &m.KeepExpiry, "mongod": &m.Mongod,

		"member": &s.Own.Host, "votes": &s.Own.Votes, "priority": &s.Own.Priority, "hidden": &s.Own.Hidden,
	})
}

// Validate implements Settings; args is the command of the new member.
func (s *Seed) Validate(o Origins, args []string) Problems {
	c := newChecker(&s.Common, o)
	c.notBelowZero("workers", s.Workers)
	if s.command != CommandSeedAgent { // whose rate is the job's
		s.Rate = c.bytes(flagRateBytes, s.maxRateBytes, "use an amount such as 50MB, or 0")
	}
	limit := pace.New(pace.Rates{Bytes: s.Rate})
	s.Pull.Workers, s.Member.Command = s.Workers, args
	switch s.command {
	case CommandSeedServe:
		s.Limit = limit
		c.seedSource(s, flagSeedURI, flagSeedDBPath)
		c.bad(s.Pullers < 1, "pullers", fmt.Sprintf("%d is too small", s.Pullers), "use 1 or more")
		c.seedAgent(s)
	case CommandSeedAgent:
		c.directory(flagSeedDBPath, s.Pull.DBPath)
		c.seedAgent(s)
		c.newMember(&s.Own, args)
	case CommandSeedPull:
		s.Pull.Limit = limit
		c.seedTarget(s, flagSeedDBPath)
		c.agent("from", s.From, s.TokenFile)
	case CommandSeedLocal:
		s.Limit = limit // the agent holds to it
		c.seedSource(s, flagFromURI, "from-dbpath")
		c.seedTarget(s, "to-dbpath")
	}
	if s.Way == "auto" {
		s.Way = ""
	}
	return c.problems
}

func (c *checker) seedSource(s *Seed, uri, dir string) {
	if s.URI != "" {
		c.uri(uri, s.URI)
	}
	c.directory(dir, s.DBPath)
	c.bad(s.LockLimit < time.Second, "lock-limit", s.LockLimit.String()+" is too short", "use a second or more")
	c.notNegative("max-behind", s.MaxBehind)
	c.bad(s.AllowPrimary != s.YesBlockAllWrites, "allow-primary", "is half of what is needed",
		"give both --allow-primary and --yes-block-all-writes, or, better, copy a secondary")
}

func (c *checker) newMember(m *seed.SetMember, command []string) {
	c.bad(m.Host == "", "member", "is missing", "give the member's address in the new set, host:port")
	c.hostPort("member", m.Host)
	c.bad(m.Votes < 0 || m.Votes > 1 || m.Priority < 0 || m.Priority > 1000, "votes", "and --priority make no sense",
		"use 0 or 1 vote, and a priority from 0 to 1000")
	c.bad((m.Hidden || m.Votes == 0) && m.Priority != 0, "priority",
		"has to be 0 for a hidden member, or one without a vote", "add --priority 0")
	c.bad(len(command) == 0, "dbpath", "has no mongod: there is no command after --",
		"give the command of the new member, -- mongod --dbpath … --replSet …")
}

func (c *checker) directory(setting, value string) {
	c.bad(value == "", setting, "is missing", "name a data directory")
}

func (c *checker) seedAgent(s *Seed) {
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		c.fail("listen", fmt.Sprintf("%q is not an address", s.Listen), "use host:port")
		return
	}
	if loopback.Host(host) {
		return
	}
	c.bad(s.TLSCert == "", flagListenCert, "is missing: all data of the member would cross the network in the clear",
		"give a certificate, or listen on 127.0.0.1")
	c.bad(s.TokenFile == "", flagTokenFile, "is missing: anybody could fetch all data of the member",
		"give a file with a secret, or listen on 127.0.0.1")
}

func (c *checker) seedTarget(s *Seed, dir string) {
	m := &s.Member
	c.directory(dir, s.Pull.DBPath)
	c.report(s.Report)
	c.notNegative(flagProgress, s.ProgressInterval)
	c.bad(s.Start != (len(m.Command) > 0), "start", "and the command after -- belong together",
		"give --start -- mongod --dbpath … --replSet …")
	c.hostPort("join", m.Join)
	c.hostPort("new-set-host", m.NewSetHost)
	if m.SetURI != "" {
		c.uri(flagSetURI, m.SetURI)
	}
	c.bad(m.Join != "" && (!s.Start || m.NewSet != ""), "join", "needs --start, and goes not with --as-new-set",
		"start the member with millrace, or add it with rs.add()")
	c.hostPort("replace", m.Replace)
	c.bad(m.Replace != "" && (m.Join != "" || m.NewSet != ""), "replace", "goes not with --join or --as-new-set",
		"use --join for a member that the set does not have yet")
	c.bad(m.Join+m.Replace != "" && m.SetURI == "" && s.URI == "", flagSetURI, "is missing", "give the address of the set")
	c.bad(m.Votes < 0 || m.Votes > 1 || m.Priority < 0 || m.Priority > 1000, "join-votes",
		"and --join-priority make no sense", "use 0 or 1 vote, and a priority from 0 to 1000")
	c.bad((m.Hidden || m.Votes == 0) && m.Priority != 0 && m.Join != "", "join-priority",
		"has to be 0 for a hidden member, or one without a vote", "add --join-priority 0")
	c.bad(m.NewSet != "" && s.Start && m.NewSetHost == "", "new-set-host", "is missing",
		"give the address under which the new set is to be reached, host:port")
	c.bad(m.NewSet == "" && m.NewSetHost != "", "new-set-host", "goes with --as-new-set only", "leave it out")
	c.bad(m.NewSet == "" && m.KeepExpiry, "keep-expiry", "goes with --as-new-set only", "leave it out")
	c.notNegative("catch-up", m.CatchUp)
}

func (c *checker) hostPort(setting, value string) {
	if value == "" {
		return
	}
	if host, port, err := net.SplitHostPort(value); err != nil || host == "" || port == "" {
		c.fail(setting, fmt.Sprintf("%q is not an address", value), "use host:port")
	}
}
