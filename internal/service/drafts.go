package service

import "encoding/json"

// DraftQuestion is what a question about a draft needs.
type DraftQuestion struct {
	Settings string     `json:"settings"`
	Inspect  InspectAsk `json:"inspect"`
	Sample   SampleAsk  `json:"sample"`
}

// InspectAsk chooses the collections that are told of.
type InspectAsk struct {
	// After is the next of the page before, Search a part of names.
	After  string `json:"after,omitempty"`
	Search string `json:"search,omitempty"`
	// Limit is how many, 0 none.
	Limit int `json:"limit"`
}

// SampleAsk chooses documents.
type SampleAsk struct {
	NS   string `json:"ns"`
	Docs int    `json:"docs"`
}

// Inspection is what a worker finds of a draft's clusters.
type Inspection struct {
	Worker string `json:"worker"`
	Source Side   `json:"source"`
	Target Side   `json:"target"`
	// Databases has the collections of the page, by name. Next is the After of the next page, "" at the end.
	Databases []InspectedDatabase `json:"databases"`
	Next      string              `json:"next"`
	// Unreadable are databases that the user of the source may not look into.
	Unreadable []string `json:"unreadable"`
	// Trouble says why the collections are not told.
	Trouble string `json:"trouble"`
}

// Side is a cluster. Error says why it cannot be reached, "" where it can.
type Side struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
	FCV     string `json:"fcv"`
	Set     string `json:"set"`
	// Members are the hosts of a replica set, or the shards of a sharded cluster, up to 100.
	Members []string `json:"members"`
	Error   string   `json:"error"`
	Hint    string   `json:"hint"`
}

// InspectedDatabase is a database of the source, with collections of a page.
type InspectedDatabase struct {
	Name        string                `json:"name"`
	Collections []InspectedCollection `json:"collections"`
}

// InspectedCollection is a collection of the source.
type InspectedCollection struct {
	NS     string `json:"ns"`
	Kind   string `json:"kind"` // collection, timeseries or view
	Capped bool   `json:"capped"`
	// Documents and Bytes are estimates, -1 where they are not known.
	Documents int64  `json:"documents"`
	Bytes     int64  `json:"bytes"`
	ShardKey  string `json:"shardKey"`
	// Kept says that the draft's rules have it, under the name Target.
	Kept   bool   `json:"kept"`
	Target string `json:"target"`
}

// DraftPlan is what a job of a draft would do, and what stands in its way.
type DraftPlan struct {
	Worker string `json:"worker"`
	// Ready says that no check has failed.
	Ready bool `json:"ready"`
	// Resumes says that the target has a checkpoint of such a job, Finalized that it is done.
	Resumes     bool  `json:"resumes"`
	Finalized   bool  `json:"finalized"`
	Collections int   `json:"collections"`
	Documents   int64 `json:"documents"`
	Bytes       int64 `json:"bytes"`
	// Existing has the first of these collections that the target has already, ExistingTotal is their number.
	Existing      []string     `json:"existing,omitempty"`
	ExistingTotal int          `json:"existingTotal,omitempty"`
	Checks        []DraftCheck `json:"checks"`
}

// DraftCheck is a check of a plan.
type DraftCheck struct {
	Name    string `json:"name"`
	Level   string `json:"level"` // ok, warn or fail
	Message string `json:"message"`
	Hint    string `json:"hint"`
	// Skips are settings that let a failed check pass, such as "allow-downgrade: true".
	Skips []string `json:"skips"`
}

// DraftSample is what becomes of some documents of a collection.
type DraftSample struct {
	Worker string `json:"worker"`
	NS     string `json:"ns"`
	// Target is its name there, "" where the rules do not keep it.
	Target    string           `json:"target"`
	Documents []SampleDocument `json:"documents"`
	// Cut says that there was no room for all that were asked for.
	Cut bool `json:"cut"`
}

// SampleDocument is a document before and after the rules: extended JSON, or a text if it is too large. After
// is null if the rules leave it out, or cannot map it, as Error says.
type SampleDocument struct {
	Before  json.RawMessage `json:"before"`
	After   json.RawMessage `json:"after"`
	Changed bool            `json:"changed"`
	Error   string          `json:"error"`
}
