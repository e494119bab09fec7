// Package state keeps what a job must remember across a kill. That is the job, its position and
// owner, the catalog it started from, the progress of each slice, and the updates it skipped.
//
// It defines the stored data, the promises of any store (Store; statetest tests them), and the
// store in the target's database "millrace" (Mongo). What the data mean to an engine, a source or a
// sink does not belong here: a slice and a position are opaque.
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

// BeatEvery is the interval of Beat.
const BeatEvery = 2 * time.Second

// ErrFenced means that another process has taken the job over.
var ErrFenced = errors.New("another millrace process has taken over this job")

// ErrRunning means that another process runs the job.
var ErrRunning = errors.New("another millrace process runs this job")

// Store keeps one job for one run of it. It is safe for concurrent use. A store opened later for
// the same job finds what it has saved.
//
// A run takes the job over (Lease), then makes attempts. An attempt is one run of the job's phases
// from what is saved; its saves are refused once a newer one begins. Where the sink elects
// primaries, an attempt belongs to one election term: an answer in another ends it.
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
	// TakeOver makes this run the owner of an existing job and returns the job as it was. A living
	// owner stays: that is ErrRunning. If only time can tell, it calls waiting and watches the
	// owner's beat for some seconds. Nothing may be written before Begin returns.
	TakeOver(ctx context.Context, waiting func(Owner)) (Job, error)
	// TakeNew creates a job whose owner is this run. taken is false if the job exists; then it
	// stays.
	TakeNew(ctx context.Context, job Job) (taken bool, err error)
	// Begin begins an attempt under a new fence and returns the job as it is durable. Nothing of
	// earlier attempts has any effect from then on. It sets noted after that, as Jobs.Note does.
	Begin(ctx context.Context, noted ...bson.E) (Job, error)
	// Beat proves ownership, but nothing about the data. It fails with ErrFenced.
	Beat(ctx context.Context) error
	// Owned fails if ownership was not proven for so long that another process may have taken the
	// job: nothing may be written then. The next successful save ends the failure.
	Owned() error
	// SameTerm takes the election term of the answer to a data write; less than 0 is unknown. It
	// fails, from then on in this attempt, if that is not the attempt's. A failover may then have
	// rolled back that write and earlier ones.
	SameTerm(term int64) error
	// Release releases the job, so that another process can take it at once. It sets noted at the same time.
	Release(ctx context.Context, noted ...bson.E) error
}

// Jobs keeps the job's document. Fields to set are named as in Job. Methods that set fields fail
// with ErrFenced once another run owns the job.
type Jobs interface {
	// Load reads the job, with what Note has set. No failover takes back what it returns.
	Load(ctx context.Context) (job Job, found bool, err error)
	// Reload reads the job fast: for an attempt, which alone changes it, and for display.
	Reload(ctx context.Context) (job Job, found bool, err error)
	// LoadOthers reads the other jobs of the sink that may own a part of it. It leaves out those
	// that are finalized, and those that do not run and have not begun to write. With certain it
	// reads like Load, else like Reload. An unreadable job has only its ID.
	LoadOthers(ctx context.Context, certain bool) ([]Job, error)
	// Save sets fields once all data written before the call are durable, as far as their answers
	// were passed to SameTerm. The order matters: what is stored as done was proven first, so that
	// a reader need not check it. A failover may lose what Save sets, and everything later. It sets
	// noted before the rest, as Note does, at no cost beside the proof.
	Save(ctx context.Context, set bson.D, noted ...bson.E) error
	// SaveDurably is Save, but no failover takes back what it sets.
	SaveDurably(ctx context.Context, set bson.D) error
	// Prove returns once all data written before the call are durable. If tell is set, it returns a
	// position of the sink after them, if there are positions.
	Prove(ctx context.Context, tell bool) (mongo.OpTime, error)
	// Note durably sets fields, but proves nothing about data.
	Note(ctx context.Context, set bson.D) error
	// Mark is Note for fields that belong to no attempt: it may be called between attempts, and
	// after a failed save.
	Mark(ctx context.Context, set bson.D) error
	// Reset replaces the job, except its owner and fence. Clear removes the rest of its earlier
	// life.
	Reset(ctx context.Context, job Job) error
}

// Slice is the progress of one slice of the copy. The copy engine knows State.
type Slice struct {
	ID    string // unique within the job
	State bson.Raw
}

// Slices keeps the progress of the copy.
type Slices interface {
	// LoadSlices returns what is saved of each slice.
	LoadSlices(ctx context.Context) ([]bson.Raw, error)
	// SaveSlices stores the given slices as SaveDurably does.
	SaveSlices(ctx context.Context, slices []Slice) error
	// DropSlices removes the slices whose ids begin with prefix: that copy begins again.
	DropSlices(ctx context.Context, prefix string) error
}

// Mapped is a collection of the source with its name on the target.
type Mapped struct {
	schema.Collection
	Target string
	schema.Presence
}

// Catalog keeps the source's namespaces that the job has on the target: first the catalog at the
// job's start, then the names after schema changes.
type Catalog interface {
	// SaveCatalog replaces the catalog durably, before the first document is copied.
	SaveCatalog(ctx context.Context, colls []Mapped) error
	// LoadCatalog returns the catalog in the order of SaveCatalog.
	LoadCatalog(ctx context.Context) ([]Mapped, error)
	// NoteNames stores the names after a schema change. It does not wait: after a crash the intent
	// of the change remains, which is then reapplied. It removes names last, so that the change
	// still finds them.
	NoteNames(ctx context.Context, change schema.NameChange) error
	// SaveWayBack stores where a job that leads back begins, and returns once that is durable. It is
	// called before the job is stored as finalized, and replaces an earlier one.
	SaveWayBack(ctx context.Context, w WayBack) error
}

// Skipped keeps the updates that were skipped because their document was missing.
type Skipped interface {
	// SaveSkipped replaces the list. A position saved later relies on it.
	SaveSkipped(ctx context.Context, docs []stream.Place) error
	LoadSkipped(ctx context.Context) ([]stream.Place, error)
}

// Names returns the names of a catalog, as of the last schema change.
func Names(catalog []Mapped) *schema.Names {
	list := make([]schema.Name, len(catalog))
	for i, m := range catalog {
		list[i] = schema.Name{NS: m.NS, Target: m.Target, Type: m.Type, UUID: m.UUID, Presence: m.Presence}
	}
	return schema.NewNames(list)
}
