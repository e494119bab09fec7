package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// ErrFenced means that another process has taken the job over.
var ErrFenced = errors.New("another millrace process has taken over this job")

// errTermChanged is retryable: the target elected a new primary since the last
// save, so writes acknowledged by the old one may be gone.
func errTermChanged(was, is int64) error {
	return driver.CommandError{
		Message: fmt.Sprintf("the target's primary changed (term %d, then %d): writes since the last checkpoint may have been rolled back", was, is),
		Labels:  []string{"RetryableWriteError"},
	}
}

// Store reads and saves one job. It is safe for concurrent use.
type Store struct {
	c   *mongo.Cluster
	db  *driver.Database
	job string
	wc  any // write concern a save waits for

	mu    sync.Mutex
	fence int64
	terms termRange

	saveMu sync.Mutex // one save at a time, so that positions never go back
}

// termRange is the election terms seen in write replies since the last save.
type termRange struct {
	seen     bool
	min, max int64
}

// Open prepares the store of a job on the target. w is the write concern that
// a position must have reached: "majority" or a number of members.
func Open(c *mongo.Cluster, job string, w any) *Store {
	db := c.Client.Database(mongo.StateDB, options.Database().
		SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()).
		SetWriteConcern(writeconcern.Majority()))
	return &Store{c: c, db: db, job: job, wc: w}
}

// ObserveTerm notes the election term under which a data write was
// acknowledged (wire.WriteResult.Term). A save by a primary of another term
// fails, because the writes may have been rolled back in between.
func (s *Store) ObserveTerm(term int64) {
	if term < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terms.seen {
		s.terms = termRange{seen: true, min: term, max: term}
		return
	}
	s.terms.min = min(s.terms.min, term)
	s.terms.max = max(s.terms.max, term)
}

// Load reads the job's document; found is false when the job is unknown.
func (s *Store) Load(ctx context.Context) (job Job, found bool, err error) {
	err = s.db.Collection("jobs").FindOne(ctx, bson.D{{Key: "_id", Value: s.job}}).Decode(&job)
	if errors.Is(err, driver.ErrNoDocuments) {
		return job, false, nil
	}
	if err != nil {
		return job, false, fmt.Errorf("load job %s: %w", s.job, err)
	}
	if job.Version > FormatVersion {
		return job, false, mongo.WithHint(fmt.Errorf("job %s was written by a newer millrace (format %d, this one knows %d)",
			s.job, job.Version, FormatVersion), "use that version, or begin anew with --restart")
	}
	return job, true, nil
}

// Create writes a new job and makes this process its owner.
func (s *Store) Create(ctx context.Context, job Job) error {
	job.ID, job.Version, job.Fence = s.job, FormatVersion, 1
	job.CreatedAt = time.Now().UTC()
	job.UpdatedAt = job.CreatedAt
	if _, err := s.db.Collection("jobs").InsertOne(ctx, job); err != nil {
		return fmt.Errorf("create job %s: %w", s.job, err)
	}
	s.own(1)
	return nil
}

// TakeOver makes this process the owner of an existing job and returns it. A
// process that owned it before fails at its next save.
func (s *Store) TakeOver(ctx context.Context, owner string) (Job, error) {
	var job Job
	err := s.db.Collection("jobs").FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: s.job}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "fence", Value: int64(1)}}}, {Key: "$set", Value: bson.D{{Key: "owner", Value: owner}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&job)
	if err != nil {
		return job, fmt.Errorf("take over job %s: %w", s.job, err)
	}
	s.own(job.Fence)
	return job, nil
}

// Begin forgets the terms seen so far. It is called where a run starts over
// from the last durable checkpoint.
func (s *Store) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terms = termRange{}
}

func (s *Store) own(fence int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence, s.terms = fence, termRange{}
}

// Save sets fields of the job. It returns when they, and all data writes
// observed before the call, have reached the write concern.
func (s *Store) Save(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	return s.save(ctx, set)
}

func (s *Store) save(ctx context.Context, set bson.D) error {
	s.mu.Lock()
	fence, terms := s.fence, s.terms
	s.terms = termRange{}
	s.mu.Unlock()

	set = append(set[:len(set):len(set)], bson.E{Key: "updatedAt", Value: time.Now().UTC()})
	raw, err := s.c.Command(ctx, mongo.StateDB, bson.D{
		{Key: "update", Value: "jobs"},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: s.job}, {Key: "fence", Value: fence}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: set}}},
		}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: s.wc}}},
	})
	if err != nil {
		return fmt.Errorf("save checkpoint of job %s: %w", s.job, err)
	}
	res := wire.ParseWriteResult([]byte(raw))
	switch {
	case len(res.Errors) > 0:
		return fmt.Errorf("save checkpoint of job %s: %s (code %d)", s.job, res.Errors[0].Message, res.Errors[0].Code)
	case len(res.ConcernError) > 0:
		msg, _ := res.ConcernError.Lookup("errmsg").StringValueOK()
		return fmt.Errorf("save checkpoint of job %s: %w", s.job,
			driver.CommandError{Message: "write concern not reached: " + msg, Labels: []string{"RetryableWriteError"}})
	case res.N == 0:
		return mongo.WithHint(fmt.Errorf("save checkpoint of job %s: %w", s.job, ErrFenced),
			"stop the other process first, or let this one go")
	case terms.seen && (terms.min != res.Term || terms.max != res.Term):
		return fmt.Errorf("save checkpoint of job %s: %w", s.job, errTermChanged(terms.min, res.Term))
	}
	return nil
}

// Reset removes everything known of the job.
func (s *Store) Reset(ctx context.Context) error {
	for _, coll := range []string{"slices", "collections", "held"} {
		if _, err := s.db.Collection(coll).DeleteMany(ctx, bson.D{{Key: "job", Value: s.job}}); err != nil {
			return fmt.Errorf("reset job %s: %s: %w", s.job, coll, err)
		}
	}
	if _, err := s.db.Collection("jobs").DeleteOne(ctx, bson.D{{Key: "_id", Value: s.job}}); err != nil {
		return fmt.Errorf("reset job %s: %w", s.job, err)
	}
	return nil
}
