package copy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

const (
	oversample = 8    // sampled boundaries a slice
	candidates = 8    // of which this many are kept to fall back to
	maxSlices  = 4096 // of one collection
	maxSample  = 4096 // unless that were under two a slice
)

// collection plans a collection and has its slices read: one slice by this
// reader at once, several through the schedule.
func (r *reader) collection(ctx context.Context, c *collection) error {
	plan, err := r.plan(ctx, c)
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		plan, err = r.fresh(c, ByID, nil), nil // its one slice finds the collection gone
	}
	if err != nil {
		return fmt.Errorf("plan the copy of %s: %w", c.Source.NS, err)
	}
	fresh := plan[0].Plan != c.generation
	ss := c.adopt(r.run, plan)
	if fresh && len(plan) > 1 {
		// What one of them has done counts only when the states of all are there.
		r.run.queue(ss)
	}
	if len(ss) == 1 {
		return r.slice(ctx, ss[0])
	}
	for _, s := range ss {
		r.run.jobs.push(job{size: s.size(), run: func(ctx context.Context, rd *reader) error { return rd.slice(ctx, s) }})
	}
	return nil
}

// adopt makes a plan the collection's own and returns its unfinished slices.
func (c *collection) adopt(r *run, plan []SliceState) []*slice {
	var ss []*slice
	var docs, bytes int64
	for _, st := range plan {
		docs += st.Docs
		bytes += st.Bytes
		if !st.Done {
			ss = append(ss, newSlice(r, c, st))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan, c.generation = plan, plan[0].Plan
	c.strategy, c.state = plan[0].Strategy, StateCopying
	c.planned, c.left = len(plan), len(ss)
	c.docs, c.bytes = docs, bytes
	return ss
}

// plan goes on with the collection's saved plan where that holds, else makes
// a new one.
func (r *reader) plan(ctx context.Context, c *collection) ([]SliceState, error) {
	if c.serial() {
		return r.planSerial(ctx, c)
	}
	if len(c.plan) > 0 {
		ok, err := r.holds(ctx, c)
		if err != nil {
			return nil, err
		}
		if ok {
			return c.plan, nil
		}
		r.e.opts.Log.Warn("record ids of the source member have changed since the copy began; the collection is read again",
			"collection", c.Source.NS, "member", r.run.node)
		c.plan = nil
	}
	strategy := r.strategy(c)
	if c.Source.Bytes > r.e.opts.SmallBytes && c.Source.Count <= 0 && !c.measured {
		if err := r.measure(ctx, c); err != nil {
			return nil, err
		}
	}
	if c.Source.Bytes <= r.e.opts.SmallBytes {
		return r.fresh(c, strategy, nil), nil
	}
	bounds, strategy, err := r.bounds(ctx, c, strategy)
	if err != nil {
		return nil, err
	}
	return r.fresh(c, strategy, bounds), nil
}

// planSerial makes the one slice of an ordered collection. That it has begun is
// saved before anything is written, for what was begun is not resumed.
func (r *reader) planSerial(ctx context.Context, c *collection) ([]SliceState, error) {
	if c.generation > 0 {
		if err := r.recreate(ctx, c); err != nil {
			return nil, err
		}
	}
	plan := r.fresh(c, Serial, nil)
	return plan, r.run.saveStates(ctx, plan)
}

func (r *reader) recreate(ctx context.Context, c *collection) error {
	if r.e.opts.Recreate == nil {
		return mongo.WithHint(fmt.Errorf("%s has to be copied anew, but its target %s cannot be emptied", c.Source.NS, c.Target),
			"drop the target collection and start the job again with --restart")
	}
	r.e.count.restarted.Add(1)
	if err := r.e.opts.Recreate(ctx, c.Task); err != nil {
		return fmt.Errorf("empty %s to copy it anew: %w", c.Target, err)
	}
	return nil
}

// strategy is the best one that the source can serve.
func (r *reader) strategy(c *collection) Strategy {
	info := r.e.src.Info
	switch {
	case c.Source.Clustered() && info.Version.AtLeast(6, 0):
		return ByID
	case c.Source.Clustered():
		return ByKey
	case info.Kind == mongo.KindSharded || !info.Version.AtLeast(4, 4) || r.e.noRecords.Load():
		return ByID
	}
	return ByRecord
}

// fresh makes the states of a new plan, cut at bounds (ascending).
func (r *reader) fresh(c *collection, strategy Strategy, bounds []bound) []SliceState {
	plan := make([]SliceState, len(bounds)+1)
	for i := range plan {
		st := SliceState{
			Collection: c.uuid, N: i, Of: len(plan), Plan: c.generation + 1,
			NS: c.Target, Strategy: strategy,
		}
		if strategy == ByRecord {
			st.Node, st.Life = r.run.node, r.run.life
		}
		if i > 0 {
			st.Lower, st.Back = bounds[i-1].at, bounds[i-1].back
		}
		if i < len(bounds) {
			st.Upper = bounds[i].at
		}
		plan[i] = st
	}
	return plan
}

// bound is where one slice ends and the next begins.
type bound struct {
	at   bson.Raw
	back []int64
}

// bounds cuts a large collection. The strategy changes to ByID when the source
// refuses record order.
func (r *reader) bounds(ctx context.Context, c *collection, strategy Strategy) ([]bound, Strategy, error) {
	n := r.sliceCount(c)
	if n < 2 {
		return nil, strategy, nil
	}
	ids, err := r.sampleNow(ctx, c, &strategy, min(n*oversample, max(maxSample, 2*n)))
	if err != nil || len(ids) == 0 {
		return nil, strategy, err
	}
	marks := make([]bson.Raw, len(ids))
	if strategy == ByRecord {
		if marks, err = r.locate(ctx, c, ids); err != nil {
			return nil, strategy, err
		}
		slices.SortFunc(marks, func(a, b bson.Raw) int { return cmp.Compare(markRecord(a), markRecord(b)) })
	} else {
		for i, id := range ids {
			marks[i] = mark(strategy, 0, id)
		}
	}
	return cut(marks, n), strategy, nil
}

// sliceCount is how many slices a collection deserves: enough for readers to
// share and to lose little in a crash, none too small to be worth a cursor.
func (r *reader) sliceCount(c *collection) int {
	o := r.e.opts
	n := max(c.Source.Bytes/o.SliceBytes, min(int64(o.Readers)*4, c.Source.Bytes/o.SmallBytes))
	// A sample above 5 % of the documents would read the whole collection.
	return int(max(min(n, maxSlices, c.Source.Count/(25*2)), 1))
}

// cut picks n-1 of the marks, evenly.
func cut(marks []bson.Raw, n int) []bound {
	n = min(n, len(marks)+1)
	var out []bound
	last := -1
	for i := 1; i < n; i++ {
		at := i * len(marks) / n
		if at == last {
			continue
		}
		last = at
		b := bound{at: marks[at]}
		for j := at - 1; j >= 0 && j >= at-candidates; j-- {
			if rid := markRecord(marks[j]); rid != 0 {
				b.back = append(b.back, rid)
			}
		}
		out = append(out, b)
	}
	return out
}

// holds reports whether a saved plan can be gone on with. A member that was
// killed, or rolled back, gives other record ids to what its files did not hold
// yet: so it has to be the same process without a rollback. Record ids are also
// checked against the documents that were seen at them: a member that was
// rebuilt under the same address has others.
func (r *reader) holds(ctx context.Context, c *collection) (bool, error) {
	if c.plan[0].Strategy != ByRecord {
		return true, nil
	}
	if c.plan[0].Node != r.run.node || c.plan[0].Life != r.run.life {
		return false, nil
	}
	want, ids := anchors(c.plan)
	if len(want) == 0 {
		return true, nil
	}
	marks, err := r.locate(ctx, c, ids)
	if err != nil {
		return false, err
	}
	for _, m := range marks {
		if rid, ok := want[idKey(markID(m))]; ok && rid != markRecord(m) {
			return false, nil
		}
	}
	return len(marks) > 0, nil
}

func idKey(id bsoncore.Value) string { return string(bsonraw.AppendID(nil, id)) }

// anchors are record ids that unfinished slices depend on, by the _id seen
// there.
func anchors(plan []SliceState) (map[string]int64, []bsoncore.Value) {
	const enough = 200
	want := map[string]int64{}
	var ids []bsoncore.Value
	for _, st := range plan {
		if st.Done || len(ids) > enough {
			continue
		}
		for _, m := range []bson.Raw{st.Lower, st.Upper, st.Position} {
			if len(m) > 0 {
				id := markID(m)
				want[idKey(id)] = markRecord(m)
				ids = append(ids, id)
			}
		}
	}
	return want, ids
}
