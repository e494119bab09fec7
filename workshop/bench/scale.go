package bench

import (
	"fmt"
	"strconv"
	"time"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// Scale is how much work a scenario does.
type Scale struct {
	Name string `json:"name"`
	// Factor multiplies numbers of documents and operations; 1 is a million
	// documents in full-one.
	Factor float64 `json:"factor"`
	// Duration of what is measured over time: live writes, latency, idle.
	Duration time.Duration `json:"durationNanos"`
}

// ParseScale knows small (a smoke run), medium (the size that results are
// quoted for) and large, and numbers: so many times medium.
func ParseScale(name string) (Scale, error) {
	switch name {
	case "small":
		return Scale{Name: name, Factor: 0.1, Duration: 5 * time.Second}, nil
	case "medium":
		return Scale{Name: name, Factor: 1, Duration: 30 * time.Second}, nil
	case "large":
		return Scale{Name: name, Factor: 10, Duration: 60 * time.Second}, nil
	}
	const most = 1000
	if f, err := strconv.ParseFloat(name, 64); err == nil && f > 0 && f <= most {
		return Scale{Name: name, Factor: f, Duration: 30 * time.Second}, nil
	}
	return Scale{}, fmt.Errorf("scale %q is unknown; use small, medium, large, or a number of times medium up to %d", name, most)
}

// of scales a number of things that is given for medium.
func (s Scale) of(medium int) int { return max(int(float64(medium)*s.Factor), 100) }

// oplogMB is room for so many operations of so many bytes each, twice over.
func oplogMB(operations, bytesEach int) int {
	const least = 990 // what the server takes
	return max(2*operations*bytesEach>>20, least)
}

// share makes the caches smaller that all servers together could fill more of the
// machine's memory with than a half, or a quarter where their files are in memory
// too: the rest is for those, the page cache and the tools.
func (b *bench) share(n needs) needs {
	const least = 0.25 // of WiredTiger
	part := 0.5
	if lab.FilesInMemory() {
		part = 0.25
	}
	s := b.o.Servers
	if n.pairing != (pairing{}) {
		s.SourceTopology, s.TargetTopology = n.pairing.source, n.pairing.target
	}
	most := part * float64(b.report.Machine.MemoryMB) / 1024
	all := n.sourceCacheGB*float64(serversOf(s.SourceTopology)) + n.targetCacheGB*float64(serversOf(s.TargetTopology))
	if most > 0 && all > most {
		n.sourceCacheGB, n.targetCacheGB = max(least, n.sourceCacheGB*most/all), max(least, n.targetCacheGB*most/all)
	}
	return n
}

// serversOf is how many hold data in a topology.
func serversOf(topology string) int {
	if sharded.Is(topology) {
		return sharded.Members(topology)
	}
	return lab.MembersOf(topology)
}

// cacheGB is a server's cache that holds so many bytes easily, if a third of
// the machine's memory can.
func (b *bench) cacheGB(bytes int) float64 {
	easily := max(0.5, 2.5*float64(bytes)/(1<<30))
	if mb := b.report.Machine.MemoryMB; mb > 0 {
		easily = min(easily, float64(mb)/3/1024)
	}
	return easily
}
