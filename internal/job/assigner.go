package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// assigner assigns slices of a copy to other workers. A message of an assistant has no effect
// once its slices are taken back, and no assistant's message has one when the copy is over. The
// target knows who may write (state.Job.Assistants): assistants ask it over each connection
// before they write there. A revoked assistant has its connections ended.
type assigner struct {
	*assign.Owner[*copy.Assignment, *copyReport]
	throttle
	terms    copyTerms
	of       engines
	target   *mongo.Cluster
	store    state.Store
	counters *transform.Counters
	progress *progress.Progress
	log      *slog.Logger

	counted map[string][]int64 // by token; with the owner locked
	mu      sync.Mutex
	grants  map[grantOf]chan struct{} // closed when they are granted
}

// copyTerms are those under which an assistant copies.
type copyTerms struct {
	Job     string       `bson:"job"`
	Run     string       `bson:"run"`
	Attempt int64        `bson:"attempt"`
	Shards  []string     `bson:"shards"`            // of the source; of a replica set one of no name
	Routers []string     `bson:"routers,omitempty"` // of a sharded target: those over which may be written
	Others  bool         `bson:"others,omitempty"`  // see copy.Options
	Start   mongo.OpTime `bson:"start"`
}

// copyReport is what an assistant reports, or asks leave for.
type copyReport struct {
	// Slices are those that have moved, as the target has acknowledged them in Term.
	Slices []scan.Slice `bson:"slices,omitempty"`
	Term   int64        `bson:"term,omitempty"`
	// Counted is what the rules have done up to now.
	Counted []int64 `bson:"counted,omitempty"`
	Grant   *grant  `bson:"grant,omitempty"` // alone
}

// grant is asked for, to send so much within the job's limits.
type grant struct {
	Seq   int64 `bson:"seq"`
	Docs  int64 `bson:"docs"`
	Bytes int64 `bson:"bytes"`
}

type grantOf struct {
	token string
	seq   int64
}

// assigns reports that slices of the job may be assigned. A write concern of less than a
// majority could lose who was revoked.
func (c *copier) assigns() bool {
	majority := c.spec.WriteConcern == "" || c.spec.WriteConcern == "majority"
	return c.spec.Offer != nil && majority && c.source.cluster.Info.Kind != mongo.KindStandalone &&
		c.dst.Info.Kind != mongo.KindStandalone
}

// assigning runs engines of whose slices others may copy some: run runs them all.
func (c *copier) assigning(ctx context.Context, of engines, start mongo.OpTime, run func(context.Context) error) error {
	w := &assigner{throttle: c.throttle, of: of, target: c.dst, store: c.store, counters: c.counters, progress: c.progress,
		log:     c.log,
		counted: map[string][]int64{}, grants: map[grantOf]chan struct{}{},
		terms: copyTerms{Job: c.id, Run: c.lease.run, Attempt: c.stored.Fence, Others: c.spec.OnExisting == ExistingMerge,
			Start: start}}
	for _, e := range of {
		w.terms.Shards = append(w.terms.Shards, e.shard)
	}
	common := assign.Common{Source: c.source.cluster, Target: c.dst, Rules: c.rules, Keys: &c.keys}
	w.Owner = assign.NewOwner(*c.spec.Offer, common, w, c.log, c.assistants)
	c.progress.Assigning(w.Status)
	return w.Run(ctx, run)
}

// Terms are those of the copy. See assign.Work.
func (w *assigner) Terms() any {
	t := w.terms
	if w.target.Info.Kind == mongo.KindSharded { // an assistant's connections by another router would not be seen
		t.Routers = w.target.Pool.Addresses()
	}
	return t
}

// Revoke ends the connections of one who may not write any more, or of all. See assign.Work.
func (w *assigner) Revoke(ctx context.Context, m *assign.Member[*copy.Assignment]) error {
	var token string
	waiting := func(left []mongo.Connection) {
		w.progress.Wait(fmt.Sprintf(
			"%d connections of workers that have copied a part, to the target to end, one of them from %s",
			len(left), left[0].Client))
	}
	if m == nil {
		defer w.progress.Wait("")
	} else {
		var once sync.Once // members are looked at side by side, and again and again
		token, waiting = m.Token, func(left []mongo.Connection) {
			once.Do(func() {
				w.log.Warn("a worker that copied a part still has connections to the target; its slices wait for them to end",
					"worker", m.Worker, "connections", len(left), "from", left[0].Client, "hint", "end that process")
			})
		}
	}
	names := mongo.Assistants(w.terms.Job, w.terms.Run, w.terms.Attempt, token)
	_, err := w.target.EndConnections(ctx, names, waiting, bson.D{{Key: "ping", Value: 1}})
	return mongo.Wrap(err, "end the connections of a worker that has copied a part")
}

// Note has the target know who may write. See assign.Work.
func (w *assigner) Note(ctx context.Context, tokens []string) error {
	return w.store.Note(ctx, bson.D{{Key: "borrowers", Value: tokens}})
}

var errLow = errors.New("the job's load is low: its owner copies alone")

// Closed says why nobody may join. See assign.Work.
func (w *assigner) Closed() string {
	switch {
	case w.low():
		return errLow.Error()
	case !slices.ContainsFunc(w.of, engine.Reads):
		return "there is nothing to assign yet"
	}
	return ""
}

// Waiting is how many slices others may copy. See assign.Work.
func (w *assigner) Waiting() (n int) {
	for _, e := range w.of {
		n += e.Assignable()
	}
	return n
}

func sliceID(st *scan.Slice) string { return fmt.Sprintf("%s/%d", st.Collection, st.N) }

// Next takes a slice of a shard's part that waits. There may be one later of any shard: who has come
// stays while there is something for it to do. See assign.Work.
func (w *assigner) Next(shard string) (a *assign.Assigned[*copy.Assignment], more bool) {
	for _, e := range w.of {
		if e.shard != shard {
			more = more || e.Assignable() > 0
			continue
		}
		one, waits := e.Assign()
		if more = more || waits; one != nil {
			a = &assign.Assigned[*copy.Assignment]{ID: sliceID(&one.Slice), Part: one, Unit: &one.Unit}
		}
	}
	return a, more
}

// Report takes what has become of slices. See assign.Work.
func (w *assigner) Report(ctx context.Context, m *assign.Member[*copy.Assignment],
	r *copyReport) (again bool, err error) {
	switch {
	case r == nil:
		return false, nil
	case r.Grant != nil:
		return w.grant(ctx, m, r.Grant)
	case len(r.Slices) > 0:
		if err := w.store.SameTerm(r.Term); err != nil {
			w.Fail(err)
			return false, errors.New("the target has another primary")
		}
	}
	return false, m.Update(func(parts map[string]*copy.Assignment, f *assign.Figures) error {
		w.counters.AddCopied(w.counted[m.Token], r.Counted)
		w.counted[m.Token] = r.Counted
		for i := range r.Slices {
			st := &r.Slices[i]
			one := parts[sliceID(st)]
			if one == nil {
				continue // reported before: it is done
			}
			docs, bytes, err := one.Advance(*st)
			if err != nil {
				w.log.Warn("a worker reported something that was not assigned to it", "worker", m.Worker, "error", err)
				return err
			}
			f.Docs += docs
			f.Bytes += bytes
			if one.Done() {
				delete(parts, sliceID(st))
			}
		}
		return nil
	})
}

// grantPatience is how long a request for a grant is answered at most: who waits longer
// asks again.
const grantPatience = 2 * time.Second

// grant lets an assistant send so much, when the limits of the job allow it.
func (w *assigner) grant(ctx context.Context, m *assign.Member[*copy.Assignment], g *grant) (again bool, err error) {
	if w.low() {
		return false, errLow
	}
	of := grantOf{m.Token, g.Seq}
	w.mu.Lock()
	granted := w.grants[of]
	if granted == nil {
		granted = make(chan struct{})
		w.grants[of] = granted
		w.Go(func(ctx context.Context) {
			if w.limit.Wait(ctx, g.Docs, g.Bytes) == nil && w.dstGate.Unheld(ctx) == nil {
				close(granted)
			}
		})
	}
	w.mu.Unlock()
	late := time.NewTimer(grantPatience)
	defer late.Stop()
	select {
	case <-granted:
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.grants, of)
		return false, nil
	case <-late.C:
		return true, nil
	case <-ctx.Done():
		return false, errors.New("the job's owner does not copy any more")
	}
}
