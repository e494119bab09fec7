package state

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

// BeatEvery is how often an owner proves itself by Beat.
const BeatEvery = 2 * time.Second

// ErrFenced means that another process has taken the job over.
var ErrFenced = errors.New("another millrace process has taken over this job")

// ErrRunning means that another process runs the job.
var ErrRunning = errors.New("another millrace process runs this job")

// Store keeps one job for one run of it. It is safe for concurrent use. What it
// has saved, a store opened later for the same job finds.
//
// A run takes the job over (Lease), then makes attempts. An attempt is one run
// of the job's phases from what is saved; all that an attempt saves is refused
// once a newer one has begun. Where the sink elects primaries, an attempt
// belongs to one election term: a write that was answered in another ends it.
type Store interface {
	Lease
	Jobs
	Slices
	Catalog
	Skipped
	// Clear removes what an earlier life of the job left besides its document.
	Clear(ctx context.Context) error
}

// Lease says who may write for the job.
type Lease interface {
	// TakeOver makes this run the owner of an existing job and returns the job as
	// it was. A living owner is not displaced: that is ErrRunning. Where only time
	// can tell, waiting is called and the owner's beat is watched for some
	// seconds. Nothing may be written before Begin has returned.
	TakeOver(ctx context.Context, waiting func(Owner)) (Job, error)
	// TakeNew makes a new job whose owner is this run. taken is false where there is
	// one already: that one stays as it is.
	TakeNew(ctx context.Context, job Job) (taken bool, err error)
	// Begin begins an attempt under a fence that was never used and returns the
	// job as it is durable. Nothing of an earlier attempt has any effect from then
	// on. What noted sets is as of Jobs.Note, after that.
	Begin(ctx context.Context, noted ...bson.E) (Job, error)
	// Beat proves ownership without claiming anything of the data. It fails with
	// ErrFenced when ownership is lost.
	Beat(ctx context.Context) error
	// Owned fails when ownership has not been proven for so long that another
	// process may have taken the job: nothing may be written then. The failure
	// passes with the next save that succeeds.
	Owned() error
	// SameTerm takes the election term in which a data write was answered. Less than 0 is
	// unknown. It fails, now and from then on in this attempt, when that is not the attempt's.
	// A failover may then have taken earlier writes back, so that neither the answer nor what
	// came before is reliable.
	SameTerm(term int64) error
	// Release gives the job up, so that another process can take it at once.
	Release(ctx context.Context) error
}

// Jobs keeps the job's document. Fields to set are named as in Job. Each method
// that sets fails with ErrFenced once another run owns the job.
type Jobs interface {
	// Create writes a new job, which has no owner yet. One that exists stays.
	Create(ctx context.Context, job Job) error
	// Load reads the job; found is false when it is unknown. What a Note has set is
	// seen, and what is seen no failover takes back.
	Load(ctx context.Context) (job Job, found bool, err error)
	// Reload reads the job fast: for an attempt, which alone changes it, and for
	// looks that decide nothing.
	Reload(ctx context.Context) (job Job, found bool, err error)
	// LoadOthers reads the other jobs of the sink that may have a part of it: those that are
	// not finalized. It leaves out a job that has not begun to write and that nobody runs. With
	// certain it reads as of Load, else as of Reload. A job that cannot be read has only its
	// ID.
	LoadOthers(ctx context.Context, certain bool) ([]Job, error)
	// Save sets fields once all data written before the call is durable, as far as their
	// answers were passed to SameTerm. The order matters: what is stored as done was proven
	// first, so that a reader need not check it. What Save sets may itself be lost by a
	// failover, with all that came later. What noted sets is as of Note, before the rest: it
	// costs nothing beside the proof.
	Save(ctx context.Context, set bson.D, noted ...bson.E) error
	// SaveDurably is Save for what later writes rely on: no failover takes it back.
	SaveDurably(ctx context.Context, set bson.D) error
	// Prove returns once all data written before the call is durable. If it is to
	// tell, it returns a position of the sink that is after them, where there are
	// such.
	Prove(ctx context.Context, tell bool) (mongo.OpTime, error)
	// Note durably sets fields that say nothing of the data written before.
	Note(ctx context.Context, set bson.D) error
	// Mark is Note for fields that belong to no attempt: it may be called between
	// attempts, and whatever became of the last save.
	Mark(ctx context.Context, set bson.D) error
	// Reset has the job begin anew as job says, in place: its owner and its fence
	// stay. What its earlier life left besides the document is removed by Clear.
	Reset(ctx context.Context, job Job) error
}

// Slice is the progress of one slice of the copy; the copy engine knows what
// State means.
type Slice struct {
	ID    string // unique within the job
	State bson.Raw
}

// Slices keeps the progress of the copy.
type Slices interface {
	// LoadSlices returns what is saved of each slice.
	LoadSlices(ctx context.Context) ([]bson.Raw, error)
	// SaveSlices stores the given slices, under the same promise as SaveDurably.
	SaveSlices(ctx context.Context, slices []Slice) error
	// DropSlices forgets the slices whose ids begin with prefix: that copy begins again.
	DropSlices(ctx context.Context, prefix string) error
}

// Mapped is a collection of the source with its name on the target.
type Mapped struct {
	schema.Collection
	Target string
	schema.Presence
}

// Catalog keeps which namespaces of the source the job has on the target. At
// first it is the catalog at the job's start; schema changes keep its names true.
type Catalog interface {
	// SaveCatalog replaces the catalog, and returns once that is durable. It is
	// called before the first document is copied.
	SaveCatalog(ctx context.Context, colls []Mapped) error
	// LoadCatalog returns the catalog, in the order in which it was saved.
	LoadCatalog(ctx context.Context) ([]Mapped, error)
	// NoteNames stores what a schema change does to the names. It does not wait:
	// a crash before it is durable leaves the intent of the change, which is then
	// applied once more. What is to go goes last, so that the change still finds it then.
	NoteNames(ctx context.Context, change schema.NameChange) error
	// SaveWayBack stores where a job that leads back begins, and returns once that is durable. It is
	// called before the job is stored as finalized, and replaces an earlier one.
	SaveWayBack(ctx context.Context, w WayBack) error
}

// Skipped keeps the updates that were skipped because their document was missing.
type Skipped interface {
	// SaveSkipped stores the list in place of the one before. A position that is
	// saved afterwards stands on it.
	SaveSkipped(ctx context.Context, docs []stream.Place) error
	LoadSkipped(ctx context.Context) ([]stream.Place, error)
}

// Names are those of a catalog, as the last schema change left them.
func Names(catalog []Mapped) *schema.Names {
	list := make([]schema.Name, len(catalog))
	for i, m := range catalog {
		list[i] = schema.Name{NS: m.NS, Target: m.Target, Type: m.Type, UUID: m.UUID, Presence: m.Presence}
	}
	return schema.NewNames(list)
}
