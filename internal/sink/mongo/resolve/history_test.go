package resolve

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// past is a source: few documents, each with a key k that no other has, or with none.
type past struct {
	*rand.Rand
	t      testing.TB
	to     *fold.Target
	now    map[int32]bson.D
	events []*stream.Event
	after  []bson.Raw // the document of each event once it has happened, nil for none
	trades int
}

const (
	pastDocs = 9
	pastKeys = 7
	theirs   = 100 // from here on: _ids of documents that the source never had
)

func newPast(t testing.TB, to *fold.Target, seed uint64, events int) *past {
	p := &past{Rand: rand.New(rand.NewPCG(seed, 5)), t: t, to: to, now: map[int32]bson.D{}}
	for len(p.events) < events {
		p.next()
	}
	return p
}

func (p *past) raw(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

func int32Value(id int32) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, id)}
}

func find(d bson.D, name string) int {
	return slices.IndexFunc(d, func(e bson.E) bool { return e.Key == name })
}

// add appends an event, after which the document is next.
func (p *past) add(id int32, kind stream.Kind, body bson.Raw, next bson.D) {
	at := at(len(p.events) + 1)
	p.events = append(p.events, &stream.Event{Kind: kind, Form: delta.Diff, NS: "s.c",
		Route: &stream.Route{Source: "s.c", Target: p.to.NS}, Key: stream.Key{ID: int32Value(id)}, Doc: body, At: at})
	if p.now[id] = next; next == nil {
		p.after = append(p.after, nil)
		delete(p.now, id)
	} else {
		p.after = append(p.after, p.raw(next))
	}
}

// change sets a field, or removes it where v is nil.
func (p *past) change(id int32, name string, v any) {
	next := slices.Clone(p.now[id])
	part := bson.E{Key: "u", Value: bson.D{{Key: name, Value: v}}}
	switch i := find(next, name); {
	case v == nil && i < 0:
		return
	case v == nil:
		part = bson.E{Key: "d", Value: bson.D{{Key: name, Value: false}}}
		next = slices.Delete(next, i, i+1)
	case i < 0:
		part.Key = "i"
		next = append(next, bson.E{Key: name, Value: v})
	default:
		next[i].Value = v
	}
	p.add(id, stream.Update, p.raw(bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{part}}}), next)
}

func (p *past) key(id int32) any {
	if i := find(p.now[id], "k"); i >= 0 {
		return p.now[id][i].Value
	}
	return nil
}

// free is a key that no document has, nil when there is none.
func (p *past) free() any {
	for _, k := range p.Perm(pastKeys) {
		taken := false
		for id := range p.now {
			taken = taken || p.key(id) == any(k)
		}
		if !taken {
			return k
		}
	}
	return nil
}

func (p *past) document(id int32, k any) bson.D {
	d := bson.D{{Key: "_id", Value: id}, {Key: "n", Value: p.IntN(1000)}}
	if k != nil && p.IntN(5) > 0 {
		d = append(d, bson.E{Key: "k", Value: k})
	}
	return d
}

// trade hands the keys of some documents round in a circle.
func (p *past) trade() {
	var ids []int32
	var keys []any
	for _, i := range p.Perm(pastDocs) {
		if k := p.key(int32(i)); k != nil && len(ids) < 2+p.IntN(2) {
			ids, keys = append(ids, int32(i)), append(keys, k)
		}
	}
	if len(ids) < 2 {
		return
	}
	p.trades++
	p.change(ids[0], "k", nil)
	for i := 1; i < len(ids); i++ {
		p.change(ids[i], "k", keys[i-1])
		if p.IntN(4) == 0 {
			p.change(ids[i], "n", p.IntN(1000))
		}
	}
	p.change(ids[0], "k", keys[len(keys)-1])
}

// next is one event, or a trade.
func (p *past) next() {
	id := int32(p.IntN(pastDocs))
	switch k := p.IntN(12); {
	case p.now[id] == nil:
		d := p.document(id, p.free())
		p.add(id, stream.Insert, p.raw(d), d)
	case k == 0:
		p.add(id, stream.Delete, nil, nil)
	case k == 1:
		d := p.document(id, p.key(id))
		p.add(id, stream.Replace, p.raw(d), d)
	case k < 6:
		p.change(id, "n", p.IntN(1000))
	case k < 8:
		p.change(id, "k", p.free())
	default:
		p.trade()
	}
}

// state is a document when n events had happened.
func (p *past) state(id int32, n int) bson.Raw {
	for i := n - 1; i >= 0; i-- {
		if got, _ := p.events[i].Key.ID.AsInt32OK(); got == id {
			return p.after[i]
		}
	}
	return nil
}

// replica is one run of a partition and its resolver, and what outlives it.
type replica struct {
	*bed
	p       *past
	policy  deadletter.Policy
	job     string
	applied int // events, as a checkpoint knows
	skipped []stream.Place
	overlap int
	deleted map[int32]int // by somebody else, after so many events

	w      *write.Writer
	parked *Parked
	batch  *fold.Batch
	kept   *fold.Coalesced
	fed    int
	newest int // event that a run was fed

	parks, carries, disputes int
}

// start begins a run at the checkpoint's position or an earlier one.
func (r *replica) start(from int) {
	r.letters = deadletter.New(r.c, r.job, nil)
	r.ok(r.letters.Load(r.Context(), true))
	r.o = Options{Writers: write.NewWriters(write.Options{Target: r.c}), Cluster: r.c, Log: slog.New(slog.DiscardHandler),
		Skipped: r.skipped,
		Policy:  Policy{OnConflict: r.policy, Letters: r.letters},
		Target:  func(context.Context, string) (*fold.Target, error) { return r.to, nil },
		Source: Source{
			Reread: func(_ context.Context, _ stream.Origin, id bsonraw.ID, least mongo.OpTime) (Reread, error) {
				n := max(int(least.TS.T), r.newest)
				n += r.p.IntN(len(r.p.events) - n + 1) // the source has gone on
				own, _ := id.AsInt32OK()
				return Reread{Doc: r.p.state(own, n), From: at(n), Until: at(n)}, nil
			},
			Has: func(_ context.Context, _ stream.Origin, ids []bson.RawValue, _ mongo.OpTime) (has []bool, err error) {
				n := r.newest + r.p.IntN(len(r.p.events)-r.newest+1)
				for _, id := range ids {
					has = append(has, r.p.state(id.Int32(), n) != nil)
				}
				return has, nil
			},
		}}
	if r.w != nil {
		r.w.Release()
	}
	r.r = New(r.o)
	r.w, r.parked, r.batch, r.kept, r.fed = r.o.Writers.New(), r.r.NewParked(), fold.NewBatch(), fold.NewCoalesced(1<<20),
		from
}

func (r *replica) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("after %d of %d events, overlap until %d: %v", r.fed, len(r.p.events), r.overlap, err)
	}
}

// feed takes the next event, as a partition does.
func (r *replica) feed() {
	ev := r.p.events[r.fed]
	r.fed++
	r.newest = max(r.newest, r.fed)
	it := &fold.Item{Event: ev, Target: r.to, Hash: r.to.Hash(nil, ev.Key.ID), Overlap: r.fed <= r.overlap}
	for {
		taken, err := r.parked.Join(it)
		if r.ok(err); taken {
			return
		}
		if r.parked.Disputed(it) {
			r.disputes++
			r.ok(r.parked.Park(it))
			return
		}
		joined, ok, err := r.kept.Join(it)
		if err == nil && ok && !joined {
			ok, _, err = r.batch.Add(it)
		}
		if r.ok(err); ok {
			return
		}
		r.flush()
	}
}

func (r *replica) write(b *fold.Batch) {
	for _, g := range b.Groups {
		results, err := r.w.Write(r.Context(), g.Target, g.Ops)
		r.ok(err)
		r.parked.Deleted(g.Target, g.Ops)
		r.ok(r.parked.Decide(r.Context(), r.w, g.Target, results))
	}
}

func (r *replica) flush() {
	r.write(r.batch)
	r.write(r.kept.Batch)
	r.batch.Reset()
	r.kept.Sent()
}

// keepBack sends what is not kept back.
func (r *replica) keepBack() {
	if r.parked.Len() > 0 || r.to.Contested.Load() || !r.kept.Flush() {
		return
	}
	for _, g := range r.batch.Groups {
		r.kept.Split(g, time.Now())
	}
	r.write(r.batch)
	r.batch.Reset()
	if r.parked.Len() > 0 {
		r.flush()
	}
}

// barrier resolves, as a router does.
func (r *replica) barrier(must bool) {
	r.flush()
	docs := r.parked.Take()
	r.parks += len(docs)
	b := Barrier{Fed: at(r.fed), Applied: at(r.applied), Overlap: at(r.overlap), Must: must}
	carry, err := r.r.Resolve(r.Context(), b, docs)
	r.ok(err)
	if len(carry) > 0 && must {
		r.Fatalf("%d documents are carried over a barrier that decides", len(carry))
	}
	r.parked.Adopt(carry)
	if r.carries += len(carry); len(carry) == 0 {
		r.applied, b.Applied = r.fed, at(r.fed)
		r.ok(r.r.ResolveDue(r.Context(), b))
	}
	r.ok(r.r.ResolveSkipped(r.Context(), b))
	if len(carry) == 0 {
		r.skipped, _ = r.r.Skipped()
		r.to.Contested.Store(false) // else nothing would be kept back again
	}
}

// disturb is somebody else on the target.
func (r *replica) disturb() {
	id := int32(r.p.IntN(pastDocs))
	if r.p.IntN(2) == 0 {
		r.run(bson.D{{Key: "delete", Value: r.to.Coll},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}},
				{Key: "limit", Value: 1}}}}})
		r.deleted[id] = r.fed
		return
	}
	doc := docOf(r, int32(theirs+r.p.IntN(1000)), field("k", r.p.IntN(pastKeys)))
	err := r.c.Client.Database(r.to.DB).RunCommand(r.Context(),
		bson.D{{Key: "insert", Value: r.to.Coll}, {Key: "documents", Value: bson.A{doc}}}).Err()
	if err != nil && !mongo.IsCode(err, mongo.CodeDuplicateKey) {
		r.ok(err)
	}
}

// here are the documents of the target.
func (r *replica) here() map[int32]bson.Raw {
	cur, err := r.c.Client.Database(r.to.DB).Collection(r.to.Coll).Find(r.Context(), bson.D{})
	r.ok(err)
	var docs []bson.Raw
	r.ok(cur.All(r.Context(), &docs))
	all := map[int32]bson.Raw{}
	for _, d := range docs {
		all[d.Lookup("_id").Int32()] = d
	}
	return all
}

// compare reports what is neither on the target nor, if letters count, in a letter
// as the source has it.
func (r *replica) compare(when string, letters bool) {
	here, end := r.here(), len(r.p.events)
	for id := range int32(pastDocs) {
		want := r.p.state(id, end)
		if since, gone := r.deleted[id]; gone && bytes.Equal(r.p.state(id, since), want) && here[id] == nil {
			continue // nothing has happened to it since somebody deleted it
		}
		if bytes.Equal(here[id], want) {
			continue
		}
		l, disputed, err := r.letters.Read(r.Context(), r.to.NS, int32Value(id))
		r.ok(err)
		if !letters || !disputed || !bytes.Equal(l.Doc, want) {
			r.Errorf("%s, _id %d: %s on the target, %s in its letter (%v), want %s", when, id, here[id], bson.Raw(l.Doc),
				disputed, want)
		}
	}
}

// events of a history, and how often it is disturbed and starts again.
func (r *replica) play() {
	for r.start(0); r.fed < len(r.p.events); {
		r.feed()
		switch k := r.p.IntN(60); {
		case k < 8:
			r.flush()
		case k < 16:
			r.keepBack()
		case k < 20:
			r.barrier(r.p.IntN(2) == 0)
		case k == 20 && r.fed > r.overlap: // the run dies; not before it has come further than the last one
			r.overlap = r.fed
			if r.p.IntN(2) == 0 {
				r.flush()
			}
			r.start(r.p.IntN(r.applied + 1))
		case k < 23 && r.policy != deadletter.Stop:
			r.disturb()
		}
	}
	r.barrier(true)
	r.barrier(true) // letters that the first one wrote
}

// TestHistories: whatever is folded, kept back, parked, carried, refused and sent
// again after a restart, in the end the target and the letters hold what the source
// holds, and when nobody else's documents are in the way any more, the target does.
// MILLRACE_TEST_ROUNDS says how many histories of each policy each seed makes.
func TestHistories(t *testing.T) {
	t.Parallel()
	c := connect(t)
	var seeds []uint64
	for _, first := range testseed.All(t) {
		for round := range uint64(testseed.Rounds(t, 1)) {
			seeds = append(seeds, first+round)
		}
	}
	parks, carries, disputes, trades := 0, 0, 0, 0
	for _, seed := range seeds {
		for _, policy := range []deadletter.Policy{deadletter.Stop, deadletter.Skip, deadletter.Overwrite} {
			name := fmt.Sprintf("history_%s_%d", policy, seed)
			ok := t.Run(fmt.Sprintf("%s/%d", policy, seed), func(t *testing.T) {
				t.Logf("MILLRACE_TEST_SEED=%d", seed)
				b := newBed(t, c, name)
				r := &replica{bed: b, p: newPast(t, b.to, seed, 120), policy: policy, job: name, deleted: map[int32]int{}}
				r.play()
				defer r.w.Release()
				r.compare("at the end", policy == deadletter.Skip)
				r.run(bson.D{{Key: "delete", Value: b.to.Coll},
					{Key: "deletes", Value: bson.A{bson.D{{Key: "q",
						Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: theirs}}}}}, {Key: "limit", Value: 0}}}}})
				r.letters.RetryAll()
				r.barrier(true)
				r.compare("without the others", false)
				if st := r.letters.Stats(); st.Undecided+st.Open > 0 || policy == deadletter.Stop && st.Removed > 0 {
					t.Errorf("letters are left: %+v", st)
				}
				parks, carries, disputes, trades = parks+r.parks, carries+r.carries, disputes+r.disputes, trades+r.p.trades
			})
			if !ok {
				return
			}
		}
	}
	if len(seeds) >= 12 && (parks == 0 || carries == 0 || disputes == 0 || trades == 0) {
		t.Errorf("%d were parked, %d carried, %d events in dispute, %d trades: nothing was tried", parks, carries, disputes,
			trades)
	}
	t.Logf("%d were parked, %d carried, %d events in dispute, %d trades", parks, carries, disputes, trades)
}
