package bench

import "context"

// scenario is one thing that is measured.
type scenario struct {
	name    string
	work    string
	ceiling string
	run     func(ctx context.Context, b *bench, s scenario) error
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

const copyCeiling = "time to read it alone + time to insert it alone from memory, each at its best settings"

const backlogCeiling = "time to read the oplog alone + time to apply the folded operations alone from memory, each at its best settings"

func scenarios() []scenario {
	return []scenario{
		{"full-one", "copy one collection of 1 KB documents with hashed string _ids", copyCeiling, fullOne},
		{"full-cold", "the same, the source's servers restarted and their cache a fifth of the data", copyCeiling, fullCold},
		{"full-many", "copy five collections", copyCeiling, fullMany},
		{"full-small", "copy ten collections of 140-byte documents", copyCeiling, fullSmall},
		{"full-indexed", "copy one collection with 1, 3, 5 and 10 secondary indexes", copyCeiling + "; indexes before or after, whichever is faster", fullIndexed},
		{"full-mixed-ids", "copy one collection with _ids of eight BSON types", copyCeiling, fullMixed},
		{"full-wan", "copy with 40 ms round trip to the target", "insert alone from memory over the same link, at its best settings", fullWAN},
		{"incr-backlog", "drain a backlog of 70 % inserts and 30 % zipfian updates of 1 KB documents", backlogCeiling, incrBacklog},
		{"incr-small", "drain inserts, updates and deletes of 140-byte documents in ten collections", backlogCeiling, incrSmall},
		{"incr-hot", "drain updates of ten documents", backlogCeiling, incrHot},
		{"incr-unique", "drain a backlog on a collection with two unique secondary indexes, and without", backlogCeiling, incrUnique},
		{"incr-live", "follow writes of 1 KB documents at 50, 80 and 100 % of what the source takes", "the source without a follower, at the same pace", incrLive},
		{"latency", "from a write on the source until it is visible on the target, 100 writes a second", "until a change stream on the source gives it", latency},
		{"idle", "follow a source on which nothing happens", "the servers without a follower", idle},
		{"topology", "insert into replica sets with chaining off, on, and planned", treeCeiling, topologies},
		{"seed", "a new replica-set member while light writes go on: 1, 2, 5, 10 indexes on one collection; 1, 10, 100 collections of 5 indexes", "the files copied once under fsyncLock, no mongod started on them", seedFiles},
		{"verify", "compare the data of full-one with an equal target", "read both sides at the same time, each at its best settings", verify},
	}
}
