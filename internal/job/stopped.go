package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
)

// Stopped is a job that no process runs. While it is held, no other process may run it.
type Stopped struct {
	target *mongo.Cluster
	job    state.Job
	store  *state.Mongo
}

// Hold makes the caller the owner of a stopped job while do runs. It returns state.ErrRunning for a
// running job, after some seconds if only time can tell. c must be used for nothing else: its
// connections carry the run's name.
func Hold(ctx context.Context, c *mongo.Cluster, id string, log *slog.Logger,
	do func(context.Context, *Stopped) error) error {
	const wait = 20 * time.Second // for connections that do not end
	run := state.NewRun()
	s := &Stopped{target: c}
	var was state.Job
	s.store = state.Open(c, state.Options{Job: id, Run: run, Write: "majority", EndOthers: func(ctx context.Context,
		attempt int64, then bson.D) (bson.Raw, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, wait,
			mongo.WithHint(fmt.Errorf("an earlier run of job %s still has connections to the target", id),
				"end its process, or the tunnel or proxy that keeps its connections, then try again"))
		defer cancel()
		e := ending{target: c, job: id, run: run, attempt: attempt, sessions: []bson.Raw{was.Session}, log: log}
		raw, err := e.end(ctx, func([]mongo.Connection) {}, then)
		if err != nil {
			err = causeOr(ctx, err)
		}
		return raw, err
	}})
	var err error
	if was, err = s.store.TakeOver(ctx, func(o state.Owner) {
		log.Info("waiting to learn whether the job's last owner still lives", "owner", o.String())
	}); err != nil {
		return err
	}
	c.Pool.SetGuard(s.store.Owned)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := s.store.Release(ctx); err != nil {
			log.Debug("job not released", "error", err)
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	beating, done := context.WithCancel(gctx)
	g.Go(func() error {
		defer done()
		var err error
		if s.job, err = s.store.Begin(gctx); err != nil {
			return err
		}
		return do(gctx, s)
	})
	g.Go(func() error {
		err := retry.Every(beating, state.BeatEvery, func() error { return s.store.Beat(beating) })
		if beating.Err() != nil && gctx.Err() == nil {
			return nil // do has ended
		}
		return err
	})
	return g.Wait()
}

// Has is what the database millrace keeps of a job beside its document and dead letters.
type Has struct {
	Documents map[string]int64  // by collection
	Deferred  []schema.Deferred // what the target does not have yet
}

// Look counts what the target keeps of a job, running or not.
func Look(ctx context.Context, c *mongo.Cluster, id string) (h Has, err error) {
	if h.Documents, err = state.Open(c, state.Options{Job: id}).Kept(ctx); err != nil {
		return h, err
	}
	h.Deferred, err = schema.NewTarget(c, schema.TargetOptions{Job: id}).Deferred.List(ctx)
	return h, err
}

// Drop removes the job and all that the database millrace keeps of it. Replicated data stay. After
// an interrupted removal the job begins anew: it never resumes from a part of its state.
func (s *Stopped) Drop(ctx context.Context) error {
	if err := s.store.Reset(ctx, s.job.Anew()); err != nil {
		return err
	}
	letters := func(ctx context.Context) error { return deadletter.Drop(ctx, s.target, s.job.ID) }
	deferred := schema.NewTarget(s.target, schema.TargetOptions{Job: s.job.ID}).Deferred.ForgetAll
	balanced := placing.New(s.target, placing.Options{Job: s.job.ID}).ForgetAll
	for _, remove := range []func(context.Context) error{balanced, letters, deferred, s.store.Clear, s.store.Drop} {
		if err := remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ErrUnfinished reports that a job retries its dead letters when it starts.
var ErrUnfinished = errors.New("the job is not finalized: it tries its open dead letters itself each time it starts, " +
	"with the changes made since")

// RetryLetters writes open dead letters of a finalized job to the target where nothing conflicts
// any more, and reports each outcome to notify. Applications may write to the target by now, so
// nothing is replaced: a document whose _id is taken stays a dead letter, unless the target has the
// identical document. If ids are given, no others are tried.
func (s *Stopped) RetryLetters(ctx context.Context, notify func(l deadletter.Letter, refused error),
	ids ...string) error {
	if s.job.Phase != PhaseFinalized {
		return ErrUnfinished
	}
	const some = 10 // each may be large
	letters := deadletter.New(s.target, s.job.ID, s.store.SameTerm)
	if err := letters.Load(ctx, false); err != nil {
		return err
	}
	if len(ids) > 0 {
		letters.Choose(ids, true)
	}
	for letters.AnyDue(letters.Until()) {
		due, err := letters.Due(ctx, letters.Until(), some)
		if err != nil {
			return err
		}
		for _, l := range due {
			refused, err := s.insert(ctx, l)
			switch {
			case err != nil:
				return fmt.Errorf("write %s, _id %s: %w", l.NS, bsonraw.IDText(l.DocID), err)
			case refused == nil:
				err = letters.Settle(ctx, l, "written by millrace deadletters retry")
			default:
				l.State, l.Reason = deadletter.Open, refused.Error()
				err = letters.Write(ctx, l)
				letters.Tried(l.NS, l.DocID)
			}
			if err != nil {
				return err
			}
			notify(l, refused)
		}
	}
	return s.store.Beat(ctx) // with a majority: what was settled is durable
}

// insert writes a dead letter's document unless one is there; refused says why not.
func (s *Stopped) insert(ctx context.Context, l deadletter.Letter) (refused, err error) {
	c, found, err := collection(ctx, s.target, l.NS)
	switch {
	case err != nil:
		return nil, err
	case len(l.Doc) == 0:
		return errors.New("the document could not be read from the source any more"), nil
	case !found:
		return errors.New("the target has no such collection"), nil
	case l.Target != nil && !bytes.Equal(l.Target.Data, c.UUID.Data):
		return errors.New("on the target, the name means another collection now than when the job was finalized: write the " +
			"document by hand"), nil
	case c.Capped():
		return errors.New("a capped collection takes a document at its end only, where it does not belong"), nil
	}
	db, coll := mongo.SplitNS(l.NS)
	at := s.target.Client.Database(db)
	err = docwrite.Run(ctx, at, append(docwrite.Key{}.Insert(coll, l.Doc),
		bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}))
	answer, ok := errors.AsType[wire.WriteError](err)
	if !ok {
		return nil, err
	}
	there, err := at.Collection(coll).FindOne(ctx, bson.D{{Key: "_id",
		Value: bson.D{{Key: "$eq", Value: bsonraw.RawValue(l.DocID)}}}}).Raw()
	switch {
	case err == nil && bytes.Equal(there, l.Doc):
		return nil, nil
	case err == nil:
		return errors.New("the target has another document with this _id"), nil
	case errors.Is(err, driver.ErrNoDocuments):
		return answer, nil
	}
	return nil, err
}
