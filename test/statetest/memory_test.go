package statetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// world is what stores in memory keep; fault names what is wrong with them.
type world struct {
	fault string
	mu    sync.Mutex
	held  chan struct{} // closed when writes become durable; nil: they do
	jobs  map[string]*record
}

// record is what is kept of a job.
type record struct {
	doc     map[string]any
	slices  map[string]bson.Raw
	catalog []state.Mapped
	skipped []stream.Place
}

func newWorld(fault string) *world { return &world{fault: fault, jobs: map[string]*record{}} }

func (w *world) setup() Setup {
	return Setup{
		Open: func(job, run string) state.Store { return &memory{w: w, job: job, run: run, term: -1, other: -1} },
		SetOwner: func(job string, o state.Owner) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.jobs[job].set(bson.D{{Key: "owner", Value: o}})
		},
		Hold: func() func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.held = make(chan struct{})
			return func() { close(w.held) }
		},
	}
}

func (w *world) of(job string) *record {
	if w.jobs[job] == nil {
		w.jobs[job] = &record{doc: map[string]any{}, slices: map[string]bson.Raw{}}
	}
	return w.jobs[job]
}

func (k *record) set(set bson.D) {
	for _, e := range set {
		k.doc[e.Key] = e.Value
	}
}

func (k *record) job() (job state.Job, found bool, err error) {
	if len(k.doc) == 0 {
		return job, false, nil
	}
	raw, err := bson.Marshal(k.doc)
	if err == nil {
		err = bson.Unmarshal(raw, &job)
	}
	return job, err == nil, err
}

// memoryLease is how long an owner may be silent.
const memoryLease = 300 * time.Millisecond

// memory is a Store that forgets all when the test ends.
type memory struct {
	w        *world
	job, run string

	mu                 sync.Mutex
	fence, term, other int64
	proven             time.Time
	unsaved            []stream.Place
}

var _ state.Store = (*memory)(nil)

// is reports a fault of this store.
func (m *memory) is(fault string) bool { return m.w.fault == fault }

func (m *memory) Load(context.Context) (state.Job, bool, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.w.of(m.job).job()
}

func (m *memory) Reload(ctx context.Context) (state.Job, bool, error) { return m.Load(ctx) }

func (m *memory) LoadOthers(context.Context, bool) (out []state.Job, err error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for name, k := range m.w.jobs {
		job, found, err := k.job()
		if err != nil {
			return nil, err
		}
		ended := job.Phase == state.PhaseFinalized && !m.is("finalized jobs are known")
		idle := job.Phase == state.PhaseCatalog && job.Owner == (state.Owner{}) && !m.is("idle jobs are known")
		if found && name != m.job && !ended && !idle {
			out = append(out, job)
		}
	}
	return out, nil
}

func fields(job state.Job) (set bson.D) {
	raw, err := bson.Marshal(job)
	if err == nil {
		err = bson.Unmarshal(raw, &set)
	}
	if err != nil {
		panic(err)
	}
	return set
}

func (m *memory) TakeOver(ctx context.Context, waiting func(state.Owner)) (state.Job, error) {
	job, found, err := m.Load(ctx)
	if err != nil || !found {
		return job, errors.Join(err, errors.New("no such job"))
	}
	if o := job.Owner; o.Run != m.run && o != (state.Owner{}) && o.Start != "1" && !m.is("displaces the living") {
		waiting(o)
		time.Sleep(2 * memoryLease)
		if now, _, err := m.Load(ctx); err != nil || now.Beat != job.Beat {
			return job, errors.Join(err, state.ErrRunning)
		}
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.fence, m.term, m.other, m.proven = job.Fence+1, -1, -1, time.Now()
	if m.is("a taker uses the old fence") {
		m.fence = job.Fence
	}
	m.w.of(m.job).set(bson.D{{Key: "owner", Value: state.ThisProcess(m.run)}, {Key: "fence", Value: m.fence}})
	return job, nil
}

func (m *memory) TakeNew(ctx context.Context, job state.Job) (bool, error) {
	if _, found, err := m.Load(ctx); err != nil || found && !m.is("create replaces") {
		return false, err
	}
	job.ID, job.Version = m.job, state.FormatVersion
	m.w.mu.Lock()
	m.w.of(m.job).set(fields(job))
	m.w.mu.Unlock()
	_, err := m.TakeOver(ctx, func(state.Owner) {})
	return err == nil, err
}

func (m *memory) Begin(ctx context.Context, noted ...bson.E) (state.Job, error) {
	m.mu.Lock()
	if !m.is("an attempt uses the old fence") {
		m.fence++
	}
	m.term, m.other = -1, -1
	m.mu.Unlock()
	if err := m.write(ctx, true, append(bson.D{{Key: "fence", Value: m.fence}}, noted...)); err != nil {
		return state.Job{}, err
	}
	m.mu.Lock()
	m.term = 1
	m.mu.Unlock()
	job, _, err := m.Load(ctx)
	return job, err
}

func (m *memory) Prove(ctx context.Context, _ bool) (mongo.OpTime, error) {
	return mongo.OpTime{}, m.SaveDurably(ctx, nil)
}

func (m *memory) Owned() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.proven) < memoryLease || m.is("everybody owns") || m.is("an owner never gives up") &&
		!m.proven.IsZero() {
		return nil
	}
	return errors.New("not owned")
}

func (m *memory) SameTerm(term int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.is("terms are not looked at") {
		return nil
	}
	if m.term < 0 {
		return errors.New("no attempt")
	}
	if term >= 0 && term != m.term {
		m.other = term
	}
	if m.other < 0 {
		return nil
	}
	if m.is("another term is forgotten") {
		m.other = -1
	}
	return fmt.Errorf("another term: %w", context.DeadlineExceeded) // it passes by itself
}

// write sets fields for the run, or for its attempt; it waits until they are durable.
func (m *memory) write(ctx context.Context, anyAttempt bool, set bson.D) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	k := m.w.of(m.job)
	job, _, err := k.job()
	if err != nil {
		return err
	}
	if job.Owner.Run != m.run && !m.is("old runs save") || !anyAttempt && job.Fence != m.fence &&
		!m.is("old attempts save") && !m.is("old runs save") {
		return state.ErrFenced
	}
	m.mu.Lock()
	m.proven = time.Now()
	m.mu.Unlock()
	k.set(append(set[:len(set):len(set)], bson.E{Key: "beat", Value: job.Beat + 1}))
	held := m.w.held
	if held == nil {
		return nil
	}
	m.w.mu.Unlock()
	defer m.w.mu.Lock()
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *memory) prove(ctx context.Context) error {
	if m.is("nothing is proven") {
		m.w.mu.Lock()
		held := m.w.held
		m.w.held = nil
		m.w.mu.Unlock()
		defer func() { m.w.mu.Lock(); m.w.held = held; m.w.mu.Unlock() }()
	}
	if err := m.write(ctx, false, nil); err != nil {
		return err
	}
	return m.SameTerm(-1)
}

func (m *memory) Save(ctx context.Context, set bson.D, noted ...bson.E) error {
	if m.is("stores, then proves") {
		if err := m.write(ctx, false, set); err != nil {
			return err
		}
	}
	if err := m.prove(ctx); err != nil {
		return err
	}
	return m.write(ctx, false, append(noted, set...))
}

func (m *memory) SaveDurably(ctx context.Context, set bson.D) error { return m.Save(ctx, set) }
func (m *memory) Note(ctx context.Context, set bson.D) error        { return m.write(ctx, false, set) }
func (m *memory) Mark(ctx context.Context, set bson.D) error {
	if m.is("a mark needs the term") {
		if err := m.SameTerm(-1); err != nil {
			return err
		}
	}
	return m.write(ctx, true, set)
}
func (m *memory) Beat(ctx context.Context) error { return m.Mark(ctx, nil) }

func (m *memory) Release(ctx context.Context, noted ...bson.E) error {
	err := m.write(ctx, true, append(bson.D{{Key: "owner", Value: state.Owner{}}}, noted...))
	if errors.Is(err, state.ErrFenced) {
		return nil
	}
	return err
}

func (m *memory) Reset(ctx context.Context, job state.Job) error {
	job.Restarted, job.Version = true, state.FormatVersion
	set := slices.DeleteFunc(fields(job), func(e bson.E) bool {
		switch e.Key {
		case "_id", "beat":
			return true
		case "fence":
			return !m.is("a reset begins at fence 0")
		case "owner", "session":
			return !m.is("a reset lets the owner go")
		case "mark", "applied":
			return m.is("a reset keeps the position")
		}
		return false
	})
	return m.Save(ctx, set)
}

func (m *memory) Clear(context.Context) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for name, k := range m.w.jobs {
		if name == m.job || m.is("clears all jobs") {
			k.slices, k.catalog = map[string]bson.Raw{}, nil
			if !m.is("clears without the skipped") {
				k.skipped = nil
			}
		}
	}
	return nil
}

func (m *memory) LoadSlices(context.Context) ([]bson.Raw, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return slices.Collect(maps.Values(m.w.of(m.job).slices)), nil
}

func (m *memory) SaveSlices(ctx context.Context, list []state.Slice) error {
	if !m.is("slices are not proven") {
		if err := m.prove(ctx); err != nil {
			return err
		}
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, s := range list {
		if m.is("slices are added") {
			s.ID = fmt.Sprint(s.ID, "/", len(m.w.of(m.job).slices))
		}
		m.w.of(m.job).slices[s.ID] = s.State
	}
	return nil
}

func (m *memory) DropSlices(_ context.Context, prefix string) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	maps.DeleteFunc(m.w.of(m.job).slices, func(id string, _ bson.Raw) bool {
		return strings.HasPrefix(id, prefix) || m.is("drops what contains the prefix") && strings.Contains(id, prefix)
	})
	return nil
}

func (m *memory) SaveCatalog(_ context.Context, colls []state.Mapped) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	k := m.w.of(m.job)
	if !m.is("a catalog is added") {
		k.catalog = nil
	}
	k.catalog = append(k.catalog, colls...)
	if m.is("the catalog is sorted") {
		slices.SortFunc(k.catalog, func(a, b state.Mapped) int { return cmp.Compare(a.NS, b.NS) })
	}
	return nil
}

func (m *memory) LoadCatalog(context.Context) ([]state.Mapped, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return slices.Clone(m.w.of(m.job).catalog), nil
}

func (m *memory) NoteNames(_ context.Context, change schema.NameChange) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	k := m.w.of(m.job)
	remove := func(ns string) {
		k.catalog = slices.DeleteFunc(k.catalog, func(c state.Mapped) bool { return c.NS == ns })
	}
	for _, ns := range change.Removed {
		remove(ns)
	}
	for _, one := range change.Put {
		if !m.is("names are put twice") {
			remove(one.NS)
		}
		one.Gone = one.Gone && !m.is("what never came is forgotten")
		k.catalog = append(k.catalog, state.Mapped{Target: one.Target, Presence: one.Presence,
			Collection: schema.Collection{NS: one.NS, Type: one.Type, UUID: one.UUID}})
	}
	if m.is("what is put anew is removed") {
		for _, ns := range change.Removed {
			remove(ns)
		}
	}
	return nil
}

func (m *memory) SaveWayBack(context.Context, state.WayBack) error { return nil }

func (m *memory) SaveSkipped(_ context.Context, docs []stream.Place) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	switch k := m.w.of(m.job); {
	case m.is("the skipped are kept for later"):
		m.unsaved = docs
	case m.is("the skipped are saved in parts") && len(docs) == len(k.skipped) && len(docs) > 0:
		k.skipped = append(slices.Clone(docs[:1]), k.skipped[1:]...)
		if err := m.SameTerm(-1); err != nil {
			return err
		}
		k.skipped = slices.Clone(docs)
	case m.is("the skipped are added"):
		k.skipped = append(k.skipped, docs...)
	default:
		k.skipped = slices.Clone(docs)
	}
	return nil
}

func (m *memory) LoadSkipped(context.Context) ([]stream.Place, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return append(slices.Clone(m.w.of(m.job).skipped), m.unsaved...), nil
}
