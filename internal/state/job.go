package state

import (
	"cmp"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// FormatVersion is the layout of the documents below. A job written by a newer
// layout is refused.
const FormatVersion = 4

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
	Mode      Mode          `bson:"mode"`
	// Keys tells the keys by which the rules mask from others (transform.Keys.Seal).
	Keys string `bson:"keys"`
	// OnExisting is the policy for the target's collections with which it began.
	OnExisting OnExisting `bson:"onExisting,omitempty"`
	// Users are the users and roles that the job has written, as it wrote them.
	Users []User `bson:"users,omitempty"`

	Phase     Phase     `bson:"phase"`
	CreatedAt time.Time `bson:"createdAt"`
	UpdatedAt time.Time `bson:"updatedAt"`

	// Fence is raised by each attempt at the job and never used again: a save
	// by an older attempt fails. Beat is raised by each save: while it moves, the
	// owner lives. A zero Owner has let the job go.
	Fence int64 `bson:"fence"`
	Beat  int64 `bson:"beat"`
	Owner Owner `bson:"owner"`
	// Restarted says that the job begins anew and that what an earlier life of
	// it left in the target's database is still to be removed.
	Restarted bool `bson:"restarted"`
	// Shared says that an earlier life wrote into collections that it had not made.
	Shared bool `bson:"shared,omitempty"`

	// Start is P0, Consistent P1 (zero before the copy ended).
	Start      mongo.OpTime `bson:"start"`
	Consistent mongo.OpTime `bson:"consistent"`
	// Copied is P1 of the copy that the job began with. If the job began on a target that
	// others had filled, it is the source's position at that time. Consistent moves on where a
	// collection is copied, or documents are read, later. Zero is Consistent.
	Copied mongo.OpTime `bson:"copied,omitempty"`
	// Chunks is what a sharded source noted of its chunks when the copy began. It is
	// the source's own.
	Chunks bson.Raw `bson:"chunks,omitempty"`
	// Applied and Mark are the position of a resume (stream.Position). Before
	// format 3 ReadFrom stood in the place of Mark.
	Applied  mongo.OpTime `bson:"applied"`
	Mark     string       `bson:"mark"`
	ReadFrom mongo.OpTime `bson:"readFrom,omitempty"`
	// Reach is the position beyond which no event has been sent to the target.
	// It is noted before events are sent.
	Reach mongo.OpTime `bson:"reach"`
	// Refused are documents that a conflict stopped the job at: their events
	// from those positions on are not on the target.
	Refused []stream.Place `bson:"refused"`
	// Taken is what is known of collections that are retained under their old names (transform.Taken).
	Taken transform.Taken `bson:"taken,omitempty"`
	// Intent is the position of a schema change that is being applied: after a
	// crash it may or may not have happened. Before is what the target had then.
	Intent mongo.OpTime  `bson:"intent"`
	Before schema.Before `bson:"before,omitempty"`
	// Session is that of the owner's transactions on the target.
	Session bson.Raw `bson:"session,omitempty"`
	// Assistants are the tokens of the assistants that may write for the attempt with the
	// fence, for the slices of the copy that are assigned to them.
	Assistants []string `bson:"borrowers,omitempty"`
	// Paused survives a restart.
	Paused bool `bson:"paused"`
	// Roomy says that capped collections of the target have room for everything until
	// finalize: only what the source's changes say goes there. Else they let
	// documents go by themselves.
	Roomy bool `bson:"roomy,omitempty"`
	// Expiring says that finalize has drained, and that the target expires documents by itself:
	// the job follows no more changes.
	Expiring bool `bson:"expiring"`
	// Differences are how the target's catalog differed from the source's when the
	// job was finalized, the first of them.
	Differences []string `bson:"differences"`
	// FinalizedAt is when the job was finalized. TargetPosition is the target's own
	// position then: all that the job has written there is before it.
	FinalizedAt    time.Time    `bson:"finalizedAt"`
	TargetPosition mongo.OpTime `bson:"targetPosition"`
	// NoWayBack says why finalize could not store the way back, "" where it could.
	NoWayBack string `bson:"noWayBack,omitempty"`
	// Reverses is the job that this one leads back, and Returns the rules of that job; "" for none.
	Reverses string `bson:"reverses,omitempty"`
	Returns  string `bson:"returns,omitempty"`
	// Ended is the mode in which the job was finalized, which may be another one than that
	// with which it began; "" for jobs that older versions finalized.
	Ended Mode `bson:"ended"`
}

// OnlyCopied reports that a finalized job ended with a full copy, and followed nothing.
func (j Job) OnlyCopied() bool { return cmp.Or(j.Ended, j.Mode) == ModeFull }

// Shares reports that the job, or an earlier life of it, wrote into collections
// that it had not made.
func (j Job) Shares() bool {
	return j.Shared || j.OnExisting == ExistingMerge || j.Mode == ModeIncremental
}

// Anew is the job as it was before its first phase: it has read nothing, and applied nothing.
func (j Job) Anew() Job {
	j.Phase, j.Start, j.Consistent, j.Copied, j.Applied, j.Mark = PhaseCatalog, mongo.OpTime{}, mongo.OpTime{},
		mongo.OpTime{}, mongo.OpTime{}, ""
	j.Taken = transform.Taken{}
	j.ReadFrom, j.Reach, j.Intent, j.Expiring, j.Refused, j.Differences = mongo.OpTime{}, mongo.OpTime{}, mongo.OpTime{},
		false, nil, nil
	return j
}

// With is the job after fields of it were set.
func (j Job) With(set bson.D) (Job, error) {
	if len(set) == 0 {
		return j, nil
	}
	raw, err := bson.Marshal(set)
	if err == nil {
		err = bson.Unmarshal(raw, &j)
	}
	return j, err
}

// readJob reads the document of a job. One that cannot be read has its ID alone.
func readJob(raw bson.Raw) (job Job, err error) {
	if err = bson.Unmarshal(raw, &job); err != nil {
		job = Job{}
		job.ID, _ = raw.Lookup("_id").StringValueOK()
		err = fmt.Errorf("read job %s: %w", job.ID, err)
	}
	return job, err
}

// User is a user or a role on the target, and a sum of what it says. See package users.
type User struct {
	ID  string `bson:"id"`
	Sum string `bson:"sum"`
}
