package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	defaultVersion  = "6.0"
	defaultTopology = "rs:1"
	// defaultOplogMB is the least that replSetResizeOplog accepts, so that a test may resize in both directions.
	defaultOplogMB = 990
	leastCacheGB   = 0.25 // the least that mongod's flag takes.
	defaultCacheGB = 0.5  // defaultCacheGB keeps several clusters side by side on a small machine.
	maxVoting      = 7    // maxVoting and maxMembers are limits of the server.
	maxMembers     = 50
)

// Options describes one cluster. The zero value is a set of one member, without users, in a temporary directory.
type Options struct {
	Name     string // Name of the cluster and its replica set; empty is "rs" and a random suffix.
	Topology string // Topology is "rs:N" for N data members or "standalone"; empty is "rs:1".
	// Version is a series ("4.2", "4.4", "5.0", "6.0", "7.0") or a full version ("6.0.27"); empty is "6.0".
	Version string
	Port    int  // Port is the first member's port, the others follow it; 0 means free ports.
	Auth    bool // Auth creates a SCRAM-SHA-256 root user, and a key file between members.
	// TLS makes an authority and certificates and refuses plain connections. With Auth, the client certificate's
	// subject becomes a root user too (see [Cluster.X509URI]).
	TLS  bool
	Role Role // Role makes the set a part of a sharded cluster (see package sharded).
	// Secrets is a directory for key file and certificates that clusters share; empty is the cluster's own.
	Secrets string
	// Dir holds the data, and a later Start with the same options continues; empty is a temporary directory, below
	// MILLRACE_LAB_DIR if set.
	Dir     string
	OplogMB int // OplogMB is the size of the oplog; 0 means 990, the server's minimum for a later resize.
	// CacheGB is WiredTiger's cache; 0 means 0.5. Less than 0.25, which mongod refuses, goes to the engine.
	CacheGB float64
	// Cores is how many processors each member may use, also a part of one; 0 means all. See ErrNoQuota.
	Cores float64
	// DiskSpeed slows each member's files; the zero value leaves them as they are. See ErrNoSlowDisk.
	DiskSpeed DiskSpeed
	// LeanJournal makes journal files small and on demand, not three of 100 MB ahead: members start sooner.
	LeanJournal bool
	// ElectionTimeout is how long a set waits for its primary before it elects another; 0 means two seconds.
	ElectionTimeout time.Duration
	SetParameters   map[string]string // SetParameters are passed on as --setParameter.
	// TestCommands lets servers take commands that are for tests, such as configureFailPoint.
	TestCommands bool
	Args         []string // Args are further arguments for each mongod.
	Proxy        bool     // Proxy puts a fault proxy before each member (see [Proxy]).
	// PeerLatency delays each answer of a member to another, as between distant hosts; it implies Proxy. That
	// traffic then goes through this process.
	PeerLatency time.Duration
	// Front, unless nil, starts what stands before each member, behind its Proxy if it has one. It listens on an address
	// and forwards to the member's own. The set knows its members by it, and it is closed with them.
	Front func(ctx context.Context, listen, upstream string) (Front, error) `json:"-"`
	// DiskMB gives each member a file system in memory for its data (see [Disk]); 0 means none. The error is
	// ErrNoDisk where there can be none. Stop removes the data, so Dir must be empty.
	DiskMB int
	Logger *slog.Logger // Logger receives what happens to the cluster; nil discards it.

	// detached processes outlive the starter; launched is called once they run. Launch.Part sets both.
	detached bool
	launched func(*Cluster) error
}

// Front stands before a member.
type Front interface {
	Host() string // Host is the host:port on which it listens.
	Close() error
}

// proxied reports members that are known by another address than their own.
func (o Options) proxied() bool { return o.Proxy || o.Front != nil }

// Role is what the members of a sharded cluster's set are started as.
type Role string

// The roles, named as mongod's flags are. The zero value is a set of its own.
const (
	ConfigServer Role = "configsvr"
	ShardServer  Role = "shardsvr"
)

// topology is the parsed form of Options.Topology.
type topology struct {
	members    int
	replicaSet bool
}

func parseTopology(s string) (topology, error) {
	if s == "standalone" {
		return topology{members: 1}, nil
	}
	count, ok := strings.CutPrefix(s, "rs:")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 || n > maxMembers {
		return topology{}, fmt.Errorf("lab: topology %q is unknown; use standalone or rs:N with N from 1 to %d", s,
			maxMembers)
	}
	return topology{members: n, replicaSet: true}, nil
}

// MembersOf is how many servers a cluster of a topology has, that of the default for "", 0 for one that is unknown.
func MembersOf(text string) int {
	t, _ := parseTopology(cmp.Or(text, defaultTopology))
	return t.members
}

// resolve fills in what is left open, from the cluster in the directory or else from the defaults.
func (o Options) resolve() (Options, *layout, error) {
	o.Topology = cmp.Or(o.Topology, defaultTopology)
	found, err := readLayout(o.Dir)
	if err != nil {
		return o, nil, err
	}
	if o, err = found.adopt(o); err != nil {
		return o, nil, err
	}
	o, err = o.withDefaults()
	return o, found, err
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		var err error
		if o.Name, err = RandomName("rs"); err != nil {
			return o, err
		}
	}
	if err := checkName(o.Name); err != nil {
		return o, err
	}
	o.Version, o.OplogMB = cmp.Or(o.Version, defaultVersion), cmp.Or(o.OplogMB, defaultOplogMB)
	o.CacheGB, o.Proxy = cmp.Or(o.CacheGB, defaultCacheGB), o.Proxy || o.PeerLatency > 0
	if o.Role != "" && !strings.HasPrefix(o.Topology, "rs:") {
		return o, fmt.Errorf("lab: a %s is a replica set, not a %s", o.Role, o.Topology)
	}
	if o.DiskMB != 0 && o.Dir != "" {
		return o, errors.New("lab: data on small disks cannot be kept; leave Dir empty")
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o, nil
}

// LeanJournal is the setting of the engine for [Options.LeanJournal].
const LeanJournal = "log=(prealloc=false,file_max=10MB)"

// engine returns settings for WiredTiger that mongod has no flags for.
func (o Options) engine() string {
	var parts []string
	if o.LeanJournal {
		parts = append(parts, LeanJournal)
	}
	if o.CacheGB < leastCacheGB {
		parts = append(parts, fmt.Sprintf("cache_size=%d", int64(o.CacheGB*(1<<30))))
	}
	return strings.Join(parts, ",")
}

// checkName keeps names usable as a file name and a replica-set name alike.
func checkName(name string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`).MatchString(name) {
		return fmt.Errorf("lab: cluster name %q is not usable; use letters, digits, - and _", name)
	}
	return nil
}

// RandomName makes a name for a cluster that was given none: a prefix and random digits.
func RandomName(prefix string) (string, error) {
	b := make([]byte, 4)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("lab: read random bytes: %w", err)
	}
	return prefix + hex.EncodeToString(b), nil
}

// Wrap adds what failed to an error; nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
