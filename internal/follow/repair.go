package follow

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// repairsAtOnce and repairBytes bound the documents read from the source between two batches; the
// last one may exceed repairBytes.
const (
	repairsAtOnce = 20
	repairBytes   = 16 << 20
)

// RepairRefused is the outcome of a refused repair.
const RepairRefused resolve.Repaired = "refused"

// Repair is a request to make a document of the target equal to the source's.
type Repair struct {
	Target string // namespace
	// UUID is that of the source's collection in which the document differed, empty if the source
	// had none. The repair is refused if the name belongs to another collection now.
	UUID    bson.Binary
	ID      bsonraw.ID
	Outcome resolve.Repaired // empty while open
	Why     string           // reason of a refusal

	begun bool
}

// Repairs are the open repairs. It is safe for concurrent use; the zero value has none.
type Repairs struct {
	mu      sync.Mutex
	open    []*Repair
	changed chan struct{} // closed and replaced when one has its outcome
}

// Add adds the repairs that have no outcome yet.
func (r *Repairs) Add(list []*Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range list {
		if one.Outcome == "" {
			r.open = append(r.open, one)
		}
	}
}

// Remove removes open repairs. Documents that were begun are still repaired.
func (r *Repairs) Remove(list []*Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = slices.DeleteFunc(r.open, func(one *Repair) bool { return slices.Contains(list, one) })
}

// Look returns copies of repairs, how many are open, and a channel that is closed at the next outcome.
func (r *Repairs) Look(list []*Repair) (now []Repair, open int, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range list {
		now = append(now, *one)
		if one.Outcome == "" {
			open++
		}
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return now, open, r.changed
}

// again restarts the repairs that an earlier run began: its dead letters may be lost.
func (r *Repairs) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.open {
		one.begun = false
	}
}

func (r *Repairs) some() (begun, next []*Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.open {
		switch {
		case one.begun:
			begun = append(begun, one)
		case len(next) < repairsAtOnce:
			next = append(next, one)
		}
	}
	return begun, next
}

func (r *Repairs) begin(one *Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.begun = true
}

func (r *Repairs) end(one *Repair, how resolve.Repaired, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.Outcome, one.Why = how, why
	r.open = slices.DeleteFunc(r.open, func(o *Repair) bool { return o == one })
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// repair makes documents of the target equal to those of the source. It is called after a batch,
// outside the overlap. Each document is read from the source and kept in a dead letter, to which its
// later changes are applied. The document is written once the stream has passed the time of the read.
// So the target never gets a state that the stream has not reached, nor one older than its own.
func (f *follower) repair(ctx context.Context, at mongo.OpTime) error {
	begun, next := f.Repairs.some()
	for _, one := range begun {
		f.repaired(one)
	}
	if len(next) == 0 {
		return nil
	}
	if !f.finalAt.IsZero() {
		for _, one := range next {
			f.endRepair(one, RepairRefused, "the job is being finalized")
		}
		return nil
	}
	if err := f.sink.Drain(ctx); err != nil {
		return err
	}
	letters := make([]*deadletter.Letter, len(next))
	var until mongo.OpTime
	bytes := 0
	for i, one := range next {
		if bytes >= repairBytes {
			break
		}
		l, why, err := f.readForRepair(ctx, one, at)
		switch why, err = f.unlessRetried(ctx, why, err); {
		case err != nil:
			return err
		case why != "":
			f.endRepair(one, RepairRefused, why)
		case l == nil: // an earlier run has begun it
			f.Repairs.begin(one)
		default:
			letters[i], until = l, mongo.MaxOpTime(until, l.Until)
			bytes += len(l.Doc)
		}
	}
	for i, l := range letters {
		if l == nil {
			continue
		}
		l.Until = until // written together: one may occupy a unique key of another
		why, err := f.sink.Hold(ctx, *l)
		switch why, err = f.unlessRetried(ctx, why, err); {
		case err != nil:
			return err
		case why != "":
			f.endRepair(next[i], RepairRefused, why)
		default:
			f.Repairs.begin(next[i])
		}
	}
	return nil
}

// unlessRetried turns a permanent error into a reason: a repair ends no job.
func (f *follower) unlessRetried(ctx context.Context, why string, err error) (string, error) {
	if err == nil || ctx.Err() != nil || mongo.Classify(err) == mongo.ClassRetry {
		return why, err
	}
	return mongo.Brief(err), nil
}

// readForRepair reads a document from the source, or returns why it cannot be repaired. l is nil if
// the document has a dead letter already.
func (f *follower) readForRepair(ctx context.Context, one *Repair, at mongo.OpTime) (l *deadletter.Letter, why string,
	err error) {
	if mongo.IsBuckets(one.Target) {
		return nil, "documents of time-series collections cannot be repaired", nil
	}
	name, ok := f.Source.Names.Target(one.Target)
	if !ok || name.Gone {
		return nil, "the job has no such collection", nil
	}
	if known := name.UUID.Data; len(known) > 0 && !bytes.Equal(known, one.UUID.Data) {
		return nil, name.NS + " is another collection of the source than when the document was found: verify again", nil
	}
	writes, deletes := f.mayRepair(name)
	if writes != "" {
		return nil, writes, nil
	}
	if c, _, _ := f.Letters.CaseOf(one.Target, one.ID); c.State == deadletter.Held {
		return nil, "", nil
	}
	of := stream.Origin{NS: one.Target, Source: name.NS}
	now, err := f.Source.Reread(ctx, of, one.ID, at)
	switch {
	case err != nil:
		return nil, "", err
	case now.Gone:
		return nil, "the source has dropped the collection", nil
	case now.Doc == nil && deletes != "":
		return nil, "the source has no such document, and " + deletes, nil
	}
	return &deadletter.Letter{Origin: of, DocID: one.ID, Doc: now.Doc, At: now.From, Until: now.Until}, "", nil
}

// mayRepair returns why no document of a collection can be written, and why none can be deleted; "" if
// they can.
func (f *follower) mayRepair(name schema.Name) (writes, deletes string) {
	r := f.Rules.Route(name.NS)
	switch {
	case name.Type != schema.TypeCollection:
		return "it is in a view or time-series collection", ""
	case r.History:
		return "documents of collections with history cannot be repaired", ""
	case r.Skips.Has(stream.OpInsert | stream.OpUpdate | stream.OpReplace):
		return "the job leaves out operations of its collection (--skip), so that it differs as it has to", ""
	}
	switch {
	case r.Skips.Has(stream.OpDelete | stream.OpTTL):
		deletes = "the job leaves out deletions (--skip)"
	case r.SoftDelete != "":
		deletes = "the job marks what is deleted (--soft-delete)"
	case r.Partial(true):
		deletes = "a rule keeps a part of the documents"
	case f.OnExisting == state.ExistingMerge:
		deletes = "the target had documents of its own before the job (--on-existing merge)"
	case f.Rules.Ambiguous(name.Target):
		deletes = "its collection may stem from several of the source"
	}
	return "", deletes
}

func (f *follower) repaired(one *Repair) {
	c, waits, disputed := f.Letters.CaseOf(one.Target, one.ID)
	switch {
	case !disputed:
		how, why := f.sink.Repaired(one.Target, one.ID), ""
		if how == resolve.RepairNothing {
			how, why = RepairRefused, "its collection was dropped or renamed meanwhile: verify again"
		}
		f.endRepair(one, how, why)
	case c.State == deadletter.Open && !waits:
		f.endRepair(one, RepairRefused, "the target refuses it; it is kept as a dead letter, which says why")
	}
}

func (f *follower) endRepair(one *Repair, how resolve.Repaired, why string) {
	f.Repairs.end(one, how, why)
	of := []any{"ns", one.Target, "documentId", bsonraw.IDText(one.ID)}
	if how == RepairRefused {
		f.Log.Warn("repair refused", append(of, "reason", why)...)
		return
	}
	f.Log.Info("document repaired by request", append(of, "outcome", how)...)
}
