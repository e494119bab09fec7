package copy

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Strategy is how a collection is cut and walked.
type Strategy string

// The strategies. All but Serial can be resumed inside a slice.
const (
	// ByRecord walks in record order, bounded by record ids (4.4 and newer).
	// Record ids belong to one member: a plan is void on another.
	ByRecord Strategy = "record"
	// ByID walks the _id index between raw index bounds.
	ByID Strategy = "id"
	// ByKey walks a collection clustered by _id with comparisons, where the
	// server takes no index bounds for it (5.0); its _ids are of one type.
	ByKey Strategy = "key"
	// Serial keeps the order of a collection whose order is content (capped),
	// or that has no _id index to recognize a document by. It is not resumed
	// but copied again into the emptied target.
	Serial Strategy = "serial"
)

// SliceState is the durable progress of one slice. It holds all that a restart
// needs. Collection and N are its key; a later Plan of the same collection
// supersedes the states of earlier ones.
type SliceState struct {
	Collection string   `bson:"collection"` // hex UUID of the source's collection
	N          int      `bson:"n"`          // 0 … Of-1
	Of         int      `bson:"of"`         // slices in the plan; a plan with fewer states saved is void
	Plan       int64    `bson:"plan"`       // generation, the highest counts
	NS         string   `bson:"ns"`         // target namespace, for people
	Strategy   Strategy `bson:"strategy"`
	Node       string   `bson:"node,omitempty"` // ByRecord: the member whose record ids these are
	Life       string   `bson:"life,omitempty"` // ByRecord: the member's process and rollbacks; record ids change with them

	// Bounds and position are {r: record id, _id: …} for ByRecord, else
	// {_id: …}; absent means open. ByRecord is (Lower, Upper], else [Lower, Upper).
	Lower    bson.Raw `bson:"lower,omitempty"`
	Upper    bson.Raw `bson:"upper,omitempty"`
	Position bson.Raw `bson:"position,omitempty"` // last document acknowledged, with all before it
	// Back are record ids below Lower and at or below Position, newest first:
	// places to start from when the record at Lower or Position was deleted.
	Back []int64 `bson:"back,omitempty"`

	// At is the position as of which the documents of a capped collection are.
	// Those deleted since may be missing, updates since may be in them, and what
	// was inserted since is not there.
	At mongo.OpTime `bson:"at,omitempty"`

	Done        bool  `bson:"done"`
	Dropped     bool  `bson:"dropped,omitempty"` // the collection vanished from the source
	Docs, Bytes int64 // acknowledged up to Position
}

// Store keeps slice states.
type Store interface {
	// LoadSlices returns what was saved, in any order.
	LoadSlices(ctx context.Context) ([]SliceState, error)
	// SaveSlices returns once changed is durable on the target (majority). It
	// fails with an error of class retry when writes since the last call may
	// have been rolled back.
	SaveSlices(ctx context.Context, changed []SliceState) error
	// SameTerm is told the election term of each answer to a data write, from
	// several goroutines, and fails when it is not that of the attempt.
	SameTerm(term int64) error
}

// newestPlans returns per collection the states of its newest plan, by N, if
// all of them are there.
func newestPlans(states []SliceState) (plans map[string][]SliceState, generation map[string]int64) {
	plans, generation = map[string][]SliceState{}, map[string]int64{}
	for _, s := range states {
		generation[s.Collection] = max(generation[s.Collection], s.Plan)
	}
	for _, s := range states {
		if s.Plan == generation[s.Collection] {
			plans[s.Collection] = append(plans[s.Collection], s)
		}
	}
	for c, p := range plans {
		slices.SortFunc(p, func(a, b SliceState) int { return a.N - b.N })
		if !complete(p) {
			delete(plans, c)
		}
	}
	return plans, generation
}

func complete(p []SliceState) bool {
	for i, s := range p {
		if s.N != i || s.Of != len(p) {
			return false
		}
	}
	return true
}
