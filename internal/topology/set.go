package topology

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// The states of a member that matter here, as replSetGetStatus names them.
const (
	StatePrimary   = "PRIMARY"
	StateSecondary = "SECONDARY"
	StateArbiter   = "ARBITER"
	StateStartup2  = "STARTUP2"
	// StateUnknown is a member that nobody has heard of.
	StateUnknown = "UNKNOWN"
)

// Set is a replica set as it was seen at one moment.
type Set struct {
	Name          string    `json:"set"`
	ID            string    `json:"id,omitempty"` // replicaSetId in hexadecimal digits
	At            time.Time `json:"at"`
	Term          int64     `json:"term"`
	ConfigVersion int64     `json:"configVersion"`
	// Chaining is settings.chainingAllowed.
	Chaining bool     `json:"chainingAllowed"`
	Members  []Member `json:"members"` // in the order of the configuration
}

// Member is one member of a Set.
type Member struct {
	ID           int               `json:"id"`
	Host         string            `json:"host"`
	Votes        int               `json:"votes"`
	Priority     float64           `json:"priority"`
	Hidden       bool              `json:"hidden,omitempty"`
	Arbiter      bool              `json:"arbiter,omitempty"`
	DelaySeconds int64             `json:"delaySeconds,omitempty"`
	NoIndexes    bool              `json:"noIndexes,omitempty"` // buildIndexes:false
	Tags         map[string]string `json:"tags,omitempty"`

	State   string `json:"state"`
	Healthy bool   `json:"healthy"`
	// InitialSync is a member that copies its data: it must not be disturbed.
	InitialSync bool `json:"initialSync,omitempty"`
	// Source is the host whose oplog the member fetches, "" for none.
	Source string `json:"source,omitempty"`
	// SourceSince is when the observer first saw this source; the server does
	// not keep it.
	SourceSince time.Time `json:"sourceSince,omitzero"`
	// Since is the election of a primary, the start of any other member.
	Since time.Time `json:"since,omitzero"`

	Applied mongo.OpTime `json:"-"`
	Durable mongo.OpTime `json:"-"`
	// LagApplied and LagDurable are seconds behind what the primary had applied
	// when it was asked, just before; -1 is unknown.
	LagApplied float64 `json:"lagApplied"`
	LagDurable float64 `json:"lagDurable"`
	// Ping holds this member's own round-trip times in milliseconds, by host.
	Ping map[string]float64 `json:"pingMs,omitempty"`

	// Asked says that the member itself was asked. Otherwise the facts come
	// from another member's heartbeats and are AgeSeconds old.
	Asked      bool    `json:"asked"`
	AgeSeconds float64 `json:"ageSeconds"`
	Error      string  `json:"error,omitempty"` // why it was not asked

	Version string `json:"version,omitempty"`
	// Override is enableOverrideClusterChainingSetting: the member may chain
	// although the set may not. It is absent on servers that do not have it.
	Override *bool `json:"chainingOverride,omitempty"`
	// CPU is how many cores the server used since it was last asked, -1 unknown.
	CPU float64 `json:"cpuCores"`

	appliedAt, durableAt time.Time // wall clock of the primary that wrote it
}

// Primary returns the primary, nil when there is none.
func (s *Set) Primary() *Member {
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.State == StatePrimary && m.Healthy })
	if i < 0 {
		return nil
	}
	return &s.Members[i]
}

// Member returns the member of that address, nil when there is none.
func (s *Set) Member(host string) *Member {
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Host == host })
	if host == "" || i < 0 {
		return nil
	}
	return &s.Members[i]
}

// Tree returns the source of each member that has one, by host.
func (s *Set) Tree() map[string]string {
	tree := map[string]string{}
	for _, m := range s.Members {
		if m.Source != "" {
			tree[m.Host] = m.Source
		}
	}
	return tree
}

// MayChain says that the set's configuration, or the member's own override,
// lets the member fetch from another secondary.
func (s *Set) MayChain(m *Member) bool { return s.Chaining || m.Override != nil && *m.Override }

// pingBetween is the round trip between two members in milliseconds, the
// shorter one if both measured it, for a busy server adds to it; ok is false
// when neither did.
func (s *Set) pingBetween(a, b *Member) (ms float64, ok bool) {
	ms, ok = a.Ping[b.Host]
	if back, known := b.Ping[a.Host]; known && (!ok || back < ms) {
		return back, true
	}
	return ms, ok
}

// holdsData says that the member replicates.
func (m *Member) holdsData() bool { return !m.Arbiter }

// Inner says that others may fetch from the member: a secondary that is up,
// visible, not delayed and complete.
func (m *Member) Inner() bool {
	return m.State == StateSecondary && m.Healthy && !m.InitialSync && !m.Hidden && !m.Arbiter && m.DelaySeconds == 0 && !m.NoIndexes
}
