package topology

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// The states of a member, as replSetGetStatus names them.
const (
	StatePrimary   = mongo.StatePrimary
	StateSecondary = mongo.StateSecondary
	StateArbiter   = mongo.StateArbiter
	StateStartup2  = "STARTUP2"
	StateUnknown   = "UNKNOWN" // no member has had a heartbeat of it
)

// Set is a replica set as it was seen at one moment.
type Set struct {
	Name          string    `json:"set"`
	ID            string    `json:"id,omitempty"` // replicaSetId in hexadecimal digits
	At            time.Time `json:"at"`
	Term          int64     `json:"term"`
	ConfigVersion int64     `json:"configVersion"`
	Chaining      bool      `json:"chainingAllowed"` // of the settings
	Members       []Member  `json:"members"`         // in the order of the configuration
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
	// InitialSync says that it copies its data and must not be disturbed.
	InitialSync bool   `json:"initialSync,omitempty"`
	Source      string `json:"source,omitempty"` // host whose oplog it fetches, "" for none
	// SourceSince is when the observer first saw this source; servers do not report it.
	SourceSince time.Time `json:"sourceSince,omitzero"`
	Since       time.Time `json:"since,omitzero"` // election of a primary, start of any other member

	Applied mongo.OpTime `json:"-"`
	Durable mongo.OpTime `json:"-"`
	// LagApplied and LagDurable are seconds behind what the primary had just applied; -1 is unknown.
	LagApplied float64            `json:"lagApplied"`
	LagDurable float64            `json:"lagDurable"`
	Ping       map[string]float64 `json:"pingMs,omitempty"` // this member's round trips in milliseconds, by host

	// Asked says that the member itself answered. Otherwise other members reported it AgeSeconds ago.
	Asked      bool    `json:"asked"`
	AgeSeconds float64 `json:"ageSeconds"`
	Error      string  `json:"error,omitempty"` // why it did not answer

	Version string `json:"version,omitempty"`
	// Override is enableOverrideClusterChainingSetting, nil on servers without it.
	Override *bool   `json:"chainingOverride,omitempty"`
	CPU      float64 `json:"cpuCores"` // cores used since the last observation, -1 unknown

	appliedAt, durableAt time.Time // wall clock of the primary that wrote it
	term                 int64     // that it reports itself
}

// find returns the first element that matches, nil for none.
func find[T any](list []T, match func(T) bool) *T {
	if i := slices.IndexFunc(list, match); i >= 0 {
		return &list[i]
	}
	return nil
}

func (s *Set) Primary() *Member {
	return find(s.Members, func(m Member) bool { return m.State == StatePrimary && m.Healthy })
}

// Member returns the member of that address, nil when there is none.
func (s *Set) Member(host string) *Member {
	return find(s.Members, func(m Member) bool { return m.Host == host && host != "" })
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

// MayChain reports whether the set or the member's override lets the member fetch from another secondary.
func (s *Set) MayChain(m *Member) bool { return s.Chaining || m.Override != nil && *m.Override }

// pingBetween is the round trip between two members in milliseconds: the shorter one, for load adds to it.
func (s *Set) pingBetween(a, b *Member) (ms float64, ok bool) {
	ms, ok = a.Ping[b.Host]
	if back, known := b.Ping[a.Host]; known && (!ok || back < ms) {
		return back, true
	}
	return ms, ok
}

// Inner reports whether others may fetch from the member.
func (m *Member) Inner() bool {
	return m.State == StateSecondary && m.Healthy && !m.InitialSync && !m.Hidden && !m.Arbiter && m.DelaySeconds == 0 &&
		!m.NoIndexes
}

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
			m.CPU = o.host(mc.Host).cores(v.cpu, set.At)
			set.Term = max(set.Term, v.status.Term)
		} else {
			if v != nil {
				m.Error = mongo.Brief(v.err)
			}
			m.heard(latestHeartbeat(mc.Host, &d.status, views))
		}
		set.Members = append(set.Members, m)
	}
	onePrimary(set)
	measureLag(set)
	return set
}

func configured(c mongo.MemberConfig) Member {
	m := Member{ID: c.ID, Host: c.Host, Votes: 1, Priority: 1, Hidden: c.Hidden, Arbiter: c.Arbiter, Tags: c.Tags,
		DelaySeconds: c.DelaySeconds(), NoIndexes: c.BuildIndex != nil && !*c.BuildIndex,
		State: StateUnknown, LagApplied: -1, LagDurable: -1, CPU: -1, term: -1}
	if c.Votes != nil {
		m.Votes = *c.Votes
	}
	if c.Priority != nil {
		m.Priority = *c.Priority
	}
	return m
}

func (m *Member) answered(v *view) {
	s := v.status
	m.Asked, m.Healthy, m.Override, m.Version, m.term = true, true, v.facts.override, v.facts.version, s.Term
	m.Ping = map[string]float64{}
	self := mongo.MemberStatus{State: m.State}
	for _, other := range s.Members {
		switch {
		case other.Self:
			self = other
			m.Since = s.Date.Add(-time.Duration(other.Uptime) * time.Second)
		case other.Health == 1:
			m.Ping[other.Name] = other.Ping
		}
	}
	self.SyncHost, self.SyncTo = s.SyncHost, s.SyncTo
	self.Applied, self.Durable = s.OpTimes.Applied, s.OpTimes.Durable
	self.AppliedAt, self.DurableAt = s.OpTimes.AppliedAt, s.OpTimes.DurableAt
	m.take(&self)
	if m.State == StatePrimary || m.State == StateArbiter {
		m.Source = ""
	}
}

// take takes what the member, or another one, reports of it.
func (m *Member) take(s *mongo.MemberStatus) {
	m.State, m.Source, m.InitialSync = s.State, cmp.Or(s.SyncHost, s.SyncTo), s.State == StateStartup2
	m.Applied, m.Durable = s.Applied, s.Durable
	m.appliedAt, m.durableAt = wallTime(s.AppliedAt, s.Applied), wallTime(s.DurableAt, s.Durable)
	if m.State == StatePrimary && !s.Elected.IsZero() {
		m.Since = s.Elected
	}
}

// latestHeartbeat returns the newest heartbeat of a member, nil for none, and its age, -1 if unknown.
func latestHeartbeat(host string, first *mongo.SetStatus, views map[string]*view) (newest *mongo.MemberStatus,
	age time.Duration) {
	statuses := []*mongo.SetStatus{first}
	for _, v := range views {
		if v.err == nil {
			statuses = append(statuses, v.status)
		}
	}
	for _, s := range statuses {
		m := s.Member(host)
		if m.Name == "" || m.Self {
			continue
		}
		old := time.Duration(-1)
		if !m.Heartbeat.IsZero() {
			old = s.Date.Sub(m.Heartbeat)
		}
		if newest == nil || old >= 0 && (age < 0 || old < age) {
			newest, age = &m, old
		}
	}
	return newest, age
}

// heard takes what others know of a member that did not answer.
func (m *Member) heard(s *mongo.MemberStatus, age time.Duration) {
	m.AgeSeconds = -1
	if s == nil {
		return
	}
	if age >= 0 {
		m.AgeSeconds = age.Seconds()
	}
	if m.State, m.Healthy = s.State, s.Health == 1; m.Healthy {
		m.take(s)
	}
}

func wallTime(t time.Time, p mongo.OpTime) time.Time {
	if t.IsZero() && !p.IsZero() {
		return p.Time()
	}
	return t
}

// onePrimary keeps the primary of the highest term: one that was cut off takes seconds to notice.
func onePrimary(set *Set) {
	var best *Member
	for i := range set.Members {
		m := &set.Members[i]
		switch {
		case m.State != StatePrimary:
			continue
		case best == nil:
			best = m
			continue
		case m.term > best.term:
			m, best = best, m
		}
		m.State, m.Error = StateUnknown, "believes to be primary, but another member was elected since"
	}
}

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

// cores returns how many cores a server used since the last observation, -1 if unknown.
func (h *hostState) cores(seconds float64, at time.Time) float64 {
	if seconds < 0 {
		return -1
	}
	was, past := h.cpu, at.Sub(h.cpuAt).Seconds()
	known := !h.cpuAt.IsZero()
	h.cpu, h.cpuAt = seconds, at
	if !known || past < 0.2 || seconds < was {
		return -1
	}
	return (seconds - was) / past
}
