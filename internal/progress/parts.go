package progress

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

const (
	// Others is the name of all shards, or routers, beyond MaxParts.
	Others = "others"
	// MaxParts bounds the shards, and the routers, that a job tells apart.
	MaxParts = 32
)

// Shard is what a job reads of one shard of a sharded source, in this process.
type Shard struct {
	Shard string `json:"shard"`
	// Docs and Bytes are copied from it, those included that were read again.
	Docs      int64   `json:"docs"`
	DocsRate  float64 `json:"docsRate"`
	Bytes     int64   `json:"bytes"`
	BytesRate float64 `json:"bytesRate"`
	// Changes were read in its oplog, ChangeBytes are those of the oplog.
	Changes         int64   `json:"changes"`
	ChangesRate     float64 `json:"changesRate"`
	ChangeBytes     int64   `json:"changeBytes"`
	ChangeBytesRate float64 `json:"changeBytesRate"`
	// LagSeconds is how far it is known behind the source's newest change; -1 unknown. It delays the changes of all.
	LagSeconds    float64 `json:"lagSeconds"`
	WindowSeconds float64 `json:"windowSeconds"` // that of its own oplog; -1 unknown
	// At is the position up to which its changes are known; empty if unknown.
	At string `json:"at,omitempty"`
}

// Router is what a job sends to one router of a sharded target, in this process.
type Router struct {
	Router       string  `json:"router"`
	Commands     int64   `json:"commands"`
	CommandsRate float64 `json:"commandsRate"`
	Bytes        int64   `json:"bytes"`
	BytesRate    float64 `json:"bytesRate"`
}

// ShardDone is what was read of a shard in this process.
type ShardDone struct {
	Shard                string
	Docs, Bytes          int64 // copied
	Changes, ChangeBytes int64 // read in its oplog
}

// RouterDone is what was sent to a router in this process.
type RouterDone struct {
	Router          string // "" of many
	Commands, Bytes int64
}

type parts struct {
	before          map[string]ShardDone // of earlier copies and earlier runs of this process
	shards, routers names
}

// names are the parts that are counted separately, in the order in which they came.
type names []string

// of returns the name under which a part counts.
func (n *names) of(name string) string {
	switch {
	case slices.Contains(*n, name):
		return name
	case name == "" || len(*n) >= MaxParts:
		return Others
	}
	*n = append(*n, name)
	return name
}

func (p *parts) add(sums map[string]ShardDone, list []ShardDone) {
	for _, d := range list {
		name := p.shards.of(d.Shard)
		s := sums[name]
		sums[name] = ShardDone{name, s.Docs + d.Docs, s.Bytes + d.Bytes, s.Changes + d.Changes, s.ChangeBytes + d.ChangeBytes}
	}
}

func copiedOf(c copying) []ShardDone {
	if of, sharded := c.(interface{ ByShard() []ShardDone }); sharded {
		return of.ByShard()
	}
	return nil
}

func readOf(s stream.Source) (list []ShardDone) {
	if s == nil {
		return nil
	}
	for _, p := range s.Stats().Parts {
		list = append(list, ShardDone{Shard: p.Name, Changes: p.Events, ChangeBytes: p.Bytes})
	}
	return list
}

// sorted is a list by name, others at the end.
func sorted[T any](sums map[string]T) (list []T) {
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if name != Others {
			list = append(list, sums[name])
		}
	}
	if rest, there := sums[Others]; there {
		list = append(list, rest)
	}
	return list
}

// p.mu is locked in shardsDone and the functions below.
func (p *Progress) shardsDone() []ShardDone {
	sums := maps.Clone(p.parts.before)
	p.parts.add(sums, copiedOf(p.copying))
	p.parts.add(sums, readOf(p.source))
	return sorted(sums)
}

func (p *Progress) routersDone() []RouterDone {
	if p.o.Routers == nil {
		return nil
	}
	sums := map[string]RouterDone{}
	for _, d := range p.o.Routers() {
		name := p.parts.routers.of(d.Router)
		s := sums[name]
		sums[name] = RouterDone{name, s.Commands + d.Commands, s.Bytes + d.Bytes}
	}
	return sorted(sums)
}

// shardStatus is what is shown of shards. need is the position from which the oplogs are needed.
func (p *Progress) shardStatus(need mongo.OpTime) (list []Shard) {
	since, seconds := oldest(p.samples, p.o.Now())
	for _, d := range p.shardsDone() {
		s := Shard{Shard: d.Shard, Docs: d.Docs, Bytes: d.Bytes, Changes: d.Changes, ChangeBytes: d.ChangeBytes,
			LagSeconds: -1, WindowSeconds: -1}
		was := first(since.shards, func(o ShardDone) bool { return o.Shard == d.Shard })
		s.DocsRate, s.BytesRate = perSpan(was.Docs, d.Docs, seconds), perSpan(was.Bytes, d.Bytes, seconds)
		s.ChangesRate, s.ChangeBytesRate = perSpan(was.Changes, d.Changes, seconds),
			perSpan(was.ChangeBytes, d.ChangeBytes, seconds)
		list = append(list, s)
	}
	at := func(name string) *Shard {
		if !slices.Contains(p.parts.shards, name) {
			name = Others
		}
		if i := slices.IndexFunc(list, func(s Shard) bool { return s.Shard == name }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	if p.source != nil && !p.blind() {
		for _, part := range p.source.Stats().Parts {
			if s, n := at(part.Name), lag(part.At, p.positions); s != nil && n > s.LagSeconds { // of the others, the last
				s.LagSeconds, s.At = n, part.At.String()
			}
		}
	}
	if p.window == nil || need.IsZero() {
		return list
	}
	for name, w := range p.window.Shards {
		left := w.Left(need).Seconds()
		if s := at(name); s != nil && (s.WindowSeconds == -1 || left < s.WindowSeconds) { // of the others, the shortest
			s.WindowSeconds = left
		}
	}
	return list
}

func (p *Progress) routerStatus() (list []Router) {
	since, seconds := oldest(p.samples, p.o.Now())
	for _, d := range p.routersDone() {
		was := first(since.routers, func(o RouterDone) bool { return o.Router == d.Router })
		list = append(list,
			Router{Router: d.Router, Commands: d.Commands, CommandsRate: perSpan(was.Commands, d.Commands, seconds),
				Bytes: d.Bytes, BytesRate: perSpan(was.Bytes, d.Bytes, seconds)})
	}
	return list
}

// oldest returns the first sample, and how many seconds ago it was taken.
func oldest(samples []sample, now time.Time) (sample, float64) {
	if len(samples) == 0 {
		return sample{}, 0
	}
	return samples[0], now.Sub(samples[0].at).Seconds()
}

func perSpan[N int64 | float64](from, to N, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(max(to-from, 0)) / seconds
}

func first[T any](list []T, fits func(T) bool) (one T) {
	if i := slices.IndexFunc(list, fits); i >= 0 {
		one = list[i]
	}
	return one
}

// Structure is the progress of a job that copies no documents.
type Structure struct {
	// Collections are those that are there as they are to be, time series among them.
	Collections      int `json:"collections"`
	CollectionsTotal int `json:"collectionsTotal"`
	Views            int `json:"views"`
	ViewsTotal       int `json:"viewsTotal"`
	// Indexes leave out those of _id.
	Indexes      int    `json:"indexes"`
	IndexesTotal int    `json:"indexesTotal"`
	Sharded      int    `json:"sharded"` // the collections that are sharded on the target
	List         []Made `json:"list"`

	at map[string]int // of List, by target
}

// Made is one collection or view of a structure.
type Made struct {
	Source   string      `json:"source"`
	Target   string      `json:"target"`
	Type     schema.Type `json:"type"`
	Indexes  int         `json:"indexes"`
	ShardKey string      `json:"shardKey,omitempty"` // that on the target, empty where it is not sharded
	// Made says that it is there, Done that its indexes are, too.
	Made bool `json:"made"`
	Done bool `json:"done"`
}

// Structure shows what is to be made.
func (p *Progress) Structure(all []Made) {
	s := &Structure{List: all, at: make(map[string]int, len(all))}
	for i := range all {
		s.at[all[i].Target] = i
		s.count(&all[i], 1)
	}
	p.set(func() { p.st.Structure = s })
}

// Made records that a collection or view exists on the target.
func (p *Progress) Made(target string) {
	p.change(target, func(m *Made) {
		m.Made = true
		m.Done = m.Indexes == 0
	})
}

// Indexed records that all indexes of a collection exist on the target.
func (p *Progress) Indexed(target string) { p.change(target, func(m *Made) { m.Done = true }) }

// Sharded records by which key a collection is sharded.
func (p *Progress) Sharded(target, key string) {
	p.change(target, func(m *Made) { m.ShardKey = key })
}

// change costs the same however many there are.
func (p *Progress) change(target string, f func(*Made)) {
	p.set(func() {
		s := p.st.Structure
		if s == nil {
			return
		}
		if i, ok := s.at[target]; ok {
			s.count(&s.List[i], -1)
			f(&s.List[i])
			s.count(&s.List[i], 1)
		}
	})
}

// count adds to the sums, or subtracts from them.
func (s *Structure) count(m *Made, by int) {
	add := func(n, done *int, by int, is bool) {
		if *n += by; is {
			*done += by
		}
	}
	if m.Type == schema.TypeView {
		add(&s.ViewsTotal, &s.Views, by, m.Made)
		return
	}
	add(&s.CollectionsTotal, &s.Collections, by, m.Made)
	add(&s.IndexesTotal, &s.Indexes, by*m.Indexes, m.Done)
	if m.ShardKey != "" {
		s.Sharded += by
	}
}

func (s *Structure) clone() *Structure {
	if s == nil {
		return nil
	}
	c := *s
	c.List = slices.Clone(s.List)
	return &c
}
