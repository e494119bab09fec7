package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Mongo is a Store in the target's database millrace (mongo.StateDB). Data are durable when they
// satisfy the write concern Options.Write, which a write of the attempt's term that waits for it
// proves.
type Mongo struct {
	c  *mongo.Cluster
	db *driver.Database
	o  Options
	// now returns the time since any fixed moment, independent of the wall clock.
	now func() time.Duration

	mu     sync.Mutex
	fence  int64         // of the attempt
	term   int64         // of the attempt; noTerm between attempts
	other  int64         // a term that a write of the attempt was answered in, if not term
	proven time.Duration // when ownership was last known to hold
	taken  *Job          // as taken over: nobody has changed it before the first attempt
	// answers counts the answers to writes of the attempt, durable those that a proof covers.
	answers, durable int64

	saveMu sync.Mutex // one save at a time, so that positions never go back
	// noCatalog says that the attempt has cleared the catalog and saved none since.
	noCatalog atomic.Bool
}

var _ Store = (*Mongo)(nil)

// noTerm is no term. unseen is for routers, which return none: what they answer is durable.
const (
	noTerm = -1
	unseen = -2
)

// Options say whose store it is.
type Options struct {
	Job string
	Run string // names this run among those of the job
	// Write is the write concern of data before a position covers them: "majority" or a number.
	Write any
	// EndOthers ends what other runs and earlier attempts of the job have under way at the primary.
	// Then it runs the given command, a majority write, over the connection with which it looked.
	// The reply has that primary's term, which becomes the attempt's. No failover takes back what
	// is read after it.
	EndOthers func(ctx context.Context, fence int64, then bson.D) (bson.Raw, error)
}

func Open(c *mongo.Cluster, o Options) *Mongo {
	// Local reads see the attempt's own writes; everything older has reached a majority since
	// Begin.
	db := c.Client.Database(mongo.StateDB, options.Database().
		SetReadConcern(readconcern.Local()).SetReadPreference(readpref.Primary()).
		SetWriteConcern(writeconcern.Majority()))
	return &Mongo{c: c, db: db, o: o, now: newClock(), term: noTerm, other: noTerm, proven: never}
}

// SameTerm takes the term of a wire.WriteResult. See Lease.
func (s *Mongo) SameTerm(term int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers++
	return s.sameTerm(term)
}

// sameTerm is called with mu locked.
func (s *Mongo) sameTerm(term int64) error {
	if s.term == noTerm {
		return errors.New("a write outside of an attempt")
	}
	if term >= 0 && term != s.term {
		s.other = term
	}
	if s.other == noTerm {
		return nil
	}
	return mongo.Retry(fmt.Sprintf("the target's primary changed (term %d, then %d): writes since the last checkpoint "+
		"may have been rolled back", s.term, s.other), nil, "")
}

// loadTime bounds a read that waits for a majority.
const loadTime = 20 * time.Second

// Load is a linearizable read. It takes as long as a majority write: on a server without other
// majority writes the 100 ms until its journal is flushed. See Jobs.
func (s *Mongo) Load(ctx context.Context) (job Job, found bool, err error) {
	return s.load(ctx, readconcern.Linearizable())
}

// Reload reads on the primary. See Jobs.
func (s *Mongo) Reload(ctx context.Context) (job Job, found bool, err error) {
	return s.load(ctx, readconcern.Local())
}

func (s *Mongo) load(ctx context.Context, rc *readconcern.ReadConcern) (job Job, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	jobs := s.db.Collection("jobs", options.Collection().SetReadConcern(rc))
	err = jobs.FindOne(ctx, bson.D{{Key: "_id", Value: s.o.Job}}).Decode(&job)
	if errors.Is(err, driver.ErrNoDocuments) {
		return job, false, nil
	}
	if err != nil {
		return job, false, fmt.Errorf("load job %s: %w", s.o.Job, err)
	}
	if job.Version != FormatVersion {
		return job, false, mongo.WithHint(
			fmt.Errorf("job %s was written by another version of millrace (format %d, this one knows %d)",
				s.o.Job, job.Version, FormatVersion), "use that version, or start again with --restart")
	}
	return job, true, nil
}

// LoadOthers reads the other jobs' documents. See Jobs.
func (s *Mongo) LoadOthers(ctx context.Context, certain bool) ([]Job, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	rc := readconcern.Local()
	if certain {
		rc = readconcern.Linearizable()
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: s.o.Job}}},
		{Key: "phase", Value: bson.D{{Key: "$ne", Value: PhaseFinalized}}}}
	raws, err := mongo.ReadAll[bson.Raw](ctx, "load the jobs beside job %s", s.o.Job)(
		s.db.Collection("jobs", options.Collection().SetReadConcern(rc)).Find(ctx, filter,
			options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "refused", Value: 0}})))
	if err != nil {
		return nil, err
	}
	var out []Job
	for _, raw := range raws {
		job, err := readJob(raw)
		if err != nil || job.Version != FormatVersion {
			job = Job{ID: job.ID}
		}
		if set := s.c.Info.SetID; !set.IsZero() && !job.TargetSet.IsZero() && job.TargetSet != set {
			continue // the files were copied from another sink
		}
		if job.Phase != PhaseCatalog || job.Owner != (Owner{}) && !job.Owner.dead() {
			out = append(out, job)
		}
	}
	return out, nil
}

// TakeNew writes a new job. See Lease.
func (s *Mongo) TakeNew(ctx context.Context, job Job) (taken bool, err error) {
	began := s.now()
	job.ID, job.Version, job.Fence, job.Owner = s.o.Job, FormatVersion, 1, ThisProcess(s.o.Run)
	job.CreatedAt = time.Now().UTC().Truncate(time.Millisecond) // as it is read again
	job.UpdatedAt = job.CreatedAt
	_, err = s.db.Collection("jobs").InsertOne(ctx, job)
	if driver.IsDuplicateKeyError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("create job %s: %w", s.o.Job, err)
	}
	s.owns(job, began)
	return true, nil
}

func (s *Mongo) owns(job Job, began time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence, s.term, s.other, s.proven, s.taken = job.Fence, noTerm, noTerm, began, &job
}

// Begin raises the fence, which stops the saves of earlier attempts, and ends what else they had
// under way. The first attempt has the fence of the take-over. See Lease.
func (s *Mongo) Begin(ctx context.Context, noted ...bson.E) (Job, error) {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	taken := s.taken
	if s.taken = nil; taken == nil {
		s.fence++
	}
	s.term, s.other = noTerm, noTerm
	fence := s.fence
	s.mu.Unlock()
	s.noCatalog.Store(false)
	if taken == nil {
		if _, err := s.write(ctx, s.mine(), bson.D{{Key: "fence", Value: fence}}, s.o.Write); err != nil {
			return Job{}, s.saving(err)
		}
	}
	raw, err := s.o.EndOthers(ctx, fence, updateJob(statement(s.attempt(), noted), s.o.Write))
	if err != nil {
		return Job{}, fmt.Errorf("end what earlier runs of job %s have under way: %w", s.o.Job, err)
	}
	res, err := answer(raw)
	if err != nil {
		return Job{}, s.saving(err)
	}
	s.mu.Lock()
	if s.term = res.Term; s.c.Info.Kind == mongo.KindSharded {
		s.term = unseen
	}
	s.mu.Unlock()
	if taken != nil {
		return taken.With(noted)
	}
	job, found, err := s.Reload(ctx)
	if err == nil && !found {
		err = fmt.Errorf("job %s vanished from the target's database %s", s.o.Job, mongo.StateDB)
	}
	return job, err
}

func (s *Mongo) mine() bson.D {
	return bson.D{{Key: "_id", Value: s.o.Job}, {Key: "owner.run", Value: s.o.Run}}
}

func (s *Mongo) attempt() bson.D {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(s.mine(), bson.E{Key: "fence", Value: s.fence})
}

// Save proves, then sets with write concern 1. See Jobs.
func (s *Mongo) Save(ctx context.Context, set bson.D, noted ...bson.E) error {
	return s.save(ctx, set, 1, noted...)
}

// SaveDurably proves, then sets with the write concern. See Jobs.
func (s *Mongo) SaveDurably(ctx context.Context, set bson.D) error {
	return s.save(ctx, set, s.o.Write)
}

func (s *Mongo) save(ctx context.Context, set bson.D, w any, noted ...bson.E) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("save.before")
	defer failpoint.Hit("save.after")
	if err := s.prove(ctx, noted...); err != nil {
		return err
	}
	failpoint.Hit("save.written")
	return s.set(ctx, set, w)
}

// Note sets with the write concern. See Jobs.
func (s *Mongo) Note(ctx context.Context, set bson.D) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("note.before")
	defer failpoint.Hit("note.after")
	return s.set(ctx, set, s.o.Write)
}

// Mark sets with the write concern, for the run. See Jobs.
func (s *Mongo) Mark(ctx context.Context, set bson.D) error {
	_, err := s.write(ctx, s.mine(), set, s.o.Write)
	return s.saving(err)
}

// Prove proves. See Jobs.
func (s *Mongo) Prove(ctx context.Context, tell bool) (at mongo.OpTime, err error) {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	if !tell && s.allDurable() {
		return at, nil
	}
	err = s.proof(func() (int64, error) {
		res, err := s.write(ctx, s.attempt(), nil, s.o.Write)
		at = mongo.OpTime{TS: res.At, Term: res.Term}
		return res.Term, err
	})
	return at, s.saving(err)
}

// Beat sets nothing, for the run. See Lease.
func (s *Mongo) Beat(ctx context.Context) error {
	failpoint.Hit("beat.before")
	defer failpoint.Hit("beat.after")
	return s.Mark(ctx, nil)
}

// prove writes with the write concern. As the target's oplog is one order, all earlier writes of
// the term have reached it then, too. Without new answers the last proof holds.
func (s *Mongo) prove(ctx context.Context, noted ...bson.E) error {
	if len(noted) == 0 && s.allDurable() {
		return nil
	}
	return s.set(ctx, noted, s.o.Write)
}

func (s *Mongo) allDurable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term != noTerm && s.other == noTerm && s.durable == s.answers
}

// proof runs a write of the attempt with the write concern. Everything answered before is durable
// then.
func (s *Mongo) proof(write func() (term int64, err error)) error {
	s.mu.Lock()
	answers := s.answers
	s.mu.Unlock()
	term, err := write()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.sameTerm(term); err != nil {
		return err
	}
	if term >= 0 || s.term == unseen { // another server that tells none has proven nothing
		s.durable = max(s.durable, answers)
	}
	return nil
}

func (s *Mongo) set(ctx context.Context, set bson.D, w any) error {
	write := func() (int64, error) {
		res, err := s.write(ctx, s.attempt(), set, w)
		return res.Term, err
	}
	if w == s.o.Write {
		return s.saving(s.proof(write))
	}
	term, err := write()
	if err == nil {
		err = s.SameTerm(term)
	}
	return s.saving(err)
}

func (s *Mongo) saving(err error) error { return mongo.Wrap(err, "save checkpoint of job %s", s.o.Job) }

func (s *Mongo) write(ctx context.Context, filter, set bson.D, w any) (res wire.WriteResult, err error) {
	began := s.now()
	raw, err := s.c.Command(ctx, mongo.StateDB, updateJob(statement(filter, set), w))
	if err == nil {
		res, err = answer(raw)
	}
	if err == nil {
		s.mu.Lock()
		s.proven = began
		s.mu.Unlock()
	}
	return res, err
}

func statement(filter, set bson.D) bson.D {
	set = append(set[:len(set):len(set)], bson.E{Key: "updatedAt", Value: time.Now().UTC()})
	return bson.D{{Key: "q", Value: filter},
		{Key: "u", Value: bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "beat", Value: int64(1)}}}}}}
}

func updateJob(statement bson.D, w any) bson.D {
	return bson.D{{Key: "update", Value: "jobs"}, {Key: "updates", Value: bson.A{statement}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}}}
}

func answer(raw bson.Raw) (wire.WriteResult, error) {
	res := wire.ParseWriteResult([]byte(raw))
	err := mongo.Interrupted(res)
	switch {
	case err != nil:
	case len(res.Errors) > 0:
		err = fmt.Errorf("%s (code %d)", res.Errors[0].Message, res.Errors[0].Code)
	case res.N == 0:
		err = mongo.WithHint(ErrFenced, "stop the other process first, or let this one go")
	}
	return res, err
}

// Reset proves, then sets everything but the owner. See Jobs.
func (s *Mongo) Reset(ctx context.Context, job Job) error {
	failpoint.Hit("reset.before")
	defer failpoint.Hit("reset.after")
	job.Version, job.Restarted, job.CreatedAt = FormatVersion, true, time.Now().UTC()
	var all bson.D
	raw, err := bson.Marshal(job)
	if err == nil {
		err = bson.Unmarshal(raw, &all)
	}
	if err != nil {
		return fmt.Errorf("reset job %s: %w", s.o.Job, err)
	}
	return s.SaveDurably(ctx, slices.DeleteFunc(all, func(e bson.E) bool {
		return slices.Contains([]string{"_id", "fence", "beat", "owner", "session", "updatedAt"}, e.Key)
	}))
}

// Clear removes by the job's name. See Store.
func (s *Mongo) Clear(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, coll := range cleared() {
		g.Go(func() error {
			return mongo.Wrap(s.delete(gctx, coll, bson.D{mongo.OfJob(s.o.Job)}), "clear job %s", s.o.Job)
		})
	}
	err := g.Wait()
	s.noCatalog.Store(err == nil)
	return err
}

func cleared() []string { return []string{"slices", "collections", "skipped", waysBack} }

func all[T any](ctx context.Context, s *Mongo, coll string) ([]T, error) {
	return mongo.ReadAll[T](ctx, "load %s of job %s", coll, s.o.Job)(
		s.db.Collection(coll).Find(ctx, bson.D{mongo.OfJob(s.o.Job)}))
}

func replace(id string, doc any) bson.D {
	return bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: doc}, {Key: "upsert", Value: true}}
}
