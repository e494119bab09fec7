package checkpoint

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// FormatVersion is the layout of the documents below. A job written by a newer
// layout is refused.
const FormatVersion = 1

// Job is the document of collection "jobs", one a job.
type Job struct {
	ID      string `bson:"_id"`
	Version int    `bson:"version"`
	// Source and Target are addresses without credentials; SourceSet and
	// TargetSet the replica-set ids; Rules the canonical form of the rules.
	Source    string        `bson:"source"`
	Target    string        `bson:"target"`
	SourceSet bson.ObjectID `bson:"sourceSet"`
	TargetSet bson.ObjectID `bson:"targetSet"`
	Rules     string        `bson:"rules"`
	Mode      string        `bson:"mode"`
	// OnExisting is the policy for the target's collections with which it began.
	OnExisting string `bson:"onExisting,omitempty"`

	Phase     string    `bson:"phase"`
	CreatedAt time.Time `bson:"createdAt"`
	UpdatedAt time.Time `bson:"updatedAt"`

	// Fence is raised by each process that takes the job over; a save by an
	// older owner fails. Beat is raised by each save: while it moves, the owner
	// lives. A zero Owner has let the job go.
	Fence int64 `bson:"fence"`
	Beat  int64 `bson:"beat"`
	Owner Owner `bson:"owner"`

	// Start is P0, Consistent P1 (zero before the copy ended).
	Start      mongo.OpTime `bson:"start"`
	Consistent mongo.OpTime `bson:"consistent"`
	// Applied and ReadFrom are the two positions of a resume.
	Applied  mongo.OpTime `bson:"applied"`
	ReadFrom mongo.OpTime `bson:"readFrom"`
	// WindowEnd is until where the target may be ahead of an event.
	WindowEnd mongo.OpTime `bson:"windowEnd"`
	// Intent is the position of a schema change that is being applied: after a
	// crash it may or may not have happened.
	Intent mongo.OpTime `bson:"intent"`
	// Session is that of the owner's transactions on the target.
	Session bson.Raw `bson:"session,omitempty"`
	// Paused survives a restart.
	Paused bool `bson:"paused"`
	// Resyncs are collections that have to be copied again because a rename
	// brought them inside the filter.
	Resyncs []Resync `bson:"resyncs,omitempty"`
}

// Resync is one collection to copy by UUID into a target namespace.
type Resync struct {
	UUID   bson.Binary `bson:"uuid"`
	Target string      `bson:"target"`
}
