package filecopy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/internal/state"
)

const (
	lookEvery = 200 * time.Millisecond
	askTime   = 10 * time.Second // bounds a request to an agent, and a command of a member
)

// look asks all agents for their states.
func (j *Job) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, t := range j.targets {
		wg.Go(func() { t.state, t.err = t.State(ctx) })
	}
	wg.Wait()
	for _, t := range j.targets {
		if t.err != nil {
			t.state = nil
		}
	}
}

// all reports whether all agents are at a stage or after it.
func (j *Job) all(s seed.Stage) bool {
	return !slices.ContainsFunc(j.targets, func(t *target) bool { return t.state == nil || !t.state.Stage.Reached(s) })
}

// transfer has the agents make the new set. What one of them has done already is not done again.
func (j *Job) transfer(ctx context.Context) error {
	m := &meter{}
	j.progress.Copying(m)
	j.progress.Enter(state.PhaseCopying)
	j.look(ctx)
	var stuck, sampled time.Time
	for !j.all(seed.StageRunning) {
		err := j.next(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var fatal *otherOrderError
		if errors.As(err, &fatal) {
			return err
		}
		if err == nil {
			stuck = time.Time{}
		} else if stuck.IsZero() {
			stuck = time.Now()
			j.log.Warn("the copy of files waits", "error", err, "hint", mongo.HintOf(err))
		}
		if limit := j.spec.GiveUpAfter; err != nil && limit > 0 && time.Since(stuck) > limit {
			return err
		}
		if time.Since(sampled) >= time.Second {
			sampled = time.Now()
			j.progress.Sample()
		}
		j.wait(err)
		m.set(j.figures())
		if pace.Pause(ctx, lookEvery) != nil {
			return context.Cause(ctx)
		}
		j.look(ctx)
	}
	m.set(j.figures())
	j.progress.Wait("the new set to elect a primary")
	defer j.progress.Wait("")
	return j.elect(ctx)
}

// wait shows what the copy waits for.
func (j *Job) wait(err error) {
	j.mu.Lock()
	paused := j.paused
	j.mu.Unlock()
	reason := ""
	switch {
	case paused:
		reason = "the operator to resume"
	case err != nil:
		reason = mongo.Brief(err)
	case j.all(seed.StageFormed):
		reason = "the members to start"
	case j.all(seed.StageCopied):
		reason = "the members to recover"
	}
	j.progress.Wait(reason)
}

// figures are the bytes of each member.
func (j *Job) figures() (all []copy.CollectionStats) {
	for _, t := range j.targets {
		s := copy.CollectionStats{Source: "files", Target: t.address, TotalBytes: j.bytes, State: copy.StateCopying}
		switch st := t.state; {
		case st == nil:
		case st.Copy != nil:
			s.Bytes, s.TotalBytes, s.State = st.Copy.Bytes, st.Copy.Bytes, copy.StateDone
		case st.Doing == seed.PhaseCopy:
			s.Bytes = min(st.Done, j.bytes)
		case st.Doing == seed.PhaseFreeze, st.Doing == seed.PhaseAgain, st.Doing == seed.PhaseSync:
			s.Bytes = j.bytes
		}
		all = append(all, s)
	}
	return all
}

// otherOrderError reports agents that work for something else.
type otherOrderError struct{ error }

// next orders what is to be done. Its error is why the copy does not go on; it is retried.
func (j *Job) next(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	paused, err := j.setPace(ctx)
	if err != nil {
		return err
	}
	formation, err := j.formation()
	if err != nil {
		return err
	}
	form := j.all(seed.StageFormed)
	if form && !paused {
		if err := j.agreed(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for i, t := range j.targets {
		if !paused { // a paused agent would take the order, but not follow it
			errs = append(errs, j.order(ctx, i, t, formation, form))
		}
		if t.state.Error != "" {
			errs = append(errs, mongo.WithHint(fmt.Errorf("the agent %s: %s", t.address, t.state.Error), t.state.Hint))
		}
	}
	return errors.Join(errs...)
}

// setPace pauses and limits the agents that answer. Its error names those that do not.
func (j *Job) setPace(ctx context.Context) (paused bool, err error) {
	j.mu.Lock()
	if !j.asked { // as an earlier sync left it
		for _, t := range j.targets {
			j.paused = j.paused || t.state != nil && t.state.Paused
		}
	}
	limit, paused := j.spec.Limits.Bytes, j.paused
	j.mu.Unlock()
	var errs []error
	for i, t := range j.targets {
		bytes := limit
		if i > 0 {
			bytes = 0 // only the first one burdens the source
		}
		switch {
		case t.state == nil:
			errs = append(errs, fmt.Errorf("the agent %s to answer: %w", t.address, t.err))
		case t.state.Paused != paused || t.state.MaxBytes != bytes:
			errs = append(errs, t.SetPace(ctx, bytes, paused))
		}
	}
	return paused, errors.Join(errs...)
}

// order tells a host what it is to do next.
func (j *Job) order(ctx context.Context, i int, t *target, f seed.Formation, form bool) error {
	switch t.state.Stage {
	case seed.StageIdle:
		from := j.o.Source
		if i > 0 {
			from = j.targets[i-1].address
		}
		return t.Order(ctx, seed.Order{ID: j.id(), From: from, Formation: f})
	case seed.StageCopied:
		// Before it changes its copy, the next one has all of it.
		if i+1 == len(j.targets) || j.targets[i+1].state.Stage.Reached(seed.StageCopied) {
			return t.Advance(ctx, j.id(), seed.StageForming)
		}
	case seed.StageFormed:
		if form {
			return t.Advance(ctx, j.id(), seed.StageRunning)
		}
	}
	return nil
}

// id names the migration.
func (j *Job) id() string { return j.spec.Job + " of " + j.source.Info.SetID.Hex() }

// content is what the job keeps of the files.
func (j *Job) content() seed.Formation {
	return seed.Formation{Set: j.set, Job: j.spec.Job, Include: j.spec.Rules.Include, Exclude: j.spec.Rules.Exclude,
		Users: j.spec.Users}
}

// formation is that of the order which an agent has, else a new one.
func (j *Job) formation() (seed.Formation, error) {
	f, first := j.content(), ""
	for _, t := range j.targets {
		f.Members = append(f.Members, t.state.Own)
	}
	for _, t := range j.targets {
		o := t.state.Order
		if o == nil {
			continue
		}
		if o.ID != j.id() {
			return f, &otherOrderError{mongo.WithHint(fmt.Errorf("the agent %s works for another migration, %s", t.address,
				o.ID), "end it and its mongod, and remove its directory and the file beside it")}
		}
		was := o.Formation
		if f.ID.IsZero() {
			f.ID = was.ID
		}
		if was.ID != f.ID {
			return f, &otherOrderError{mongo.WithHint(fmt.Errorf("the agents %s and %s have orders for two sets: two syncs "+
				"began at once", first, t.address), "end all agents, remove their directories and the files beside them, and "+
				"begin again with one sync")}
		}
		first = t.address
		if !sameFormation(was, f) {
			return f, &otherOrderError{mongo.WithHint(fmt.Errorf("the agent %s has begun with other members, rules or users",
				t.address), "use the same --target-agents, --include, --exclude and --users")}
		}
	}
	if f.ID.IsZero() {
		f.ID = bson.NewObjectID()
	}
	return f, nil
}

func sameFormation(a, b seed.Formation) bool {
	return a.Set == b.Set && a.Job == b.Job && slices.Equal(a.Members, b.Members) && a.SameContent(b)
}

// agreed checks that all copies stand at one position that the source cannot roll back.
func (j *Job) agreed(ctx context.Context) error {
	at := j.targets[0].state.At
	for _, t := range j.targets {
		if t.state.At != at {
			return &otherOrderError{mongo.WithHint(fmt.Errorf("the files of %s stand at %s, those of %s at %s",
				j.targets[0].address, at, t.address, t.state.At), "remove the directories and begin again")}
		}
	}
	now, err := j.source.Positions(ctx)
	if err == nil && now.Majority.Before(at) {
		err = fmt.Errorf("the source's majority to reach %s", at)
	}
	return err
}

// elect has a member become primary at once: they would wait for the election timeout.
func (j *Job) elect(ctx context.Context) error {
	first := slices.MaxFunc(j.targets, func(a, b *target) int {
		return cmp.Compare(a.state.Own.Priority, b.state.Own.Priority)
	})
	return pace.Until(ctx, lookEvery, func() (bool, error) {
		primary := false
		for _, t := range j.targets {
			_ = j.direct(ctx, t, func(ctx context.Context, db *driver.Database) error {
				raw, err := db.RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Raw()
				if is, _ := raw.Lookup("ismaster").BooleanOK(); err == nil && is {
					primary = true
				}
				return err
			})
		}
		if !primary { // it may be refused, as to a user without the role clusterManager
			_ = j.direct(ctx, first, func(ctx context.Context, db *driver.Database) error {
				return db.RunCommand(ctx, bson.D{{Key: "replSetStepUp", Value: 1}}).Err()
			})
		}
		return primary, nil
	})
}

// direct runs do on the admin database of one member, with the user of the target.
func (j *Job) direct(ctx context.Context, t *target, do func(context.Context, *driver.Database) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	o, err := mongo.ParseURI(j.spec.Target)
	if err != nil {
		return err
	}
	return mongo.AskAt(ctx, *o, t.state.Own.Host, func(c *driver.Client) error { return do(ctx, c.Database("admin")) })
}

// Finish lets the set expire documents and the agents end. The job is finalized: a failure is only a warning. A later
// run does it for the agents that still answer.
func (j *Job) Finish(ctx context.Context) {
	j.look(ctx)
	for _, t := range j.targets {
		if t.state == nil || t.state.Stage == seed.StageFinished {
			if j.plan.Finalized != nil { // an earlier run has ended it
				continue
			}
			j.log.Warn("the agent does not answer; its mongod may not expire documents", "agent", t.address, "error", t.err,
				"hint", "db.adminCommand({setParameter: 1, ttlMonitorEnabled: true}) on its member")
			continue
		}
		err := j.direct(ctx, t, func(ctx context.Context, db *driver.Database) error {
			return db.RunCommand(ctx, bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: true}}).Err()
		})
		if err != nil {
			j.log.Warn("cannot switch on the TTL monitor", "member", t.state.Own.Host, "error", err,
				"hint", "db.adminCommand({setParameter: 1, ttlMonitorEnabled: true})")
		}
		if err := t.Advance(ctx, j.id(), seed.StageFinished); err != nil {
			j.log.Warn("cannot end the agent", "agent", t.address, "error", err, "hint", "end it by hand")
		}
	}
}
