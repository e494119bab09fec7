package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// scenario is one thing that is measured: an entry of the table.
type scenario struct {
	name    string
	work    string // for people
	ceiling string // for people
	experiment
}

// experiment measures one or several cases and adds them to the report.
type experiment interface {
	run(ctx context.Context, b *bench, s scenario) error
}

// ScenarioInfo describes a scenario for people.
type ScenarioInfo struct {
	Name    string `json:"name"`
	Work    string `json:"work"`
	Ceiling string `json:"ceiling"`
}

// Scenarios lists all scenarios in their usual order.
func Scenarios() []ScenarioInfo {
	var all []ScenarioInfo
	for _, s := range scenarios() {
		all = append(all, ScenarioInfo{s.name, s.work, s.ceiling})
	}
	return all
}

const (
	copyCeiling = "time to read it alone + time to insert it alone from memory, each at its best settings, until a " +
		"majority of the target's members has it"
	backlogCeiling = "time to read the oplog alone + time to apply the folded operations alone from memory, each at its " +
		"best settings, until a majority of the target's members has it"
)

// shardedCeiling has no reading: the best way to read a cluster is unknown.
const shardedCeiling = "what the target takes from lean writers, from memory and at its best settings: of a sharded " +
	"cluster what its routers take"

// scenarios is the table. Numbers are those of the medium scale.
func scenarios() []scenario {
	readAndInsert := copyWay{name: "ceiling", kind: KindCeiling, read: true}
	const away = 40 * time.Millisecond
	noOplog := copyWay{name: "no oplog", kind: KindReference, unreplicated: true}
	return append([]scenario{
		{"full-one", "copy one collection of 1 KB documents with hashed string _ids", copyCeiling,
			copying{docs: 1_000_000, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-cold", "the same, the source's servers restarted and their cache a fifth of the data", copyCeiling,
			copying{docs: 1_000_000, cold: true, ways: []copyWay{readAndInsert}}},
		{"full-many", "copy five collections", copyCeiling,
			copying{docs: 1_000_000, collections: 5, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-small", "copy ten collections of 140-byte documents", copyCeiling,
			copying{shape: small, docs: 4_000_000, collections: 10, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-indexed", "copy one collection with 1, 3, 5 and 10 secondary indexes",
			copyCeiling + "; indexes before or after, whichever is faster",
			copying{docs: 300_000, indexes: []int{1, 3, 5, 10}, ways: []copyWay{
				{name: "ceiling, indexes after", kind: KindCeiling, read: true},
				{name: "ceiling, indexes before", kind: KindCeiling, read: true, indexesFirst: true},
			}}},
		{"full-collections", "copy 1,000 collections of 20 documents of 1 KB and 2 secondary indexes each", fillCeiling,
			copying{docs: 20_000, each: 20, indexes: []int{2},
				ways: []copyWay{{name: "ceiling", kind: KindCeiling, fills: true}}}},
		{"full-files", "copy one collection with 5 secondary indexes to three new members, by files and by documents",
			"copy a secondary's files three times at once, and start a mongod on each copy",
			copying{docs: 1_000_000, indexes: []int{5}, files: true}},
		{"full-mixed-ids", "copy one collection with _ids of eight BSON types", copyCeiling,
			copying{shape: mixedIDs, docs: 1_000_000, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-filtered", "copy one collection as full-one, with a filter that keeps all of it, and with one that keeps 1 %",
			copyCeiling,
			copying{docs: 1_000_000, extra: choosings(), ways: []copyWay{readAndInsert}}},
		{"full-mapped", "copy one collection of texts as full-one, and with three of its ten fields renamed, dropped and " +
			"masked", copyCeiling,
			copying{shape: texts, docs: 1_000_000, extra: mappings(), ways: []copyWay{readAndInsert}}},
		{"full-wan", "copy with 40 ms round trip to the target",
			"insert alone from memory over the same link, at its best settings",
			copying{docs: 300_000, link: link{rtt: away}, ways: []copyWay{{name: "ceiling", kind: KindCeiling}}}},
		{"full-wan-narrow", "the same over 100 Mbit/s",
			"insert alone from memory over the same link, uncompressed, at its best settings",
			copying{docs: 100_000, link: link{rtt: away, megabit: 100}, ways: []copyWay{{name: "ceiling", kind: KindCeiling}}}},
		{"incr-wan", "drain a backlog as incr-backlog with 40 ms round trip to the target",
			"apply the folded operations alone from memory over the same link, at its best settings",
			draining{load: workload{operations: 1_000_000, inserts: 0.7}, link: link{rtt: away}}},
		{"incr-backlog", "drain a backlog of 70 % inserts and 30 % zipfian updates of 1 KB documents", backlogCeiling,
			draining{load: workload{operations: 1_000_000, inserts: 0.7}}},
		{"incr-filtered", "drain a backlog as incr-backlog, and with filters that keep all of it: one that no update can " +
			"change, and one that looks at one of the ten fields", backlogCeiling,
			draining{load: workload{operations: 1_000_000, inserts: 0.7}, extra: filterings()}},
		{"incr-mapped", "drain a backlog of texts as incr-backlog, and with three of ten fields renamed, dropped and masked",
			backlogCeiling,
			draining{shape: texts, load: workload{operations: 1_000_000, inserts: 0.7}, extra: mappings()}},
		{"incr-small", "drain inserts, updates and deletes of 140-byte documents in ten collections", backlogCeiling,
			draining{shape: small, load: workload{operations: 2_000_000, collections: 10, inserts: 0.5, deletes: 0.1}}},
		{"incr-threads", "drain the backlog of incr-small with 6, 9, 12 and 15 partitions and --apply-buffer 16MiB and 64MiB",
			backlogCeiling,
			draining{shape: small, settings: threadSettings(),
				load: workload{operations: 2_000_000, collections: 10, inserts: 0.5, deletes: 0.1}}},
		{"incr-share", "drain a backlog of 1 KB documents in 100 collections, of which one is kept",
			"time to read its entries of the oplog alone + time to apply them folded, each at its best settings, until a " +
				"majority of the target's members has it",
			draining{load: workload{operations: 1_000_000, collections: 100, inserts: 0.7, kept: 1}}},
		{"incr-hot", "drain updates of ten documents", backlogCeiling,
			draining{load: workload{operations: 1_000_000, hot: 10}}},
		{"incr-unique", "drain a backlog on a collection with two unique secondary indexes, and without", backlogCeiling,
			draining{shape: unique, load: workload{operations: 500_000, inserts: 0.7}, variants: []indexed{
				{"with", []index{{"serial", true}, {"email", true}}}, {"without", nil},
			}}},
		{"incr-live", "follow writes of 1 KB documents at 50, 80 and 100 % of what the source takes",
			"the source without a follower, at the same pace", followingWrites{shares: []float64{0.5, 0.8, 1}}},
	}, others()...)
}

// others are those with ceilings of their own kind.
func others() []scenario {
	return []scenario{
		{"full-sharded", "copy from a sharded cluster and to one, the balancer of the source off and on", shardedCeiling,
			copyingShards{docs: 1_000_000}},
		{"incr-sharded", "drain a backlog as incr-backlog of a sharded cluster and for one, the balancer of the source off " +
			"and on", shardedCeiling, drainingShards{workload{operations: 1_000_000, inserts: 0.7}}},
		{"latency-sharded", "latency from a sharded cluster on which nothing else happens",
			"until the write is acknowledged by a majority on the source",
			followingShards{}},
		{"latency", "from a write on the source until it is visible on the target, 100 writes a second",
			"until a change stream on the source gives it",
			followingOne{concerns: []any{"majority", 1}}},
		{"latency-threads", "latency with the settings of incr-threads, while the source takes 5,000 other writes a second",
			"until the write is acknowledged by a majority on the source", followingSettings{settings: threadSettings(),
				load: workload{collections: 10, inserts: 0.5, deletes: 0.1}, pace: 5000}},
		{"idle", "follow a source on which nothing happens", "the servers without a follower", resting{}},
		{"topology", "insert into replica sets with chaining off, on, and planned",
			"the better of chaining off and chaining on, the two that MongoDB offers", trees{}},
		{"seed", "a new replica-set member while light writes go on: 1, 2, 5, 10 indexes on one collection; 1, 10, 100 " +
			"collections of 5 indexes", "the files copied once under fsyncLock, no mongod started on them",
			seeding{}},
		{"verify", "compare the data of full-one with an equal target",
			"read both sides at the same time, each at its best settings", comparing{docs: 1_000_000}},
		{"verify-collections", "compare the data of full-collections with an equal target",
			"8 connections read both sides, and list the indexes of each collection",
			comparing{docs: 20_000, each: 20, indexes: 2}},
		{"service", "serve with 1000 definitions, and two workers with 100 jobs that follow lightly: memory and processor " +
			"of a job, latency of the API", "GET /livez of the same serve, which looks at nothing", serving{}},
	}
}

// onServers starts the servers that a scenario needs, for the time of do.
func (b *bench) onServers(ctx context.Context, s scenario, n needs, do func(*site) error) (err error) {
	b.say("%s: starting servers", s.name)
	st, err := b.open(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	return do(st)
}

// Scale is how much work a scenario does.
type Scale struct {
	Name string `json:"name"`
	// Factor multiplies numbers of documents and operations; 1 is a million documents in full-one.
	Factor   float64       `json:"factor"`
	Duration time.Duration `json:"durationNanos"` // Duration of what is measured over time: live writes, latency, idle.
}

// ParseScale reads small (a smoke run), medium (which results are quoted for), large, or a number of times medium.
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
	return Scale{}, fmt.Errorf("scale %q is unknown; use small, medium, large, or a number of times medium up to %d", name,
		most)
}

// of scales a number of things that is given for medium.
func (s Scale) of(medium int) int { return max(int(float64(medium)*s.Factor), 100) }

// oplogMB is room for so many operations of so many bytes each, twice over.
func oplogMB(operations, bytesEach int) int {
	const least = 990 // what the server takes
	return max(2*operations*bytesEach>>20, least)
}

// share reduces caches that together exceed half of the machine's memory, or a quarter where files are in memory too.
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

func serversOf(topology string) int {
	if sharded.Is(topology) {
		return sharded.Members(topology)
	}
	return lab.MembersOf(topology)
}

// cacheGB is a server's cache that holds so many bytes easily, if a third of the machine's memory can.
func (b *bench) cacheGB(bytes int) float64 {
	easily := max(0.5, 2.5*float64(bytes)/(1<<30))
	if mb := b.report.Machine.MemoryMB; mb > 0 {
		easily = min(easily, float64(mb)/3/1024)
	}
	return easily
}

type ruled struct {
	name, flag, rule string
	// becomes makes of a document what the target has to hold; nil is the document.
	becomes func(doc bson.Raw) (bson.Raw, error)
	keeps   func(doc bson.Raw) bool // keeps says which documents the target has to hold; nil is all.
}

// filterings keep all documents: by a field that no update changes, and by one that updates change.
func filterings() []ruled {
	return []ruled{
		{name: "filter, no update touches it", flag: "--filter", rule: `{"_id":{"$gte":""}}`},
		{name: "filter, updates touch it", flag: "--filter", rule: `{"field0":{"$exists":true}}`},
	}
}

// choosings are filters for a copy: one that keeps all, and one that keeps a hundredth, as the _ids are hashes.
func choosings() []ruled {
	const from, to = "user100", "user102"
	return []ruled{
		{name: "filter that keeps all", flag: "--filter", rule: `{"field0":{"$exists":true}}`},
		{name: "filter that keeps 1 %", flag: "--filter", rule: `{"_id":{"$gte":"` + from + `","$lt":"` + to + `"}}`,
			keeps: func(doc bson.Raw) bool {
				id := doc.Lookup("_id").StringValue()
				return id >= from && id < to
			}},
	}
}

// mappings are of three of the ten fields that documents have and updates change.
func mappings() []ruled {
	return []ruled{{name: "rename, drop and mask", flag: "--fields",
		rule: `{"rename":{"field0":"first"},"drop":["field1"],"mask":{"field2":{"last":4}}}`, becomes: mapped}}
}

// mapped is a document after the rule of mappings: new names stand behind _id.
func mapped(doc bson.Raw) (bson.Raw, error) {
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		return nil, err
	}
	out := bson.D{d[0], {Key: "first", Value: d[1].Value}}
	for _, f := range d[3:] {
		if text, ok := f.Value.(string); ok && f.Key == "field2" {
			f.Value = strings.Repeat("*", len(text)-4) + text[len(text)-4:]
		}
		out = append(out, f)
	}
	return bson.Marshal(out)
}

// ruled are syncs with each of some rules. check makes the check of what a rule leaves.
func (b *bench) ruled(st *site, rules []ruled, prepare func(context.Context) error,
	check func(ruled) func(context.Context) error, more ...string) (all []contender) {
	for _, r := range rules {
		x := b.syncs(st, prepare, check(r), append([]string{r.flag, dataDB + ".*=" + r.rule}, more...)...)[0]
		x.name = r.name
		all = append(all, x)
	}
	return all
}

// link is the way to a target: the zero value is that of this machine.
type link struct {
	rtt     time.Duration // round trip
	megabit int           // a second in each direction, for all connections together; 0 for no limit
}

// far reports that a proxy makes the way.
func (l link) far() bool { return l != link{} }

func (l link) notes() []string {
	if !l.far() {
		return nil
	}
	bandwidth := "its bandwidth is not limited"
	if l.megabit > 0 {
		bandwidth = fmt.Sprintf("all connections together carry %d Mbit/s in each direction", l.megabit)
	}
	return []string{fmt.Sprintf("each answer of the target is held back for %d ms by a proxy in the bench's own "+
		"process; %s", l.rtt.Milliseconds(), bandwidth)}
}

// farConnections are how many connections are tried to a target that is far away.
func farConnections() []int { return []int{8, 16, 32, 64} }

// moveAway puts a link before a cluster with proxies.
func (s *side) moveAway(l link) {
	const kilobytes = 1000 / 8 // of a megabit
	for _, m := range s.lab.Members() {
		m.Proxy().Latency(l.rtt, 0)
		m.Proxy().Link(l.megabit * kilobytes)
	}
}
