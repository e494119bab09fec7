package topology

import (
	"cmp"
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

// Inner says that others may fetch from the member: a secondary that is up,
// visible, not delayed and complete.
func (m *Member) Inner() bool {
	return m.State == StateSecondary && m.Healthy && !m.InitialSync && !m.Hidden && !m.Arbiter && m.DelaySeconds == 0 &&
		!m.NoIndexes
}

// assemble puts the answers together into one picture.
func (o *Observer) assemble(d *discovery, views map[string]*view) *Set {
	c := d.config
	set := &Set{Name: c.ID, At: time.Now(), ConfigVersion: c.Version, Term: d.status.Term,
		Chaining: c.Settings.Chaining == nil || *c.Settings.Chaining}
	if !c.Settings.ReplicaSetID.IsZero() {
		set.ID = c.Settings.ReplicaSetID.Hex()
	}
	for _, mc := range c.Members {
		m := configured(mc)
		v := views[mc.Host]
		if v != nil && v.err == nil {
			m.answered(v)
			m.CPU = o.cores(mc.Host, v.cpu, set.At)
			set.Term = max(set.Term, v.status.Term)
		} else {
			if v != nil {
				m.Error = mongo.Brief(v.err)
			}
			m.hearsay(latestWord(mc.Host, d.status, views))
		}
		set.Members = append(set.Members, m)
	}
	onePrimary(set, views)
	measureLag(set)
	return set
}

// configured is a member as the configuration describes it.
func configured(c memberConfig) Member {
	m := Member{ID: c.ID, Host: c.Host, Votes: 1, Priority: 1, Hidden: c.Hidden, Arbiter: c.Arbiter, Tags: c.Tags,
		DelaySeconds: max(c.Delay, c.DelayBefore), NoIndexes: c.BuildIndex != nil && !*c.BuildIndex,
		State: StateUnknown, LagApplied: -1, LagDurable: -1, CPU: -1}
	if c.Votes != nil {
		m.Votes = *c.Votes
	}
	if c.Priority != nil {
		m.Priority = *c.Priority
	}
	return m
}

// answered fills in what the member says of itself.
func (m *Member) answered(v *view) {
	s := v.status
	m.Asked, m.Healthy, m.Override, m.Version = true, true, v.facts.override, v.facts.version
	m.Source = cmp.Or(s.SyncHost, s.SyncTo)
	m.Applied, m.Durable = s.OpTimes.Applied, s.OpTimes.Durable
	m.appliedAt, m.durableAt = wallTime(s.OpTimes.AppliedAt, m.Applied), wallTime(s.OpTimes.DurableAt, m.Durable)
	m.Ping = map[string]float64{}
	for _, other := range s.Members {
		if !other.Self {
			if other.Health == 1 {
				m.Ping[other.Name] = other.Ping
			}
			continue
		}
		m.State = other.State
		m.Since = s.Date.Add(-time.Duration(other.Uptime) * time.Second)
		if m.State == StatePrimary && !other.Elected.IsZero() {
			m.Since = other.Elected
		}
	}
	// The section stays for a while after an initial sync has ended.
	m.InitialSync = m.State == StateStartup2
	if m.State == StatePrimary || m.State == StateArbiter {
		m.Source = ""
	}
}

// word is what one member has heard of another.
type word struct {
	*memberStatus
	age time.Duration
}

// latestWord finds the newest heartbeat of a member among the answers.
func latestWord(host string, first *status, views map[string]*view) *word {
	var newest *word
	consider := func(s *status) {
		m := s.of(host)
		if m == nil || m.Self {
			return
		}
		w := &word{m, -1}
		if !m.Heartbeat.IsZero() {
			w.age = s.Date.Sub(m.Heartbeat)
		}
		if newest == nil || w.age >= 0 && (newest.age < 0 || w.age < newest.age) {
			newest = w
		}
	}
	consider(first)
	for _, v := range views {
		if v.err == nil {
			consider(v.status)
		}
	}
	return newest
}

// hearsay fills in what others know of a member that did not answer.
func (m *Member) hearsay(w *word) {
	m.AgeSeconds = -1
	if w == nil {
		return
	}
	if w.age >= 0 {
		m.AgeSeconds = w.age.Seconds()
	}
	m.State, m.Healthy = w.State, w.Health == 1
	if !m.Healthy {
		return
	}
	m.Source = cmp.Or(w.SyncHost, w.SyncTo)
	m.InitialSync = m.State == StateStartup2
	m.Applied, m.Durable = w.Applied, w.Durable
	m.appliedAt, m.durableAt = wallTime(w.AppliedAt, w.Applied), wallTime(w.DurableAt, w.Durable)
	if m.State == StatePrimary && !w.Elected.IsZero() {
		m.Since = w.Elected
	}
}

// wallTime falls back on the position's second where servers do not say more.
func wallTime(t time.Time, p mongo.OpTime) time.Time {
	if t.IsZero() && !p.IsZero() {
		return p.Time()
	}
	return t
}

// onePrimary keeps the primary of the highest term: one that was cut off goes
// on for seconds believing that it still is one.
func onePrimary(set *Set, views map[string]*view) {
	best, term := -1, int64(-1)
	for i, m := range set.Members {
		if m.State != StatePrimary {
			continue
		}
		t := int64(-1)
		if v := views[m.Host]; v != nil && v.err == nil {
			t = v.status.Term
		}
		if t > term || best < 0 {
			best, term = i, t
		}
	}
	for i := range set.Members {
		if m := &set.Members[i]; m.State == StatePrimary && i != best {
			m.State = StateUnknown
			m.Error = "believes to be primary, but another member was elected since"
		}
	}
}

// measureLag compares all members with the primary.
func measureLag(set *Set) {
	p := set.Primary()
	if p == nil || p.appliedAt.IsZero() {
		return
	}
	for i := range set.Members {
		m := &set.Members[i]
		if !m.Arbiter {
			m.LagApplied, m.LagDurable = lag(p, m.Applied, m.appliedAt), lag(p, m.Durable, m.durableAt)
		}
	}
}

func lag(p *Member, pos mongo.OpTime, at time.Time) float64 {
	switch {
	case pos.IsZero():
		return -1
	case !pos.Before(p.Applied):
		return 0
	}
	return max(p.appliedAt.Sub(at).Seconds(), 0)
}

// cores is how many cores a server used since it was last asked.
func (o *Observer) cores(host string, seconds float64, at time.Time) float64 {
	if seconds < 0 {
		return -1
	}
	was, ok := o.cpu[host]
	o.cpu[host] = cpuSample{at, seconds}
	past := at.Sub(was.at).Seconds()
	if !ok || past < 0.2 || seconds < was.seconds {
		return -1
	}
	return (seconds - was.seconds) / past
}
