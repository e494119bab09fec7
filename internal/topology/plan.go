// Package topology shows, plans and maintains the tree along which a replica set replicates.
//
// An [Observer] reads the set. [MakePlan] is a pure function from that to a tree, and [Predict] returns what a tree
// costs. A [Controller] brings the set into the planned tree and keeps it there. Nothing is stored in the cluster:
// sync sources are runtime state of its members.
package topology

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
)

// Policy is what a plan gives weight to.
type Policy string

const (
	// PolicyBalanced puts the voters of the majority under the primary, others under the nearest secondary.
	PolicyBalanced Policy = "balanced"
	// PolicyLatency puts all voters, and others while there is room, under the primary.
	PolicyLatency Policy = "latency"
	// PolicyFanOut minimizes the load of each member, at the price of depth.
	PolicyFanOut Policy = "fan-out"
)

// Majority is the write concern that waits for a majority.
const Majority = "majority"

const (
	maxAutoFanOut = 16 // up to which a fan-out is raised to make a set fit
	latencyRoom   = 8  // members that the primary serves by PolicyLatency, even with fewer voters
)

// PlanOptions shape a plan; the zero value is the balanced policy.
type PlanOptions struct {
	Policy Policy
	// FanOut is how many members may fetch from one secondary; 0 is the least that relieves the primary.
	FanOut int
	// PrimaryFanOut is how many may fetch from the primary beyond those that have to; 0 is the policy's.
	PrimaryFanOut int
	Depth         int // the most fetches between the primary and a member; 0 is the policy's
	Spare         int // how many voters beyond the majority are put under the primary
	// WriteConcern is that of most writes: "majority", or a number of members with the primary. That many voters
	// come under the primary, at least one. Empty suits any.
	WriteConcern string
	ZoneTag      string   // names the zones of members; empty finds it
	Avoid        []string // hosts that must not be sources
}

// Plan is a tree for a set.
type Plan struct {
	Set          string   `json:"set"`
	Primary      string   `json:"primary"`
	Policy       Policy   `json:"policy"`
	FanOut       int      `json:"fanOut"`
	Depth        int      `json:"depth"` // limit; the deepest seat may lie above
	ZoneTag      string   `json:"zoneTag,omitempty"`
	Majority     int      `json:"majority"`               // members that acknowledge a majority write, with the primary
	WriteConcern string   `json:"writeConcern,omitempty"` // that of PlanOptions
	Seats        []Seat   `json:"seats"`                  // sources before their members
	Left         []Left   `json:"left,omitempty"`
	Notes        []string `json:"notes,omitempty"`
}

// Seat is the place of one secondary in a plan.
type Seat struct {
	Host   string `json:"host"`
	Source string `json:"source"`
	Depth  int    `json:"depth"` // 1 is directly under the primary
	// Second is the source to take when Source is lost, and does not depend on it. It is empty only where the
	// primary is the one possible source.
	Second  string `json:"second,omitempty"`
	Current string `json:"current,omitempty"` // the source at the moment
	Why     string `json:"why"`
}

func (s *Seat) Changed() bool { return s.Source != s.Current }

// Left is a member that the plan leaves alone.
type Left struct {
	Host string `json:"host"`
	Why  string `json:"why"`
}

// Tree returns the source of each seated member, by host.
func (p *Plan) Tree() map[string]string {
	tree := map[string]string{}
	for _, s := range p.Seats {
		tree[s.Host] = s.Source
	}
	return tree
}

// Changes returns the seats that differ from the set. In their order they never form a circle.
func (p *Plan) Changes() []Seat {
	return slices.DeleteFunc(slices.Clone(p.Seats), func(s Seat) bool { return !s.Changed() })
}

// Seat returns a member's seat, nil when the plan leaves it alone.
func (p *Plan) Seat(host string) *Seat {
	return find(p.Seats, func(s Seat) bool { return s.Host == host })
}

// MakePlan returns a tree for the set. The same set and options give the same tree, and a set that already has
// it needs no change.
func MakePlan(set *Set, o PlanOptions) (*Plan, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	if set.Primary() == nil {
		return nil, mongo.WithHint(errors.New("cannot plan: the set has no primary"), "wait for the election")
	}
	fixed := o.FanOut > 0
	if !fixed {
		o.FanOut = 3
		if o.Policy == PolicyFanOut {
			o.FanOut = 2
		}
	}
	for ; ; o.FanOut++ {
		p := newPlanner(set, o)
		plan := p.plan()
		if !fixed && p.overflow > 0 && o.FanOut < maxAutoFanOut {
			continue
		}
		if kept := p.keep(); kept != nil {
			return kept, nil
		}
		return plan, nil
	}
}

// complete checks the options and fills in the policy's.
func (o PlanOptions) complete() (PlanOptions, error) {
	o.Policy = cmp.Or(o.Policy, PolicyBalanced)
	if o.FanOut < 0 || o.Depth < 0 || o.Spare < 0 || o.PrimaryFanOut < 0 {
		return o, errors.New("fan-out, depth and spare voters cannot be negative")
	}
	if o.WriteConcern != "" && o.WriteConcern != Majority {
		if n, err := strconv.Atoi(o.WriteConcern); err != nil || n < 1 || n > maxMembers {
			return o, fmt.Errorf("cannot plan for write concern %q; use %s or a number from 1 to %d", o.WriteConcern,
				Majority, maxMembers)
		}
	}
	depth, ok := map[Policy]int{PolicyBalanced: 3, PolicyLatency: 2, PolicyFanOut: 5}[o.Policy]
	if !ok {
		return o, fmt.Errorf("policy %q is unknown; use %s, %s or %s", o.Policy, PolicyBalanced, PolicyLatency, PolicyFanOut)
	}
	o.Depth = cmp.Or(o.Depth, depth)
	return o, nil
}

func (o PlanOptions) acknowledge(set *Set) int {
	if n, err := strconv.Atoi(o.WriteConcern); err == nil {
		return n
	}
	return majority(set)
}

// majority is how many data-bearing voters acknowledge a majority write, with the primary.
func majority(set *Set) int {
	votes, data := 0, 0
	for _, m := range set.Members {
		if m.Votes > 0 {
			votes++
			data += boolRank(!m.Arbiter)
		}
	}
	return min(votes/2+1, data)
}

// Memory records the tree of a set before it was changed.
type Memory struct {
	Set     string            `json:"set"`
	ID      string            `json:"id"`
	At      time.Time         `json:"at"`
	Primary string            `json:"primary"`
	Tree    map[string]string `json:"tree"`
}

// Remember records the tree that a set has.
func Remember(set *Set) *Memory {
	m := &Memory{Set: set.Name, ID: set.ID, At: set.At, Tree: set.Tree()}
	if p := set.Primary(); p != nil {
		m.Primary = p.Host
	}
	return m
}

// plan leads back to the recorded tree. Members that were under the primary come under today's; one whose source
// is unfit is left to the server.
func (m *Memory) plan(set *Set) *Plan {
	plan := &Plan{Set: set.Name, Policy: "as it was"}
	primary := set.Primary()
	if primary == nil {
		return plan
	}
	plan.Primary = primary.Host
	tree := map[string]string{}
	for _, mem := range set.Members {
		src := m.Tree[mem.Host]
		if src == m.Primary || set.Member(src) == nil || src == mem.Host {
			src = primary.Host
		}
		if _, known := m.Tree[mem.Host]; known && mem.Host != primary.Host && mem.State == StateSecondary && mem.Healthy {
			tree[mem.Host] = src
		}
	}
	for host, src := range tree {
		hops, _, ok := pathOf(set, tree, primary, host)
		if s := set.Member(src); !ok || !s.Healthy || s.State != StatePrimary && s.State != StateSecondary {
			continue
		}
		plan.Seats = append(plan.Seats,
			Seat{Host: host, Source: src, Depth: int(hops), Current: set.Member(host).Source, Why: "as it was"})
	}
	slices.SortFunc(plan.Seats, func(a, b Seat) int { return cmp.Or(a.Depth-b.Depth, strings.Compare(a.Host, b.Host)) })
	return plan
}

// Save stores the tree in a directory and returns the stored one: an earlier tree of the same set stays.
func (m *Memory) Save(dir string) (*Memory, error) {
	if kept, err := LoadMemory(dir, m.Set, m.ID); err != nil || kept != nil {
		return kept, err
	}
	raw, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		path := memoryPath(dir, m.Set, m.ID)
		err = outfile.Replace(path, func(f *os.File) error { _, err := f.Write(raw); return err })
	}
	if err != nil {
		return nil, fmt.Errorf("cannot store the tree of %s: %w", m.Set, err)
	}
	return m, nil
}

// LoadMemory reads the stored tree of a set, nil if there is none.
func LoadMemory(dir, set, id string) (*Memory, error) {
	raw, err := os.ReadFile(memoryPath(dir, set, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var m Memory
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the stored tree of %s: %w", set, err)
	}
	return &m, nil
}

// Forget removes the stored tree of a set, if there is one.
func (m *Memory) Forget(dir string) error {
	err := os.Remove(memoryPath(dir, m.Set, m.ID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the stored tree of %s: %w", m.Set, err)
	}
	return nil
}

// memoryPath never leads out of the directory: names come from a server.
func memoryPath(dir, set, id string) string {
	name := regexp.MustCompile(`[^-_0-9A-Za-z]`).ReplaceAllString(cmp.Or(id, set), "_")
	return filepath.Join(dir, name+".json")
}
