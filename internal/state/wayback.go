package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

// WayBack is where a job that leads back begins: how the target of a finalized job stood at its
// TargetPosition. It holds no secret.
type WayBack struct {
	Position stream.Position
	// Names are the collections as of then. Their NS is that of the job's target, their Target
	// that of its source, so that they are the names of the job that leads back.
	Names []schema.Name
}

// waysBack is the collection of ways back; wayBackDoc is one of its documents, a part of the names.
const waysBack = "waysback"

type wayBackDoc struct {
	ID    string        `bson:"_id"`
	Job   string        `bson:"job"`
	N     int           `bson:"n"`
	Of    int           `bson:"of"` // how many documents there are
	At    mongo.OpTime  `bson:"at"`
	Mark  string        `bson:"mark"`
	Names []schema.Name `bson:"names"`
}

// namesPerDoc keeps a part far below the size of a document.
const namesPerDoc = 10_000

// PrefixJob begins a StartAt that names a finalized job: the new one begins where that one ended.
const PrefixJob = "job:"

// StartAtJob is the job that a StartAt names.
func StartAtJob(startAt string) (job string, ok bool) { return strings.CutPrefix(startAt, PrefixJob) }

// SaveWayBack stores the way back of the attempt's job, with the write concern.
func (s *Mongo) SaveWayBack(ctx context.Context, w WayBack) error {
	err := s.delete(ctx, waysBack, bson.D{mongo.OfJob(s.o.Job)})
	parts := slices.Collect(slices.Chunk(w.Names, namesPerDoc))
	if len(parts) == 0 {
		parts = [][]schema.Name{nil}
	}
	for i, part := range parts {
		if err != nil {
			break
		}
		doc := wayBackDoc{ID: fmt.Sprintf("%s/%d", s.o.Job, i), Job: s.o.Job, N: i, Of: len(parts), At: w.Position.At,
			Mark: w.Position.Mark, Names: part}
		err = s.proof(func() (int64, error) { return s.c.UpdateState(ctx, waysBack, s.o.Write, replace(doc.ID, doc)) })
	}
	return mongo.Wrap(err, "save the way back of job %s", s.o.Job)
}

// Finished is a finalized job with its way back. Reason says why there is none, "" where there is.
type Finished struct {
	Job
	WayBack
	Reason string
}

// ErrNoJob means that a cluster has not stored a job.
var ErrNoJob = errors.New("no such job")

// LoadFinished reads a finalized job from the cluster that was its target, and its way back. What it
// reads no failover takes back.
func LoadFinished(ctx context.Context, c *mongo.Cluster, name string) (f Finished, err error) {
	db := c.Client.Database(mongo.StateDB, options.Database().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()))
	job := bson.D{{Key: "_id", Value: name}}
	raws, err := mongo.ReadAll[bson.Raw](ctx, "load job %s", name)(db.Collection("jobs").Find(ctx, job))
	switch {
	case err != nil:
		return f, err
	case len(raws) == 0:
		return f, mongo.WithHint(fmt.Errorf("%w: %s has none named %s", ErrNoJob, c.Address(), name),
			"a job is stored on its target, and millrace jobs list --target shows those there; millrace reverse takes "+
				"source and target as the job had them")
	}
	if f.Job, err = readJob(raws[0]); err != nil {
		return f, err
	}
	docs, err := mongo.ReadAll[wayBackDoc](ctx, "load the way back of job %s", name)(
		db.Collection(waysBack).Find(ctx, bson.D{mongo.OfJob(name)}))
	if err != nil {
		return f, err
	}
	f.read(docs)
	return f, nil
}

func (f *Finished) read(docs []wayBackDoc) {
	slices.SortFunc(docs, func(a, b wayBackDoc) int { return a.N - b.N })
	switch {
	case f.Phase != PhaseFinalized:
		f.Reason = fmt.Sprintf("it is in phase %s, and ends when it is finalized", f.Phase)
	case f.TargetPosition.IsZero():
		f.Reason = "finalize has stored no position of its target"
		if f.NoWayBack != "" {
			f.Reason += ": " + f.NoWayBack
		}
	case len(docs) == 0 || docs[0].At != f.TargetPosition: // finalize could not store it
		f.Position = stream.Position{At: f.TargetPosition}
		return
	case len(docs) != docs[0].Of:
		f.Reason = "parts of its way back are missing"
	default:
		f.Position = stream.Position{At: docs[0].At, Mark: docs[0].Mark}
	}
	for _, d := range docs {
		f.Names = append(f.Names, d.Names...)
	}
}

// HasNames reports that the collections at the cut-over are known.
func (f *Finished) HasNames() bool { return f.Position.Mark != "" }
