package state

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
	return mongo.Retry(fmt.Sprintf("the target's primary changed (term %d, then %d): writes since the last checkpoint may have been rolled back", was, is), nil, "")
}

// Store reads and saves one job. It is safe for concurrent use.
//
// An attempt is one run of the job's phases from the checkpoint. It begins with
// Begin, and belongs to the election term in which that was answered.
type Store struct {
	c   *mongo.Cluster
	db  *driver.Database
	job string
	run string // names this Store's run among those of the job
	wc  any    // write concern that proves data
	// now tells how much time passed between two calls. It may not follow the
	// wall clock.
	now func() time.Duration

	mu     sync.Mutex
	fence  int64         // of the attempt
	term   int64         // of the attempt; -1 between attempts
	other  int64         // a term that a write of the attempt was answered in, if not term
	proven time.Duration // when ownership was last known to hold

	saveMu sync.Mutex // one save at a time, so that positions never go back
}

// noTerm is no election term.
const noTerm = -1

// Open prepares the store of a job on the target for one run. w is the write
// concern that data must have reached before a position says so: "majority" or
// a number of members.
func Open(c *mongo.Cluster, job, run string, w any) *Store {
	// Local reads see what the attempt itself has written; all that is older
	// has reached a majority since Begin.
	db := c.Client.Database(mongo.StateDB, options.Database().
		SetReadConcern(readconcern.Local()).SetReadPreference(readpref.Primary()).
		SetWriteConcern(writeconcern.Majority()))
	return &Store{c: c, db: db, job: job, run: run, wc: w, now: newClock(), term: noTerm, other: noTerm, proven: never}
}

// SameTerm takes the election term in which a data write was answered
// (wire.WriteResult.Term; less than 0 is not told). It fails, now and from then
// on in this attempt, when that is not the attempt's: a failover may have taken
// earlier writes back, so that neither the answer nor what came before may be
// relied upon.
func (s *Store) SameTerm(term int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == noTerm {
		return errors.New("a write outside of an attempt")
	}
	if term >= 0 && term != s.term {
		s.other = term
	}
	if s.other == noTerm {
		return nil
	}
	return errTermChanged(s.term, s.other)
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

// Reload reads the job's document on the primary, fast: for an attempt, which
// alone changes it, and for looks that decide nothing.
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

// Create writes a new job, which has no owner yet.
func (s *Store) Create(ctx context.Context, job Job) error {
	job.ID, job.Version, job.Fence, job.Owner = s.job, FormatVersion, 0, Owner{}
	job.CreatedAt = time.Now().UTC()
	job.UpdatedAt = job.CreatedAt
	if _, err := s.db.Collection("jobs").InsertOne(ctx, job); err != nil && !driver.IsDuplicateKeyError(err) {
		return fmt.Errorf("create job %s: %w", s.job, err)
	}
	return nil // whoever made it: it is taken over next
}

// Begin makes the caller the job's present attempt and returns the job as it
// is durable. Nothing of another attempt has any effect from then on: the fence
// keeps their saves away, and end has ended whatever else they had under way at
// the primary. When it has, it runs the command it is given over the connection
// with which it looked. That is a majority write: its answer tells the term of
// that primary, which becomes the attempt's, and what is read after it no
// failover takes back.
func (s *Store) Begin(ctx context.Context, end func(ctx context.Context, fence int64, then bson.D) (bson.Raw, error)) (Job, error) {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	s.fence++
	s.term, s.other = noTerm, noTerm
	fence := s.fence
	s.mu.Unlock()
	if _, err := s.write(ctx, s.mine(), bson.D{{Key: "fence", Value: fence}}, s.wc); err != nil {
		return Job{}, err
	}
	raw, err := end(ctx, fence, updateJob(statement(s.attempt(), nil), s.wc))
	if err != nil {
		return Job{}, fmt.Errorf("end what earlier runs of job %s have under way: %w", s.job, err)
	}
	res, err := s.answer(raw)
	if err != nil {
		return Job{}, err
	}
	s.mu.Lock()
	s.term = res.Term
	s.mu.Unlock()
	return s.reload(ctx)
}

func (s *Store) reload(ctx context.Context) (Job, error) {
	job, found, err := s.Reload(ctx)
	if err == nil && !found {
		err = fmt.Errorf("job %s vanished from the target's database %s", s.job, mongo.StateDB)
	}
	return job, err
}

// mine and attempt are the filters of writes: by this run, whichever attempt of
// it, and by its present attempt.
func (s *Store) mine() bson.D {
	return bson.D{{Key: "_id", Value: s.job}, {Key: "owner.run", Value: s.run}}
}

func (s *Store) attempt() bson.D {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(s.mine(), bson.E{Key: "fence", Value: s.fence})
}

// Save sets fields of the job once all data writes observed before the call
// have reached the write concern. The order matters: what is stored as done was
// proven first, so that whoever loads it need not judge whether it is true. What
// it sets may itself be lost by a failover, with all that came later.
func (s *Store) Save(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("save.before")
	defer failpoint.Hit("save.after")
	if err := s.prove(ctx); err != nil {
		return err
	}
	failpoint.Hit("save.written")
	return s.note(ctx, set, 1)
}

// SaveDurably is Save for what later writes rely on: no failover takes it back.
func (s *Store) SaveDurably(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("save.before")
	defer failpoint.Hit("save.after")
	if err := s.prove(ctx); err != nil {
		return err
	}
	failpoint.Hit("save.written")
	return s.note(ctx, set, s.wc)
}

// Note durably sets fields of the job that say nothing of the data written before.
func (s *Store) Note(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("note.before")
	defer failpoint.Hit("note.after")
	return s.note(ctx, set, s.wc)
}

// Mark sets fields of the job that say nothing of data, durably. It may be called
// between attempts.
func (s *Store) Mark(ctx context.Context, set bson.D) error {
	_, err := s.write(ctx, s.mine(), set, s.wc)
	return err
}

// prove writes with the write concern. As the target's oplog is one order, all
// that was written before in the same term has reached it then, too.
func (s *Store) prove(ctx context.Context) error {
	term, err := s.write(ctx, s.attempt(), nil, s.wc)
	if err != nil {
		return err
	}
	return s.inTerm(term)
}

func (s *Store) note(ctx context.Context, set bson.D, w any) error {
	term, err := s.write(ctx, s.attempt(), set, w)
	if err != nil {
		return err
	}
	return s.inTerm(term)
}

func (s *Store) inTerm(term int64) error {
	if err := s.SameTerm(term); err != nil {
		return fmt.Errorf("save checkpoint of job %s: %w", s.job, err)
	}
	return nil
}

// Beat proves ownership without claiming anything of the data. It fails with
// ErrFenced when ownership is lost.
func (s *Store) Beat(ctx context.Context) error {
	failpoint.Hit("beat.before")
	defer failpoint.Hit("beat.after")
	_, err := s.write(ctx, s.mine(), nil, s.wc)
	return err
}

// write sets fields of the job, if it is what filter wants, and returns the
// primary's term.
func (s *Store) write(ctx context.Context, filter, set bson.D, w any) (term int64, err error) {
	began := s.now()
	raw, err := s.c.Command(ctx, mongo.StateDB, updateJob(statement(filter, set), w))
	if err != nil {
		return 0, fmt.Errorf("save checkpoint of job %s: %w", s.job, err)
	}
	res, err := s.answer(raw)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.proven = began
	s.mu.Unlock()
	return res.Term, nil
}

// statement sets fields of the job and raises its beat.
func statement(filter, set bson.D) bson.D {
	set = append(set[:len(set):len(set)], bson.E{Key: "updatedAt", Value: time.Now().UTC()})
	return bson.D{{Key: "q", Value: filter},
		{Key: "u", Value: bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "beat", Value: int64(1)}}}}}}
}

// updateJob is the command of one statement on the collection of jobs.
func updateJob(statement bson.D, w any) bson.D {
	return bson.D{{Key: "update", Value: "jobs"}, {Key: "updates", Value: bson.A{statement}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}}}
}

// answer reads the reply to a statement; one that met no job is ErrFenced.
func (s *Store) answer(raw bson.Raw) (wire.WriteResult, error) {
	res := wire.ParseWriteResult([]byte(raw))
	err := mongo.Interrupted(res)
	switch {
	case err != nil:
	case len(res.Errors) > 0:
		err = fmt.Errorf("%s (code %d)", res.Errors[0].Message, res.Errors[0].Code)
	case res.N == 0:
		err = mongo.WithHint(ErrFenced, "stop the other process first, or let this one go")
	default:
		return res, nil
	}
	return res, fmt.Errorf("save checkpoint of job %s: %w", s.job, err)
}

// Reset has the job begin anew as job says, under the fence that it has. What
// its earlier life left beside the job's document is removed by Clear.
func (s *Store) Reset(ctx context.Context, job Job) error {
	failpoint.Hit("reset.before")
	defer failpoint.Hit("reset.after")
	job.Version, job.Restarted, job.CreatedAt, job.UpdatedAt = FormatVersion, true, time.Now().UTC(), time.Time{}
	raw, err := bson.Marshal(job)
	if err != nil {
		return fmt.Errorf("reset job %s: %w", s.job, err)
	}
	var all, set bson.D
	if err := bson.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("reset job %s: %w", s.job, err)
	}
	for _, e := range all {
		switch e.Key {
		case "_id", "fence", "beat", "owner", "session", "updatedAt":
		default:
			set = append(set, e)
		}
	}
	return s.SaveDurably(ctx, set)
}

// Clear removes what an earlier life of the job left beside its document.
func (s *Store) Clear(ctx context.Context) error {
	for _, coll := range []string{"slices", "collections", "skipped"} {
		if _, err := s.c.DeleteState(ctx, coll, 1, bson.D{{Key: "job", Value: s.job}}); err != nil {
			return fmt.Errorf("clear job %s: %w", s.job, err)
		}
	}
	return nil
}
