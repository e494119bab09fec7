package router

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// writer does one insert, update or delete command.
type writer struct {
	c       *call
	name    string // of the statements: documents, updates, deletes
	base    bson.D // the command without them
	ordered bool
	stmts   []bson.Raw
	open    []int // statements that are not done, by index
	result  writeResult
}

// batch is what goes to one shard at once.
type batch struct {
	shard   string
	ignored bool // part of a write to several shards
	stmts   []int
}

// write runs a write command.
func write(ctx context.Context, c *call) (bson.D, error) {
	names := map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}
	w := &writer{c: c, name: names[c.name], ordered: true}
	w.stmts = c.statements(w.name)
	if v := get(c.cmd, "ordered"); v.Type != 0 {
		w.ordered = truth(v)
	}
	if len(w.stmts) == 0 {
		return nil, fail(4, "InvalidLength", "Write batch sizes must be between 1 and 100000. Got 0 operations.")
	}
	c.r.taken.add(c.name, len(w.stmts))
	w.base = without(c.cmd, w.name)
	w.reset()
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	return w.result.reply(c.name), nil
}

// reset begins anew.
func (w *writer) reset() {
	w.open, w.result = make([]int, len(w.stmts)), writeResult{}
	for i := range w.open {
		w.open[i] = i
	}
}

// prepare makes the database, and gives documents an _id that have none.
func (w *writer) prepare(ctx context.Context) error {
	if w.c.name == "insert" {
		w.stmts = slices.Clone(w.stmts)
		for i, d := range w.stmts {
			w.stmts[i] = withID(d)
		}
	} else if !slices.ContainsFunc(w.stmts, func(d bson.Raw) bool { return truth(d.Lookup("upsert")) }) {
		t, err := w.c.r.catalog.table(ctx, w.c.db, w.c.coll)
		if err == nil && !t.db.exists {
			w.open = nil // there is nothing to change
		}
		return err
	}
	return w.c.r.needDatabase(ctx, w.c, w.c.db)
}

// withID is a document that has an _id.
func withID(d bson.Raw) bson.Raw {
	if d.Lookup("_id").Type != 0 {
		return d
	}
	raw, err := bson.Marshal(append(bson.D{{Key: "_id", Value: bson.NewObjectID()}}, fields(d)...))
	if err != nil {
		return d
	}
	return raw
}

// run sends what is open until all is done, or an ordered command has failed.
func (w *writer) run(ctx context.Context) error {
	for try := 0; len(w.open) > 0; try++ {
		t, err := w.c.r.catalog.table(ctx, w.c.db, w.c.coll)
		if err != nil {
			return err
		}
		before := len(w.open)
		stale, err := w.round(ctx, t)
		if w.ordered && len(w.result.errors) > 0 {
			return nil
		}
		if err != nil || stale != nil {
			again, err := w.retry(ctx, t, err, stale, try)
			if !again {
				return err
			}
		}
		if len(w.open) < before {
			try = 0
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
	return nil
}

// retry decides whether what is open is sent again. A command that broke on its way
// may have been done, and is sent again only if the server would notice.
func (w *writer) retry(ctx context.Context, t *table, err, stale error, try int) (bool, error) {
	if err == nil {
		err = stale
	}
	if isPassing(err) && w.c.number.Type == 0 {
		return false, err
	}
	if codeOf(err) == codeOwningShard {
		return w.move(ctx, err)
	}
	again, err := w.c.again(ctx, t, err, try)
	if again && w.c.txn != nil {
		w.reset() // what was done was taken back
	}
	return again, err
}

// round sends one round of batches. It returns the error of a shard that calls the
// table old, and the error of a command that failed as a whole.
func (w *writer) round(ctx context.Context, t *table) (stale, err error) {
	batches, err := w.plan(ctx, t)
	if err != nil {
		return nil, err
	}
	answers := make([]answer, len(batches))
	names := make([]string, len(batches))
	for i, b := range batches {
		names[i] = b.shard
	}
	if len(names) > 0 {
		err = each(names, func(i int, _ string) error {
			answers[i].reply, answers[i].err = w.sendBatch(ctx, t, batches[i])
			return answers[i].err
		})
	}
	done := make([]bool, len(w.stmts))
	for i, b := range batches {
		if answers[i].err == nil {
			if e := w.result.take(b, answers[i].reply, w.ordered, done); e != nil {
				stale = e
			}
		}
	}
	w.result.sort()
	w.settle(done)
	return stale, err
}

// settle takes what is done, or has failed, off the open statements.
func (w *writer) settle(done []bool) {
	w.open = slices.DeleteFunc(w.open, func(i int) bool { return done[i] || w.result.failed(i) })
}

// sendBatch sends one batch.
func (w *writer) sendBatch(ctx context.Context, t *table, b batch) (bson.Raw, error) {
	cmd := append(slices.Clone(w.base), w.stamp(t, b)...)
	s := sending{db: w.c.db, name: w.name, docs: make([]bson.Raw, 0, len(b.stmts))}
	for _, i := range b.stmts {
		s.docs = append(s.docs, w.stmts[i])
	}
	if w.c.number.Type != 0 && w.c.txn == nil {
		ids := bson.A{}
		for _, i := range b.stmts {
			ids = append(ids, int32(i))
		}
		cmd = append(cmd, bson.E{Key: "txnNumber", Value: w.c.number}, bson.E{Key: "stmtIds", Value: ids})
	}
	s.cmd = cmd
	reply, _, err := w.c.send(ctx, b.shard, s)
	return bson.Raw(reply), err
}

// stamp is a batch's version. In a transaction a write to several shards can be
// taken back, so that no shard need do it with an old table.
func (w *writer) stamp(t *table, b batch) bson.D {
	if b.ignored && w.c.txn == nil {
		return w.c.r.features.ignored()
	}
	return w.c.r.features.stamp(t, b.shard)
}
