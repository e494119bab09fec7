package state

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// FormatVersion is the layout of the documents below. Others are refused.
const FormatVersion = 4

// Job is the document of collection "jobs", one a job.
type Job struct {
	ID      string `bson:"_id"`
	Version int    `bson:"version"`
	// Source and Target are addresses without credentials, SourceSet and TargetSet replica-set ids,
	// Rules the canonical form of the rules.
	Source    string        `bson:"source"`
	Target    string        `bson:"target"`
	SourceSet bson.ObjectID `bson:"sourceSet"`
	TargetSet bson.ObjectID `bson:"targetSet"`
	Rules     string        `bson:"rules"`
	Mode      Mode          `bson:"mode"`
	// Keys identifies the keys by which the rules mask (transform.Keys.Seal).
	Keys string `bson:"keys"`
	// Settings are those of the latest run that no other field tells, as words of a command line without secrets.
	Settings []string `bson:"settings,omitempty"`
	// Capture is how the job reads changes. Earlier versions, which read oplogs, have stored none.
	Capture Capture `bson:"capture,omitempty"`
	// Files says that the target was made of files: the job's agents let it expire documents after finalize.
	Files bool `bson:"files,omitempty"`
	// OnExisting is the initial policy for the target's collections.
	OnExisting OnExisting `bson:"onExisting,omitempty"`
	// Users are the users and roles that the job has written.
	Users []User `bson:"users,omitempty"`

	Phase     Phase     `bson:"phase"`
	CreatedAt time.Time `bson:"createdAt"`
	UpdatedAt time.Time `bson:"updatedAt"`

	// Each attempt raises Fence, which is never used again: a save by an older attempt fails. Each
	// save raises Beat: while it moves, the owner lives. A zero Owner has released the job.
	Fence int64 `bson:"fence"`
	Beat  int64 `bson:"beat"`
	Owner Owner `bson:"owner"`
	// Restarted says that the job begins anew and that the state of its earlier life is still to be
	// removed.
	Restarted bool `bson:"restarted"`
	// Shared says that an earlier life wrote into collections that it had not created.
	Shared bool `bson:"shared,omitempty"`

	// Start is P0, Consistent P1 (zero before the copy ended).
	Start      mongo.OpTime `bson:"start"`
	Consistent mongo.OpTime `bson:"consistent"`
	// Copied is P1 of the first copy, or the source's position when the job began on a target that
	// others had filled. Consistent moves on with later copies and reads.
	Copied mongo.OpTime `bson:"copied,omitempty"`
	// Chunks are a sharded source's notes of its chunks when the copy began.
	Chunks bson.Raw `bson:"chunks,omitempty"`
	// Applied and Mark are the position to resume from (ResumeAt).
	Applied mongo.OpTime `bson:"applied"`
	Mark    string       `bson:"mark"`
	// Reach is stored before events are sent. None beyond it were sent to the target.
	Reach mongo.OpTime `bson:"reach"`
	// Refused are documents whose conflict stopped the job: their events from those positions on
	// are not on the target.
	Refused []stream.Place `bson:"refused"`
	// Taken are collections that are retained under their old names (transform.Taken).
	Taken transform.Taken `bson:"taken,omitempty"`
	// Intent is the position of a schema change in progress: after a crash it may have happened.
	// Before is the target's state before it.
	Intent mongo.OpTime  `bson:"intent"`
	Before schema.Before `bson:"before,omitempty"`
	// Session is that of the owner's transactions on the target.
	Session bson.Raw `bson:"session,omitempty"`
	// Assistants are the tokens of the assistants that may write for the attempt with the fence.
	Assistants []string `bson:"borrowers,omitempty"`
	// Paused survives a restart.
	Paused bool `bson:"paused"`
	// Roomy says that capped collections of the target have room for everything until finalize:
	// only the source's changes remove documents. Else they roll off by themselves.
	Roomy bool `bson:"roomy,omitempty"`
	// Expiring says that finalize has drained, and that the target expires documents by itself: the
	// job follows no more changes.
	Expiring bool `bson:"expiring"`
	// Differences are the first ones between the catalogs when the job was finalized.
	Differences []string `bson:"differences"`
	// FinalizedAt is when the job was finalized. TargetPosition is the target's position then,
	// after all writes of the job.
	FinalizedAt    time.Time    `bson:"finalizedAt"`
	TargetPosition mongo.OpTime `bson:"targetPosition"`
	// NoWayBack says why finalize could not store the way back, "" if it could.
	NoWayBack string `bson:"noWayBack,omitempty"`
	// Reverses is the job that this one leads back, and Returns the rules of that job; "" for none.
	Reverses string `bson:"reverses,omitempty"`
	Returns  string `bson:"returns,omitempty"`
	// Ended is the mode in which the job was finalized.
	Ended Mode `bson:"ended"`
	// Stop says why the latest run has stopped: nil if it runs, was killed, or has finalized the job.
	Stop *Stop `bson:"stop,omitempty"`
}

// Stop is why a run has stopped.
type Stop struct {
	Error string `bson:"error"`
	Hint  string `bson:"hint,omitempty"`
}

// ResumeAt is the position from which the job goes on.
func (j Job) ResumeAt() stream.Position { return stream.Position{At: j.Applied, Mark: j.Mark} }

// Shares reports that the job, or an earlier life of it, wrote into collections that it had not
// created.
func (j Job) Shares() bool {
	return j.Shared || j.OnExisting == ExistingMerge || j.Mode == ModeIncremental
}

// Anew returns the job before its first phase: it has read and applied nothing.
func (j Job) Anew() Job {
	var zero mongo.OpTime
	j.Start, j.Consistent, j.Copied, j.Applied, j.Reach, j.Intent = zero, zero, zero, zero, zero, zero
	j.Phase, j.Mark, j.Taken, j.Expiring, j.Refused, j.Differences = PhaseCatalog, "", transform.Taken{}, false, nil, nil
	return j
}

// With returns the job with fields set.
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

func readJob(raw bson.Raw) (job Job, err error) {
	if err = bson.Unmarshal(raw, &job); err != nil {
		job = Job{}
		job.ID, _ = raw.Lookup("_id").StringValueOK()
		err = fmt.Errorf("read job %s: %w", job.ID, err)
	}
	return job, err
}

// User is a user or a role on the target, with a hash of its definition. See package users.
type User struct {
	ID  string `bson:"id"`
	Sum string `bson:"sum"`
}

// Mode says which parts of a job run.
type Mode string

const (
	ModeAll         Mode = "all"         // copy, then follow
	ModeFull        Mode = "full"        // copy only
	ModeIncremental Mode = "incremental" // follow only
	ModeStructure   Mode = "structure"   // collections, options, indexes and views, no documents
)

// EndsByItself reports a mode whose job nobody has to finalize.
func (m Mode) EndsByItself() bool { return m == ModeFull || m == ModeStructure }

// Capture says how the changes of a source are read.
type Capture string

const (
	CaptureAuto    Capture = "auto"           // oplogs if rights and routes allow it, else change streams
	CaptureOplog   Capture = "oplog"          // of a replica set, or of each shard
	CaptureStreams Capture = "change-streams" // of the deployment
)

// OnExisting says what to do with target collections that exist already.
type OnExisting string

const (
	ExistingFail  OnExisting = "fail"  // refuse before anything is written
	ExistingMerge OnExisting = "merge" // keep them; the source's document wins on the same _id
	ExistingDrop  OnExisting = "drop"  // drop them first
)

// Or returns the policy that the job began with, unless another is requested.
func (e OnExisting) Or(began OnExisting) OnExisting {
	if (e == "" || e == ExistingFail) && began != "" {
		return began
	}
	return e
}

// Phase is where a job stands.
type Phase string

// The phases of a job, in order. The first and the last are only shown.
const (
	PhaseStarting   Phase = "starting"
	PhaseCatalog    Phase = "catalog"    // taking the snapshot, or the start position
	PhaseCreating   Phase = "creating"   // collections
	PhaseCopying    Phase = "copying"    // documents
	PhaseIndexing   Phase = "indexing"   // indexes after the copy
	PhaseOverlap    Phase = "overlap"    // applying changes made during the copy
	PhaseFollowing  Phase = "following"  // steady state
	PhaseFinalizing Phase = "finalizing" // draining and restoring what was deferred
	PhaseFinalized  Phase = "finalized"  // cut-over may happen
	PhaseFailed     Phase = "failed"
)

// AfterCopy reports whether the copy is complete.
func (p Phase) AfterCopy() bool {
	return slices.Contains([]Phase{PhaseIndexing, PhaseOverlap, PhaseFollowing, PhaseFinalizing, PhaseFinalized}, p)
}

// PositionFields returns the fields of a job's document for a position.
func PositionFields(p stream.Position) bson.D {
	return bson.D{{Key: "applied", Value: p.At}, {Key: "mark", Value: p.Mark}}
}

// Listed is a job as List finds it.
type Listed struct {
	Job
	Err error // why it cannot be read: then it has its ID alone
}

// List reads all jobs on a target, by name, from the primary. It is for display.
func List(ctx context.Context, c *mongo.Cluster) ([]Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	jobs := c.Client.Database(mongo.StateDB, options.Database().SetReadPreference(readpref.Primary())).Collection("jobs")
	raws, err := mongo.ReadAll[bson.Raw](ctx, "list the jobs of %s", c.Address())(
		jobs.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))
	if err != nil {
		return nil, err
	}
	out := make([]Listed, len(raws))
	for i, raw := range raws {
		out[i].Job, out[i].Err = readJob(raw)
	}
	return out, nil
}

// Life says whether a process runs a job.
type Life string

const (
	Running    Life = "running"    // its owner has given a sign of life
	Silent     Life = "silent"     // its owner may live, and has given none for some seconds
	Stopped    Life = "stopped"    // nobody owns it, or its owner is dead
	Finalized  Life = "finalized"  // stopped, and nothing is left to do
	Unreadable Life = "unreadable" // nothing is known
)

func (j *Listed) unowned() Life {
	switch {
	case j.Err != nil:
		return Unreadable
	case j.Phase == PhaseFinalized:
		return Finalized
	}
	return Stopped
}

const listenFor = 2*BeatEvery + time.Second

// Lives returns by name which jobs run. It waits for the next sign of life of each, at most some
// seconds.
func Lives(ctx context.Context, c *mongo.Cluster, jobs []Listed) (map[string]Life, error) {
	lives, asked := map[string]Life{}, map[string]Listed{}
	for _, j := range jobs {
		if lives[j.ID] = j.unowned(); j.Owner != (Owner{}) && !j.Owner.dead() {
			lives[j.ID], asked[j.ID] = Silent, j
		}
	}
	for began := time.Now(); len(asked) > 0 && time.Since(began) < listenFor; {
		if err := pace.Pause(ctx, 250*time.Millisecond); err != nil {
			return nil, err
		}
		now, err := List(ctx, c)
		if err != nil {
			return nil, err
		}
		for _, j := range now {
			was, ok := asked[j.ID]
			if !ok || j.Owner == was.Owner && j.Beat == was.Beat && j.Fence == was.Fence {
				continue
			}
			delete(asked, j.ID)
			if lives[j.ID] = j.unowned(); j.Owner != (Owner{}) {
				lives[j.ID] = Running
			}
		}
	}
	return lives, nil
}

// Kept counts the documents of a job in each collection that Clear empties.
func (s *Mongo) Kept(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for _, coll := range cleared() {
		n, err := s.db.Collection(coll).CountDocuments(ctx, bson.D{mongo.OfJob(s.o.Job)})
		if err != nil {
			return nil, fmt.Errorf("count %s of job %s: %w", coll, s.o.Job, err)
		}
		out[coll] = n
	}
	return out, nil
}

// Drop removes the document of the job, after everything else of it.
func (s *Mongo) Drop(ctx context.Context) error {
	_, err := s.c.DeleteState(ctx, "jobs", "majority", s.attempt())
	return mongo.Wrap(err, "drop job %s", s.o.Job)
}
