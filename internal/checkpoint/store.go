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

	"github.com/millrace/millrace/internal/failpoint"
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
	// now tells how much time passed between two calls. It may not follow the
	// wall clock.
	now func() time.Duration

	mu     sync.Mutex
	fence  int64
	terms  termRange
	proven time.Duration // when ownership was last known to hold

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
	return &Store{c: c, db: db, job: job, wc: w, now: newClock(), proven: never}
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

// loadTime bounds a read that waits for a majority.
const loadTime = 20 * time.Second

// Load reads the job's document; found is false when the job is unknown. It is
// a linearizable read: what a Note has set is seen, and what is seen no
// failover takes back. It takes as long as a majority write, which on a server
// without other majority writes is the 100 ms until its journal is flushed.
func (s *Store) Load(ctx context.Context) (job Job, found bool, err error) {
	return s.load(ctx, readconcern.Linearizable())
}

// Reload reads the job's document on the primary, fast: for whoever has loaded
// and only changed it since, and for looks that decide nothing.
func (s *Store) Reload(ctx context.Context) (job Job, found bool, err error) {
	return s.load(ctx, readconcern.Local())
}

func (s *Store) load(ctx context.Context, rc *readconcern.ReadConcern) (job Job, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	jobs := s.db.Collection("jobs", options.Collection().SetReadConcern(rc))
	err = jobs.FindOne(ctx, bson.D{{Key: "_id", Value: s.job}}).Decode(&job)
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
	failpoint.Hit("take.before")
	defer failpoint.Hit("take.after")
	began := s.now()
	job.ID, job.Version, job.Fence, job.Owner = s.job, FormatVersion, 1, ThisProcess()
	job.CreatedAt = time.Now().UTC()
	job.UpdatedAt = job.CreatedAt
	if _, err := s.db.Collection("jobs").InsertOne(ctx, job); err != nil {
		return fmt.Errorf("create job %s: %w", s.job, err)
	}
	s.own(1, began)
	return nil
}

// Begin forgets the terms seen so far. It is called where a run starts over
// from the last durable checkpoint.
func (s *Store) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terms = termRange{}
}

func (s *Store) own(fence int64, at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence, s.terms, s.proven = fence, termRange{}, at
}

// Save sets fields of the job. It returns when they, and all data writes
// observed before the call, have reached the write concern.
func (s *Store) Save(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	return s.save(ctx, set)
}

// Note is Save without the wait for the write concern: what it sets is there
// after a crash of this process, and lost by a failover of the target only
// together with all writes that came later. It proves nothing of the data
// writes before it; the next Save still has to.
func (s *Store) Note(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("note.before")
	defer failpoint.Hit("note.after")
	term, err := s.write(ctx, set, 1)
	if err != nil {
		return err
	}
	failpoint.Hit("note.written")
	s.mu.Lock()
	terms := s.terms
	s.mu.Unlock()
	if terms.seen && (terms.min != term || terms.max != term) {
		return fmt.Errorf("save checkpoint of job %s: %w", s.job, errTermChanged(terms.min, term))
	}
	s.ObserveTerm(term)
	return nil
}

func (s *Store) save(ctx context.Context, set bson.D) error {
	s.mu.Lock()
	terms := s.terms
	s.terms = termRange{}
	s.mu.Unlock()

	failpoint.Hit("save.before")
	defer failpoint.Hit("save.after")
	term, err := s.write(ctx, set, s.wc)
	failpoint.Hit("save.written")
	if err == nil && terms.seen && (terms.min != term || terms.max != term) {
		err = fmt.Errorf("save checkpoint of job %s: %w", s.job, errTermChanged(terms.min, term))
	}
	if err != nil {
		// What was written before stays unproven: no later save may claim it.
		s.mu.Lock()
		s.terms = termRange{seen: true, min: -1, max: -1}
		s.mu.Unlock()
	}
	return err
}

// Beat proves ownership without claiming anything of the data. It fails with
// ErrFenced when ownership is lost.
func (s *Store) Beat(ctx context.Context) error {
	failpoint.Hit("beat.before")
	defer failpoint.Hit("beat.after")
	_, err := s.write(ctx, nil, s.wc)
	return err
}

// write sets fields of the job as its owner and returns the primary's term.
func (s *Store) write(ctx context.Context, set bson.D, w any) (term int64, err error) {
	s.mu.Lock()
	fence := s.fence
	s.mu.Unlock()
	began := s.now()
	set = append(set[:len(set):len(set)], bson.E{Key: "updatedAt", Value: time.Now().UTC()})
	raw, err := s.c.Command(ctx, mongo.StateDB, bson.D{
		{Key: "update", Value: "jobs"},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: s.job}, {Key: "fence", Value: fence}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "beat", Value: int64(1)}}}}},
		}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}},
	})
	if err != nil {
		return 0, fmt.Errorf("save checkpoint of job %s: %w", s.job, err)
	}
	res := wire.ParseWriteResult([]byte(raw))
	if err := mongo.WriteInterrupted(res); err != nil {
		return 0, fmt.Errorf("save checkpoint of job %s: %w", s.job, err)
	}
	switch {
	case len(res.Errors) > 0:
		return 0, fmt.Errorf("save checkpoint of job %s: %s (code %d)", s.job, res.Errors[0].Message, res.Errors[0].Code)
	case res.N == 0:
		return 0, mongo.WithHint(fmt.Errorf("save checkpoint of job %s: %w", s.job, ErrFenced),
			"stop the other process first, or let this one go")
	}
	s.mu.Lock()
	s.proven = began
	s.mu.Unlock()
	return res.Term, nil
}

// Reset removes the job with its slices and catalog.
func (s *Store) Reset(ctx context.Context) error {
	failpoint.Hit("reset.before")
	defer failpoint.Hit("reset.after")
	for _, coll := range []string{"slices", "collections"} {
		if _, err := s.db.Collection(coll).DeleteMany(ctx, bson.D{{Key: "job", Value: s.job}}); err != nil {
			return fmt.Errorf("reset job %s: %s: %w", s.job, coll, err)
		}
	}
	if _, err := s.db.Collection("jobs").DeleteOne(ctx, bson.D{{Key: "_id", Value: s.job}}); err != nil {
		return fmt.Errorf("reset job %s: %w", s.job, err)
	}
	return nil
}
