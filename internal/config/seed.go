package config

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/seed"
)

// Seed are the settings of `millrace seed local`, `serve` and `pull`; each has a part of them.
type Seed struct {
	Common
	seed.ServeOptions // the member that is copied, and its agent
	seed.Options      // the copy, and the new member

	Listen, TokenFile, TLSCert, TLSKey string // of the agent
	From, TLSCA                        string
	Compress, DryRun, Start            bool

	command, maxRateBytes string
}

func (s *Seed) bindMember(fs *pflag.FlagSet, uri, dir string) {
	BindURI(fs, &s.URI, uri, "the one member to copy", "leave it out for a member that is shut down")
	fs.StringVar(&s.DBPath, dir, "", "that member's data `directory`")
	s.bindSource(fs)
}

// Bind implements Settings.
func (s *Seed) Bind(fs *pflag.FlagSet, command string) {
	const ofSet = "the set, for --join and --replace"
	s.command = command
	switch command {
	case CommandSeedServe:
		s.bindMember(fs, flagSeedURI, flagSeedDBPath)
		s.bindAgent(fs)
	case CommandSeedPull:
		fs.StringVar(&s.From, "from", "", "`address` of the agent, https://host:port")
		s.bindTarget(fs, flagSeedDBPath)
		fs.StringVar(&s.TLSCA, flagCA, "", caUsage)
		fs.StringVar(&s.TokenFile, flagTokenFile, "",
			"`file` with the agent's token\nby default that of an agent of the same user on this machine")
		fs.BoolVar(&s.Compress, "zstd", false, "compress what the agent sends, for slow networks")
		BindURI(fs, &s.Member.SetURI, flagSetURI, ofSet)
	case CommandSeedLocal:
		s.bindMember(fs, flagFromURI, "from-dbpath")
		s.bindTarget(fs, "to-dbpath")
		BindURI(fs, &s.Member.SetURI, flagSetURI, ofSet, "by default --from-uri")
		fs.BoolVar(&s.DryRun, "dry-run", false, "show plan and precheck, copy nothing\nexit code 2 when a check fails")
		fs.BoolVar(&s.Pull.NoClone, "no-reflink", false,
			"copy also where the file system can share blocks (XFS, btrfs)")
	}
	fs.IntVar(&s.Workers, "workers", 4, "ranges read, or files compared, at once")
	fs.StringVar(&s.maxRateBytes, flagRateBytes, "0",
		"most `bytes` copied a second, such as 50MB; 0 is unlimited")
	s.Common.bind(fs)
}

func (s *Seed) bindSource(fs *pflag.FlagSet) {
	Choice(fs, (*string)(&s.Way), "way", "auto* backup-cursor fsync-lock stopped",
		"how the files are made consistent: auto, backup-cursor, fsync-lock or stopped\nauto takes the backup cursor if "+
			"the server has one, else the lock; without the member's URI, stopped")
	fs.DurationVar(&s.MaxBehind, "max-behind", 10*time.Second,
		"with a backup cursor, longest time that the copy may be behind the member")
	fs.DurationVar(&s.LockLimit, "lock-limit", time.Minute,
		"longest fsyncLock; the lock ends after it in any case")
	fs.BoolVar(&s.AllowPrimary, "allow-primary", false, "permit locking a primary; needs --yes-block-all-writes")
	fs.BoolVar(&s.YesBlockAllWrites, "yes-block-all-writes", false,
		"confirm that a locked primary blocks all writes to the set")
	fs.StringVar(&s.SpoolDir, flagSpoolDir, "",
		"`directory` for what changes during the copy; by default a temporary one")
}

func (s *Seed) bindAgent(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:7117",
		"`address` to listen on, host:port\nother than loopback needs --listen-tls-cert and --token-file")
	fs.StringVar(&s.TokenFile, flagTokenFile, "",
		"`file` with the secret that pullers must know\nby default a new one, for pullers of "+
			"the same user on this machine")
	bindTLS(fs, &s.TLSCert, &s.TLSKey, "read once")
	fs.IntVar(&s.Pullers, "pullers", 1,
		"pullers to wait for before the lock, which serves them all")
}

func (s *Seed) bindTarget(fs *pflag.FlagSet, dir string) {
	fs.StringVar(&s.Pull.DBPath, dir, "",
		"the new member's data `directory`\nempty, or with a copy to complete; see --replace")
	fs.BoolVar(&s.Start, "start", false, "start the new member with the command after --")
	fs.StringVar(&s.Member.Join, "join", "", "add the started member to the set under this `address`, host:port")
	fs.StringVar(&s.Member.Replace, "replace", "",
		"`address` of a stopped member whose data the copy replaces, host:port\nold data are removed if they are clearly "+
			"its own; the set's configuration stays")
	fs.IntVar(&s.Member.Votes, "join-votes", 1, "votes of the new member after catch-up, 0 or 1")
	fs.Float64Var(&s.Member.Priority, "join-priority", 1, "priority of the new member after catch-up, 0 to 1000")
	fs.BoolVar(&s.Member.Hidden, "join-hidden", false, "hide the new member from clients; needs --join-priority 0")
	fs.DurationVar(&s.Member.CatchUp, "catch-up", 24*time.Hour,
		"longest wait until the new member has caught up")
	fs.StringVar(&s.Member.NewSet, "as-new-set", "",
		"make the copy an independent replica set of this `name`")
	fs.StringVar(&s.Member.NewSetHost, "new-set-host", "",
		"`address` of the new set's only member, host:port; required with --start")
	fs.BoolVar(&s.Member.KeepExpiry, "keep-expiry", false,
		"let the new set expire documents at once\nby default they stay "+
			"until millrace sync finalizes")
	fs.StringVar(&s.Member.Mongod, "mongod", "",
		"`program` that makes the copy independent\nby default the first word after --, or mongod on PATH")
	fs.StringVar(&s.Report, "report", "", "write the final report as JSON to this `file`")
	s.bindProgress(fs, "")
}

// Validate implements Settings; args is the command of the new member.
func (s *Seed) Validate(o Origins, args []string) Problems {
	c := newChecker(&s.Common, o)
	c.notBelowZero("workers", s.Workers)
	s.Rate = c.bytes(flagRateBytes, s.maxRateBytes, "use an amount such as 50MB, or 0")
	limit := pace.New(pace.Rates{Bytes: s.Rate})
	s.Pull.Workers, s.Member.Command = s.Workers, args
	switch s.command {
	case CommandSeedServe:
		s.Limit = limit
		c.seedSource(s, flagSeedURI, flagSeedDBPath)
		c.seedAgent(s)
	case CommandSeedPull:
		s.Pull.Limit = limit
		c.seedTarget(s, flagSeedDBPath)
		c.seedFrom(s)
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

func (c *checker) directory(setting, value string) {
	c.bad(value == "", setting, "is missing", "name a data directory")
}

func (c *checker) seedAgent(s *Seed) {
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		c.fail("listen", fmt.Sprintf("%q is not an address", s.Listen), "use host:port")
		return
	}
	c.bad(s.Pullers < 1, "pullers", fmt.Sprintf("%d is too small", s.Pullers), "use 1 or more")
	if loopback.Host(host) {
		return
	}
	c.bad(s.TLSCert == "", flagListenCert, "is missing: all data of the member would cross the network in the clear",
		"give a certificate, or listen on 127.0.0.1")
	c.bad(s.TokenFile == "", flagTokenFile, "is missing: anybody could fetch all data of the member",
		"give a file with a secret, or listen on 127.0.0.1")
}

func (c *checker) seedFrom(s *Seed) {
	u, err := url.Parse(s.From)
	switch {
	case s.From == "" || err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.Scheme != "https" && u.Scheme != "http":
		c.fail("from", "is not the address of an agent", "give --from https://host:port")
	case u.Scheme == "http" && !loopback.Host(u.Hostname()):
		c.fail("from", "is not encrypted, and not on this machine", "use https")
	case !loopback.Host(u.Hostname()):
		c.bad(s.TokenFile == "", flagTokenFile, "is missing: an agent on another machine asks for it",
			"give the file that it was started with")
	}
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
