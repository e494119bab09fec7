package wire

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
)

// Selector says which server of a deployment a connection goes to.
type Selector struct {
	rp   *readpref.ReadPref // nil means the primary
	addr string             // not empty: this member only

	over *spread // the pool's, for the primary; nil is any router

	urgent bool // Pool.Limit does not count
}

// Primary selects the writable member.
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
