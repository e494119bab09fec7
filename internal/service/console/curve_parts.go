package console

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

// maxLines bounds the lines of a chart, except for others: readers cannot distinguish more.
const maxLines = 7

// most returns the names with the largest sums, and whether there are others.
func most(sums map[string]int64) (keep map[string]bool, others bool) {
	names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), strings.Compare(a, b))
	})
	keep = map[string]bool{}
	for _, name := range names {
		if name == job.OtherParts || len(keep) == maxLines {
			others = true
			continue
		}
		keep[name] = true
	}
	return keep, others
}

type split struct {
	points          []service.Bucket // with the parts that have lines
	shards, routers []string
}

// splitOf selects the shards and routers that did the most, and the shard that was the furthest behind.
func splitOf(points []service.Bucket) *split {
	shards, routers := map[string]int64{}, map[string]int64{}
	last, lag := "", 0.0
	for i := range points {
		for _, s := range points[i].Shards {
			shards[s.Name] += s.Bytes.Sum + s.AppliedBytes.Sum
			if s.Lag.Most > lag {
				last, lag = s.Name, s.Lag.Most
			}
		}
		for _, r := range points[i].Routers {
			routers[r.Name] += r.AppliedBytes.Sum
		}
	}
	if last != "" {
		shards[last] = math.MaxInt64
	}
	keepShards, otherShards := most(shards)
	keepRouters, otherRouters := most(routers)
	s := &split{points: slices.Clone(points), shards: lineNames(keepShards, otherShards),
		routers: lineNames(keepRouters, otherRouters)}
	for i := range s.points {
		p := &s.points[i]
		p.Shards = service.FoldParts(p.Shards, func(name string) bool { return keepShards[name] })
		p.Routers = service.FoldParts(p.Routers, func(name string) bool { return keepRouters[name] })
	}
	return s
}

func lineNames(keep map[string]bool, others bool) []string {
	names := slices.Sorted(maps.Keys(keep))
	if others {
		names = append(names, job.OtherParts)
	}
	return names
}

func linesOf(names []string, parts func(*service.Bucket) []service.Point,
	at func(*service.Point) service.Range) (list []curve) {
	for _, name := range names {
		list = append(list, curve{visible(name), func(b *service.Bucket) (r service.Range) {
			all := parts(b)
			if i := slices.IndexFunc(all, func(p service.Point) bool { return p.Name == name }); i >= 0 {
				r = at(&all[i])
			}
			return r
		}})
	}
	return list
}

func (s *split) byShard() []chart {
	if len(s.shards) == 0 {
		return nil
	}
	lines := func(at func(*service.Point) service.Range) []curve {
		return linesOf(s.shards, func(b *service.Bucket) []service.Point { return b.Shards }, at)
	}
	return []chart{
		{"shard-rate", "Documents and changes read per second, by shard", count(),
			lines(func(p *service.Point) service.Range { return both(p.Docs, p.Operations, p.Seconds) }), true},
		{"shard-bytes", "Bytes read per second, by shard", perSecond(),
			lines(func(p *service.Point) service.Range { return both(p.Bytes, p.AppliedBytes, p.Seconds) }), true},
		{"shard-lag", "Lag of each shard behind the newest change", seconds(),
			lines(func(p *service.Point) service.Range { return p.Lag }), true},
		{"shard-window", "Oplog window of each shard", seconds(),
			lines(func(p *service.Point) service.Range { return p.Window }), true},
	}
}

func (s *split) byRouter() []chart {
	if len(s.routers) == 0 {
		return nil
	}
	lines := func(of func(*service.Point) service.Amount) []curve {
		return linesOf(s.routers, func(b *service.Bucket) []service.Point { return b.Routers },
			func(p *service.Point) service.Range { return both(of(p), service.Amount{}, p.Seconds) })
	}
	return []chart{
		{"router-rate", "Commands sent per second, by router", count(),
			lines(func(p *service.Point) service.Amount { return p.Operations }), true},
		{"router-bytes", "Bytes sent per second, by router", perSecond(),
			lines(func(p *service.Point) service.Amount { return p.AppliedBytes }), true},
	}
}

func both(a, b service.Amount, seconds float64) service.Range {
	return service.Range{Mean: a.Rate(seconds) + b.Rate(seconds), Least: a.Least + b.Least, Most: a.Most + b.Most,
		Seconds: seconds}
}

// visible returns a foreign name with escapes for invisible characters, for use outside of elements.
func visible(name string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(name, "\ufffd") {
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return short(b.String(), 60)
}
