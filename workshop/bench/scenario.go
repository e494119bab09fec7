package bench

import (
	"context"
	"time"
)

// scenario is one thing that is measured: an entry of the table.
type scenario struct {
	name    string
	work    string // for people
	ceiling string // for people
	experiment
}

// experiment is a kind of work, with what an entry says of it. It measures one
// or several cases and adds them to the report.
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
	copyCeiling    = "time to read it alone + time to insert it alone from memory, each at its best settings, until a majority of the target's members has it"
	backlogCeiling = "time to read the oplog alone + time to apply the folded operations alone from memory, each at its best settings, until a majority of the target's members has it"
)

// shardedCeiling has no reading, as nobody knows the best way to read a cluster.
const shardedCeiling = "what the target takes from lean writers, from memory and at its best settings: of a sharded cluster what its routers take"

// scenarios is the table. Numbers are those of the medium scale.
func scenarios() []scenario {
	readAndInsert := copyWay{name: "ceiling", kind: KindCeiling, read: true}
	const away = 40 * time.Millisecond
	noOplog := copyWay{name: "no oplog", kind: KindReference, unreplicated: true}
	return []scenario{
		{"full-one", "copy one collection of 1 KB documents with hashed string _ids", copyCeiling,
			copying{docs: 1_000_000, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-cold", "the same, the source's servers restarted and their cache a fifth of the data", copyCeiling,
			copying{docs: 1_000_000, cold: true, ways: []copyWay{readAndInsert}}},
		{"full-many", "copy five collections", copyCeiling,
			copying{docs: 1_000_000, collections: 5, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-small", "copy ten collections of 140-byte documents", copyCeiling,
			copying{shape: small, docs: 4_000_000, collections: 10, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-indexed", "copy one collection with 1, 3, 5 and 10 secondary indexes", copyCeiling + "; indexes before or after, whichever is faster",
			copying{docs: 300_000, indexes: []int{1, 3, 5, 10}, ways: []copyWay{
				{name: "ceiling, indexes after", kind: KindCeiling, read: true},
				{name: "ceiling, indexes before", kind: KindCeiling, read: true, indexesFirst: true},
			}}},
		{"full-mixed-ids", "copy one collection with _ids of eight BSON types", copyCeiling,
			copying{shape: mixedIDs, docs: 1_000_000, ways: []copyWay{readAndInsert, noOplog}}},
		{"full-filtered", "copy one collection as full-one, with a filter that keeps all of it, and with one that keeps 1 %", copyCeiling,
			copying{docs: 1_000_000, extra: choosings(), ways: []copyWay{readAndInsert}}},
		{"full-mapped", "copy one collection of texts as full-one, and with three of its ten fields renamed, dropped and masked", copyCeiling,
			copying{shape: texts, docs: 1_000_000, extra: mappings(), ways: []copyWay{readAndInsert}}},
		{"full-wan", "copy with 40 ms round trip to the target", "insert alone from memory over the same link, at its best settings",
			copying{docs: 300_000, link: link{rtt: away}, ways: []copyWay{{name: "ceiling", kind: KindCeiling}}}},
		{"full-wan-narrow", "the same over 100 Mbit/s", "insert alone from memory over the same link, uncompressed, at its best settings",
			copying{docs: 100_000, link: link{rtt: away, megabit: 100}, ways: []copyWay{{name: "ceiling", kind: KindCeiling}}}},
		{"incr-wan", "drain a backlog as incr-backlog with 40 ms round trip to the target", "apply the folded operations alone from memory over the same link, at its best settings",
			draining{load: workload{operations: 1_000_000, inserts: 0.7}, link: link{rtt: away}}},
		{"incr-backlog", "drain a backlog of 70 % inserts and 30 % zipfian updates of 1 KB documents", backlogCeiling,
			draining{load: workload{operations: 1_000_000, inserts: 0.7}}},
		{"incr-filtered", "drain a backlog as incr-backlog, and with filters that keep all of it: one that no update can change, and one that looks at one of the ten fields", backlogCeiling,
			draining{load: workload{operations: 1_000_000, inserts: 0.7}, extra: filterings()}},
		{"incr-mapped", "drain a backlog of texts as incr-backlog, and with three of ten fields renamed, dropped and masked", backlogCeiling,
			draining{shape: texts, load: workload{operations: 1_000_000, inserts: 0.7}, extra: mappings()}},
		{"incr-small", "drain inserts, updates and deletes of 140-byte documents in ten collections", backlogCeiling,
			draining{shape: small, load: workload{operations: 2_000_000, collections: 10, inserts: 0.5, deletes: 0.1}}},
		{"incr-threads", "drain the backlog of incr-small with 6, 9, 12 and 15 partitions and --apply-buffer 16MiB and 64MiB", backlogCeiling,
			draining{shape: small, settings: threadSettings(),
				load: workload{operations: 2_000_000, collections: 10, inserts: 0.5, deletes: 0.1}}},
		{"incr-hot", "drain updates of ten documents", backlogCeiling,
			draining{load: workload{operations: 1_000_000, hot: 10}}},
		{"incr-unique", "drain a backlog on a collection with two unique secondary indexes, and without", backlogCeiling,
			draining{shape: unique, load: workload{operations: 500_000, inserts: 0.7}, variants: []indexed{
				{"with", []index{{"serial", true}, {"email", true}}}, {"without", nil},
			}}},
		{"incr-live", "follow writes of 1 KB documents at 50, 80 and 100 % of what the source takes", "the source without a follower, at the same pace",
			followingWrites{shares: []float64{0.5, 0.8, 1}}},
		{"full-sharded", "copy from a sharded cluster and to one, the balancer of the source off and on", shardedCeiling,
			copyingShards{docs: 1_000_000}},
		{"incr-sharded", "drain a backlog as incr-backlog of a sharded cluster and for one, the balancer of the source off and on", shardedCeiling,
			drainingShards{workload{operations: 1_000_000, inserts: 0.7}}},
		{"latency-sharded", "latency from a sharded cluster on which nothing else happens", "until the write is acknowledged by a majority on the source",
			followingShards{}},
		{"latency", "from a write on the source until it is visible on the target, 100 writes a second", "until a change stream on the source gives it",
			followingOne{concerns: []any{"majority", 1}}},
		{"idle", "follow a source on which nothing happens", "the servers without a follower", resting{}},
		{"topology", "insert into replica sets with chaining off, on, and planned", "the better of chaining off and chaining on, the two that MongoDB offers", trees{}},
		{"seed", "a new replica-set member while light writes go on: 1, 2, 5, 10 indexes on one collection; 1, 10, 100 collections of 5 indexes", "the files copied once under fsyncLock, no mongod started on them",
			seeding{}},
		{"verify", "compare the data of full-one with an equal target", "read both sides at the same time, each at its best settings",
			comparing{docs: 1_000_000}},
		{"service", "serve with 1000 definitions, and two workers with 100 jobs that follow lightly: memory and processor of a job, latency of the API", "GET /livez of the same serve, which looks at nothing",
			serving{}},
	}
}

// onServers starts the servers that a scenario needs, for the time of do.
func (b *bench) onServers(ctx context.Context, s scenario, n needs, do func(*site) error) (err error) {
	b.say("%s: starting servers", s.name)
	st, err := b.open(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, st) }()
	return do(st)
}
