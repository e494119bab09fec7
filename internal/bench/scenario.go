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

func scenarios() []scenario {
	return []scenario{
		{"full-one", "copy one collection of 1 KB documents with hashed string _ids", copyCeiling, fullOne},
		{"full-cold", "the same, the source's servers restarted and their cache a fifth of the data", copyCeiling, fullCold},
		{"full-many", "copy five collections", copyCeiling, fullMany},
		{"full-small", "copy ten collections of 140-byte documents", copyCeiling, fullSmall},
		{"full-indexed", "copy one collection with 1, 3, 5 and 10 secondary indexes", copyCeiling + "; indexes before or after, whichever is faster", fullIndexed},
		{"full-mixed-ids", "copy one collection with _ids of eight BSON types", copyCeiling, fullMixed},
		{"full-wan", "copy with 40 ms round trip to the target", "insert alone from memory over the same link, at its best settings", fullWAN},
	}
}
