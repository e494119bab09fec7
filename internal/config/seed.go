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
)

// Seed are the settings of `millrace seed local`, `serve` and `pull`; each has
// a part of them.
type Seed struct {
	Common

	// The member that is copied.
	SourceURI, SourceDBPath, Way    string
	LockLimit, MaxBehind            time.Duration
	AllowPrimary, YesBlockAllWrites bool
	SpoolDir                        string
	// The agent.
	Listen, TokenFile, TLSCert, TLSKey string
	Pullers                            int
	// The copy.
	From, TLSCA, TargetDBPath string
	Compress                  bool
	Workers                   int
	MaxRateBytes              string
	DryRun, NoReflink         bool
	Report                    string
	// The new member.
	Start                      bool
	Join, SetURI               string
	JoinVotes                  int
	JoinPriority               float64
	JoinHidden                 bool
	CatchUp                    time.Duration
	NewSet, NewSetHost, Mongod string
	KeepExpiry                 bool

	command string
}

// Bind registers the settings of command as flags with their defaults.
func (s *Seed) Bind(fs *pflag.FlagSet, command string) {
	s.command = command
	switch command {
	case CommandSeedServe:
		fs.StringVar(&s.SourceURI, flagSeedURI, "", "connection string `URI` of the one member to copy; with a password, set MILLRACE_URI or a config file instead; leave it out for a member that is shut down")
		fs.StringVar(&s.SourceDBPath, flagSeedDBPath, "", "that member's data `directory`")
		s.bindSource(fs)
		s.bindAgent(fs)
	case CommandSeedPull:
		fs.StringVar(&s.From, "from", "", "`address` of the agent: https://host:port")
		fs.StringVar(&s.TargetDBPath, flagSeedDBPath, "", "the new member's data `directory`: empty, or one of a copy to complete")
		fs.StringVar(&s.TLSCA, "tls-ca", "", "`file` with the certificate authority of the agent; by default the system's")
		fs.StringVar(&s.TokenFile, "token-file", "", "`file` with the agent's token; by default that which an agent of the same user on this machine made")
		fs.BoolVar(&s.Compress, "zstd", false, "have the agent compress what it sends: for slow networks")
		fs.StringVar(&s.SetURI, flagSetURI, "", "connection string `URI` of the set to join; with a password, set MILLRACE_SET_URI or a config file instead")
		s.bindTarget(fs)
	case CommandSeedLocal:
		fs.StringVar(&s.SourceURI, flagFromURI, "", "connection string `URI` of the one member to copy; with a password, set MILLRACE_FROM_URI or a config file instead; leave it out for a member that is shut down")
		fs.StringVar(&s.SourceDBPath, "from-dbpath", "", "that member's data `directory`")
		fs.StringVar(&s.TargetDBPath, "to-dbpath", "", "the new member's data `directory`: empty, or one of a copy to complete")
		fs.StringVar(&s.SetURI, flagSetURI, "", "connection string `URI` of the set to join, if --from-uri is not given; with a password, set MILLRACE_SET_URI or a config file instead")
		s.bindSource(fs)
		fs.BoolVar(&s.DryRun, "dry-run", false, "show the plan and the precheck, and copy nothing")
		fs.BoolVar(&s.NoReflink, "no-reflink", false, "copy also where the file system lets both directories share blocks (XFS, btrfs)")
		s.bindTarget(fs)
	}
	fs.IntVar(&s.Workers, "workers", 4, "ranges read, or files compared, at once")
	fs.StringVar(&s.MaxRateBytes, flagRateBytes, "0", "most `bytes` copied in a second, such as 50MB or 8MiB; 0 is unlimited")
	s.Common.bind(fs)
}

func (s *Seed) bindSource(fs *pflag.FlagSet) {
	fs.StringVar(&s.Way, "way", "auto", "how the files are made to hold one moment: auto (backup-cursor where the server has it), backup-cursor, fsync-lock or stopped")
	fs.DurationVar(&s.MaxBehind, "max-behind", 10*time.Second, "backup-cursor: add the journal until the copy is no further behind the member than this")
	fs.DurationVar(&s.LockLimit, "lock-limit", time.Minute, "longest time that fsyncLock may last; the lock is let go after it, whatever happens")
	fs.BoolVar(&s.AllowPrimary, "allow-primary", false, "permit to lock a primary, together with --yes-block-all-writes")
	fs.BoolVar(&s.YesBlockAllWrites, "yes-block-all-writes", false, "yes, while the primary is locked nothing can be written to the whole set")
	fs.StringVar(&s.SpoolDir, "spool-dir", "", "`directory` with room for what changes during the copy; by default a temporary one")
}

func (s *Seed) bindAgent(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:7117", "`address` to listen on, host:port; anything but loopback needs --tls-cert and --token-file")
	fs.StringVar(&s.TokenFile, "token-file", "", "`file` with the secret that pullers have to know; by default a new one is made, for pullers of the same user on this machine")
	fs.StringVar(&s.TLSCert, "tls-cert", "", "`file` with the agent's certificate (PEM)")
	fs.StringVar(&s.TLSKey, "tls-key", "", "`file` with its key; by default the same as --tls-cert")
	fs.IntVar(&s.Pullers, "pullers", 1, "pullers to wait for before the member is locked, so that one lock serves them all")
}

func (s *Seed) bindTarget(fs *pflag.FlagSet) {
	fs.BoolVar(&s.Start, "start", false, "start the new member with the command after --")
	fs.StringVar(&s.Join, "join", "", "add the started member to the set under this `address`, host:port")
	fs.IntVar(&s.JoinVotes, "join-votes", 1, "votes of the new member once it has caught up: 0 or 1")
	fs.Float64Var(&s.JoinPriority, "join-priority", 1, "priority of the new member once it has caught up")
	fs.BoolVar(&s.JoinHidden, "join-hidden", false, "hide the new member from clients; takes --join-priority 0")
	fs.DurationVar(&s.CatchUp, "catch-up", 24*time.Hour, "longest time to wait for the new member to become a secondary that has caught up")
	fs.StringVar(&s.NewSet, "as-new-set", "", "make the copy an independent replica set of this `name` instead of a member")
	fs.StringVar(&s.NewSetHost, "new-set-host", "", "`address` of the new set's only member, host:port; needed to start it")
	fs.BoolVar(&s.KeepExpiry, "keep-expiry", false, "let the new set expire documents at once, for one that is not to follow its old set; else that is held back until millrace sync finalizes")
	fs.StringVar(&s.Mongod, "mongod", "", "`program` that makes the copy independent; by default the first word after --, or mongod on PATH")
	fs.StringVar(&s.Report, "report", "", "write the final report as JSON to this `file`")
}

const (
	flagFromURI    = "from-uri"
	flagSeedURI    = "uri"
	flagSetURI     = "set-uri"
	flagSeedDBPath = "dbpath"
)

// Validate checks the settings; args is the command of the new member. The
// error is a Problems.
func (s *Seed) Validate(origins Origins, args []string) error {
	c := &checker{origins: origins}
	c.common(s.Common)
	c.notBelowZero("workers", s.Workers)
	if _, err := parseBytes(s.MaxRateBytes); err != nil {
		c.fail(flagRateBytes, err.Error(), "use an amount such as 50MB, or 0")
	}
	if s.command != CommandSeedPull {
		c.seedSource(s)
	}
	if s.command == CommandSeedServe {
		c.seedAgent(s)
	} else {
		c.seedTarget(s, args)
	}
	if s.command == CommandSeedPull {
		c.seedFrom(s)
	}
	return c.problems.orNil()
}

func (c *checker) seedSource(s *Seed) {
	c.oneOf("way", s.Way, "auto", "backup-cursor", "fsync-lock", "stopped")
	uri, dir := flagFromURI, "from-dbpath"
	if s.command == CommandSeedServe {
		uri, dir = flagSeedURI, flagSeedDBPath
	}
	if s.SourceURI != "" {
		c.uri(uri, s.SourceURI)
	}
	c.directory(dir, s.SourceDBPath)
	c.bad(s.LockLimit < time.Second, "lock-limit", s.LockLimit.String()+" is too short", "use a second or more")
	c.notNegative("max-behind", s.MaxBehind)
	c.bad(s.AllowPrimary != s.YesBlockAllWrites, "allow-primary", "is half of what is needed", "give both --allow-primary and --yes-block-all-writes, or, better, copy a secondary")
}

func (c *checker) directory(setting, value string) {
	c.bad(value == "", setting, "is missing", "name a data directory")
}

func (c *checker) seedAgent(s *Seed) {
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		c.fail("listen", fmt.Sprintf("%q is no address", s.Listen), "use host:port")
		return
	}
	c.bad(s.Pullers < 1, "pullers", fmt.Sprintf("%d is too small", s.Pullers), "use 1 or more")
	if loopback.Host(host) {
		return
	}
	c.bad(s.TLSCert == "", "tls-cert", "is missing: all data of the member would cross the network in the clear", "give a certificate, or listen on 127.0.0.1")
	c.bad(s.TokenFile == "", "token-file", "is missing: anybody could fetch all data of the member", "give a file with a secret, or listen on 127.0.0.1")
}

func (c *checker) seedFrom(s *Seed) {
	u, err := url.Parse(s.From)
	switch {
	case s.From == "" || err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.Scheme != "https" && u.Scheme != "http":
		c.fail("from", "is no address of an agent", "give --from https://host:port")
	case u.Scheme == "http" && !loopback.Host(u.Hostname()):
		c.fail("from", "is not encrypted, and not on this machine", "use https")
	case !loopback.Host(u.Hostname()):
		c.bad(s.TokenFile == "", "token-file", "is missing: an agent on another machine asks for it", "give the file that it was started with")
	}
}

func (c *checker) seedTarget(s *Seed, args []string) {
	dir := "to-dbpath"
	if s.command == CommandSeedPull {
		dir = flagSeedDBPath
	}
	c.directory(dir, s.TargetDBPath)
	c.report(s.Report)
	c.bad(s.Start != (len(args) > 0), "start", "and the command after -- belong together", "give --start -- mongod --dbpath … --replSet …")
	c.hostPort("join", s.Join)
	c.hostPort("new-set-host", s.NewSetHost)
	if s.SetURI != "" {
		c.uri(flagSetURI, s.SetURI)
	}
	c.bad(s.Join != "" && (!s.Start || s.NewSet != ""), "join", "needs --start, and goes not with --as-new-set", "start the member with millrace, or add it with rs.add()")
	c.bad(s.Join != "" && s.SetURI == "" && s.SourceURI == "", flagSetURI, "is missing", "give the address of the set that the new member is to join")
	c.bad(s.JoinVotes < 0 || s.JoinVotes > 1 || s.JoinPriority < 0 || s.JoinPriority > 1000, "join-votes", "and --join-priority make no sense", "use 0 or 1 vote, and a priority from 0 to 1000")
	c.bad((s.JoinHidden || s.JoinVotes == 0) && s.JoinPriority != 0 && s.Join != "", "join-priority", "has to be 0 for a hidden member, or one without a vote", "add --join-priority 0")
	c.bad(s.NewSet != "" && s.Start && s.NewSetHost == "", "new-set-host", "is missing", "give the address under which the new set is to be reached, host:port")
	c.bad(s.NewSet == "" && s.NewSetHost != "", "new-set-host", "goes with --as-new-set only", "leave it out")
	c.bad(s.NewSet == "" && s.KeepExpiry, "keep-expiry", "goes with --as-new-set only", "leave it out")
	c.notNegative("catch-up", s.CatchUp)
}

func (c *checker) hostPort(setting, value string) {
	if value == "" {
		return
	}
	if host, port, err := net.SplitHostPort(value); err != nil || host == "" || port == "" {
		c.fail(setting, fmt.Sprintf("%q is no address", value), "use host:port")
	}
}

// Limiter holds a copy to the rate of the settings, which have to be valid.
func (s *Seed) Limiter() *pace.Limiter {
	return pace.New(pace.Rates{Bytes: s.Rate()})
}

// Rate is that rate in bytes a second; 0 is none.
func (s *Seed) Rate() int64 {
	bytes, _ := parseBytes(s.MaxRateBytes)
	return bytes
}
