package job

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/state"
)

type lease struct {
	store    state.Store
	target   *mongo.Cluster
	txn      *mongo.Transactions
	gate     *pace.Gate // of the target
	progress *progress.Progress
	log      *slog.Logger
	anew     state.Job // that begins

	run      string     // names this run on the target
	restart  bool       // the job is to begin anew
	made     bool       // by this run: it is new
	resumed  *state.Job // as an earlier process left it; nil: none began the job
	attempts int        // begun by this run
	session  bson.Raw   // of the transactions of the last owner, until they are ended
}

// take makes this run the owner of the job, new or stored. It writes nothing else.
func (l *lease) take(ctx context.Context) error {
	taken, err := l.store.TakeNew(ctx, l.anew)
	if l.made = taken; taken { // there is nothing to begin anew
		l.restart = false
	}
	if taken || err != nil {
		return err
	}
	job, err := l.store.TakeOver(ctx, func(o state.Owner) {
		l.progress.Wait("the last owner of the job, " + o.String() + ", to be known dead")
		l.log.Info("waiting to learn whether the job's last owner still lives", "owner", o.String())
	})
	if err != nil {
		return err
	}
	l.session = job.Session
	l.progress.Wait("")
	ours := job.Owner.Run == l.run // made by a TakeNew whose answer was lost
	if ours || l.restart {
		return nil
	}
	l.resumed = &job
	l.log.Info("resuming job", "job", job.ID, "phase", job.Phase, "applied", job.Applied)
	return nil
}

// begin starts an attempt. After it, nothing of earlier attempts runs or arrives on the target.
func (l *lease) begin(ctx context.Context) (state.Job, error) {
	// Durable before the first transaction: the next run ends it by its name.
	job, err := l.store.Begin(ctx, bson.E{Key: "session", Value: l.txn.SessionID()},
		bson.E{Key: "settings", Value: l.anew.Settings}, bson.E{Key: "stop", Value: nil})
	if err != nil {
		return job, err
	}
	l.session = nil
	if l.restart {
		anew := l.anew
		anew.Shared = job.Shares()
		if err := l.store.Reset(ctx, anew); err != nil {
			return job, err
		}
		l.restart = false
		l.log.Info("the job begins anew", "job", job.ID)
		job, _, err = l.store.Reload(ctx)
	}
	return job, err
}

func (l *lease) endOthers(ctx context.Context, attempt int64, then bson.D) (bson.Raw, error) {
	defer l.progress.Wait("")
	e := ending{target: l.target, job: l.anew.ID, run: l.run, attempt: attempt, sessions: []bson.Raw{l.session},
		first: l.attempts == 0, log: l.log}
	if l.attempts > 0 {
		e.sessions = append(e.sessions, l.txn.SessionID())
	}
	l.attempts++
	return e.end(ctx, func(left []mongo.Connection) {
		l.progress.Wait(fmt.Sprintf("%d connections of an earlier run to the target to end, one of them from %s", len(left),
			left[0].Client))
	}, then)
}

// ending ends operations, transactions and messages of other attempts of a job.
type ending struct {
	target   *mongo.Cluster
	job, run string
	attempt  int64
	sessions []bson.Raw // of transactions that may be open
	first    bool       // of the run
	log      *slog.Logger
}

func (e ending) end(ctx context.Context, waiting func([]mongo.Connection), then bson.D) (bson.Raw, error) {
	name, others := mongo.RunName(e.job, e.run, e.attempt), mongo.OtherRuns(e.job, e.run, e.attempt)
	if !e.first { // what earlier attempts of this run had checked out is closed
		renewing, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := e.target.RenewConnections(renewing, name)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	failpoint.Hit("session.before")
	for _, session := range e.sessions {
		if len(session) == 0 {
			continue
		}
		if err := e.target.KillSession(ctx, session); err != nil {
			if mongo.Classify(err) == mongo.ClassRetry {
				return nil, err
			}
			e.log.Warn("an open transaction of an earlier run may hold up writes for a minute", "error", err)
		}
	}
	tell := func(left []mongo.Connection) {
		waiting(left)
		e.log.Warn("an earlier run of the job still has connections to the target;"+
			" they have to end before anything is written",
			"connections", len(left), "from", left[0].Client,
			"hint", "end that process, or the tunnel or proxy that keeps its connections")
	}
	if e.first {
		return e.target.EndConnectionsFirst(ctx, name, others, tell, then)
	}
	return e.target.EndConnections(ctx, others, tell, then)
}

// heartbeat proves ownership. A silent target is no failure: the phases wait.
func (l *lease) heartbeat(ctx context.Context) error {
	return retry.Every(ctx, state.BeatEvery, func() error {
		err := l.notFarAhead(func() error { return l.store.Beat(ctx) })
		if err != nil && ctx.Err() == nil && mongo.Classify(err) != mongo.ClassRetry {
			return err
		}
		return nil
	})
}

// mostAhead is how far the target's primary may be ahead of its majority before writes stop.
// Servers delay writes at 5 s; a run that proves nothing for 10 s loses its job.
const mostAhead = 2 * time.Second

// notFarAhead runs a proof, which takes as long as the majority is behind. Beyond mostAhead it
// holds back all other writes: they would only delay the members further.
func (l *lease) notFarAhead(prove func() error) error {
	proven := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		late := time.NewTimer(mostAhead)
		defer late.Stop()
		select {
		case <-late.C:
			l.gate.Hold(true)
			defer l.gate.Hold(false)
			<-proven
		case <-proven:
		}
	})
	defer wg.Wait()
	defer close(proven)
	return prove()
}

const (
	// closeTime is how long connections to the target may take to end, which is 10 s where
	// they have just been opened: the driver waits for its monitors. releaseTime is how
	// long the word after that may take.
	closeTime   = 15 * time.Second
	releaseTime = 5 * time.Second
)

// letGo closes connections and releases the job, with err as the reason. Unless both succeed, the next run has to wait.
func (l *lease) letGo(ctx context.Context, err error) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if err := l.target.Pool.CloseRenewed(closing); err != nil {
		l.log.Debug("connections not closed", "error", err)
	}
	if closing.Err() != nil {
		l.log.Debug("connections took long to end; the job's next run makes sure that they have")
		return
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	var stop *state.Stop
	if err != nil {
		err = causeOr(ctx, err)
		stop = &state.Stop{Error: mongo.Brief(err), Hint: mongo.HintOf(err)}
	}
	if err := l.store.Release(release, bson.E{Key: "stop", Value: stop}); err != nil {
		l.log.Debug("job not released", "error", err)
	}
}
