package wire

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Selector says which server of a deployment a connection goes to.
type Selector struct {
	rp   *readpref.ReadPref // nil means the primary
	addr string             // not empty: this member only

	over *spread // the pool's, for the primary; nil is any router

	urgent bool // Pool.Limit does not count
}

func Primary() Selector { return Selector{} }

// ByReadPreference selects by mode, tag sets and maximum staleness, which is compared with the primary's last write.
func ByReadPreference(rp *readpref.ReadPref) Selector { return Selector{rp: rp} }

// ByAddress selects the server that Conn.Addr named, whatever its role: record ids are valid on one server only.
func ByAddress(addr string) Selector { return Selector{addr: addr} }

// Urgent selects the same for a connection that does not wait for Pool.Limit.
func (s Selector) Urgent() Selector {
	s.urgent = true
	return s
}

// String names what is selected, such as "a member for read preference secondary with tags dc:east".
func (s Selector) String() string {
	switch {
	case s.addr != "":
		return "member " + s.addr
	case !s.secondaryOk():
		return "a primary"
	}
	text := "a member for read preference " + s.rp.Mode().String()
	var sets []string
	for _, set := range s.rp.TagSets() {
		sets = append(sets, tags(set))
	}
	if len(sets) > 0 {
		text += " with tags " + strings.Join(sets, ";")
	}
	if limit, ok := s.rp.MaxStaleness(); ok {
		text += " and a staleness of " + limit.String() + " at most"
	}
	return text
}

func tags(set tag.Set) string {
	var list []string
	for _, t := range set {
		list = append(list, t.Name+":"+t.Value)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

func (s Selector) secondaryOk() bool {
	return s.addr != "" || s.rp != nil && s.rp.Mode() != readpref.PrimaryMode
}

// SelectServer implements the driver's ServerSelector.
func (s Selector) SelectServer(t description.Topology, candidates []description.Server) ([]description.Server, error) {
	if t.Kind == description.TopologyKindSingle {
		return known(candidates), nil
	}
	if s.addr != "" {
		return filter(known(candidates), func(d description.Server) bool { return d.Addr.String() == s.addr }), nil
	}
	primaries := filter(candidates, func(d description.Server) bool {
		return d.Kind == description.ServerKindRSPrimary ||
			d.Kind == description.ServerKindMongos || d.Kind == description.ServerKindStandalone
	})
	if s.rp == nil && t.Kind == description.TopologyKindSharded && s.over != nil {
		return s.over.least(primaries), nil
	}
	if s.rp == nil {
		return primaries, nil
	}
	secondaries := nearest(s.matching(filter(candidates, func(d description.Server) bool {
		return d.Kind == description.ServerKindRSSecondary && s.fresh(d, primaries)
	})))
	switch mode := s.rp.Mode(); {
	case mode == readpref.NearestMode:
		return nearest(append(s.matching(primaries), secondaries...)), nil
	case mode == readpref.SecondaryMode && (len(primaries) == 0 || primaries[0].Kind == description.ServerKindRSPrimary),
		mode == readpref.PrimaryPreferredMode && len(primaries) == 0,
		mode == readpref.SecondaryPreferredMode && len(secondaries) > 0:
		return secondaries, nil
	}
	return primaries, nil // also mongos or a standalone: no members to choose from
}

// matching keeps the servers of the first tag set that matches any.
func (s Selector) matching(servers []description.Server) []description.Server {
	for _, set := range s.rp.TagSets() {
		if m := filter(servers, func(d description.Server) bool { return d.Tags.ContainsAll(set) }); len(m) > 0 {
			return m
		}
	}
	if len(s.rp.TagSets()) > 0 {
		return nil
	}
	return servers
}

func (s Selector) fresh(d description.Server, primaries []description.Server) bool {
	limit, set := s.rp.MaxStaleness()
	if !set || len(primaries) == 0 {
		return true
	}
	return primaries[0].LastWriteTime.Sub(d.LastWriteTime)+d.HeartbeatInterval <= limit
}

// nearest keeps the servers within the driver's default local threshold of the fastest.
func nearest(servers []description.Server) []description.Server {
	const window = 15 * time.Millisecond
	best := math.MaxInt64 - window
	for _, d := range servers {
		best = min(best, d.AverageRTT)
	}
	return filter(servers, func(d description.Server) bool { return d.AverageRTT <= best+window })
}

func known(servers []description.Server) []description.Server {
	return filter(servers, func(d description.Server) bool { return d.Kind != description.Unknown })
}

func filter(servers []description.Server, keep func(description.Server) bool) []description.Server {
	return slices.DeleteFunc(slices.Clone(servers), func(d description.Server) bool { return !keep(d) })
}

// spread sends each exchange to the router that was sent the fewest bytes. It is safe for concurrent use.
type spread struct {
	mu    sync.Mutex
	sent  map[string]int64 // by address
	among []string         // that were chosen from the last time, sorted
	total map[string]*Sent // by address; of those beyond mostRouters by ""
}

// Sent is what one of the routers was sent.
type Sent struct {
	Router          string // its address, "" for all beyond mostRouters
	Messages, Bytes int64
}

// mostRouters bounds the routers that are counted separately.
const mostRouters = 64

// checkoutBytes is what a connection counts for before anything is sent.
const checkoutBytes = 4 << 10

// least chooses a router. When the list changes, all begin with nothing: a router that is back must not get all.
func (s *spread) least(routers []description.Server) []description.Server {
	if len(routers) < 2 {
		return routers
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var among []string
	for _, r := range routers {
		among = append(among, r.Addr.String())
	}
	slices.Sort(among)
	if !slices.Equal(among, s.among) {
		s.among, s.sent = among, map[string]int64{}
	}
	best, least := 0, int64(math.MaxInt64)
	for i, r := range routers {
		if n := s.sent[r.Addr.String()]; n < least {
			best, least = i, n
		}
	}
	return routers[best : best+1]
}

func (s *spread) add(addr string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		s.sent = map[string]int64{}
	}
	s.sent[addr] += bytes
}

func (s *spread) message(addr string, bytes int64) {
	s.add(addr, bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.total[addr]
	if one == nil && len(s.total) >= mostRouters {
		addr = ""
		one = s.total[addr]
	}
	if one == nil {
		if s.total == nil {
			s.total = map[string]*Sent{}
		}
		one = &Sent{Router: addr}
		s.total[addr] = one
	}
	one.Messages, one.Bytes = one.Messages+1, one.Bytes+bytes
}

// Sent is what each router was sent since the pool was opened, by address.
func (p *Pool) Sent() []Sent {
	p.over.mu.Lock()
	defer p.over.mu.Unlock()
	list := make([]Sent, 0, len(p.over.total))
	for _, addr := range slices.Sorted(maps.Keys(p.over.total)) {
		list = append(list, *p.over.total[addr])
	}
	return list
}

// Unreachable is a server that the driver found unsuitable.
type Unreachable struct {
	Address string
	Err     error  // why it cannot be used; nil if it answers
	Role    string // its role in its set with its tags, such as "the primary"
}

// Unsuitable is the driver's error when no server was suitable.
type Unsuitable struct {
	Servers []Unreachable
	Text    string // of the driver's error, which describes all of the deployment
}

// UnsuitableServers finds an Unsuitable in an error.
func UnsuitableServers(err error) (u Unsuitable, ok bool) {
	e, ok := errors.AsType[topology.ServerSelectionError](err)
	if !ok {
		return u, false
	}
	u.Text = e.Error()
	for _, s := range e.Desc.Servers {
		u.Servers = append(u.Servers, Unreachable{Address: s.Addr.String(), Err: s.LastError, Role: roleOf(s)})
	}
	return u, true
}

func roleOf(s description.Server) string {
	role := "no member that can be read"
	switch s.Kind {
	case description.ServerKindRSPrimary:
		role = "the primary"
	case description.ServerKindRSSecondary:
		role = "a secondary"
	case description.ServerKindRSArbiter:
		return "an arbiter"
	case description.ServerKindMongos:
		return "a router"
	}
	if len(s.Tags) == 0 {
		return role
	}
	return role + " with tags " + tags(s.Tags)
}

// AuthFailed reports that a server refused a login.
func AuthFailed(err error) bool {
	_, refused := errors.AsType[*auth.Error](err)
	return refused
}
