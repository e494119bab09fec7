package router

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

type writer struct {
	c       *call
	name    string // of the statements: documents, updates, deletes
	base    bson.D // the command without them
	ordered bool
	stmts   []bson.Raw
	open    []int // statements that are not done, by index
	result  writeResult
}

type batch struct {
	shard   string
	ignored bool // part of a write to several shards
	stmts   []int
}

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

// retry decides whether what is open is sent again: what may have been done only if the server would notice.
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

// round sends batches. It returns a shard's error that the table is old, and the error of a failed command.
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
	w.open = slices.DeleteFunc(w.open, func(i int) bool { return done[i] || w.result.bad[i] })
}

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

// stamp is a batch's version. A transaction can be taken back, so no shard need write with an old table.
func (w *writer) stamp(t *table, b batch) bson.D {
	if b.ignored && w.c.txn == nil {
		return w.c.r.features.ignored()
	}
	return w.c.r.features.stamp(t, b.shard)
}

// plan puts open statements into batches, as many as may be under way together.
func (w *writer) plan(ctx context.Context, t *table) ([]batch, error) {
	all := w.planUnordered
	if w.ordered {
		all = w.planOrdered
	}
	batches := all(t)
	if w.c.txn != nil || !slices.ContainsFunc(batches, func(b batch) bool { return b.ignored }) {
		return batches, nil
	}
	return w.broadcast(ctx, batches)
}

// broadcast sends writes for several shards to all there are: no shard refuses them for an old table.
func (w *writer) broadcast(ctx context.Context, batches []batch) ([]batch, error) {
	shards, err := w.c.r.upstream.everywhere(ctx)
	if err != nil {
		return nil, err
	}
	var all []batch
	stmts := map[int]bool{}
	for _, b := range batches {
		if !b.ignored {
			all = append(all, b)
		}
		for _, i := range b.stmts {
			stmts[i] = stmts[i] || b.ignored
		}
	}
	everywhere := slices.DeleteFunc(slices.Clone(w.open), func(i int) bool { return !stmts[i] })
	return append(all, spread(shards, everywhere)...), nil
}

// planUnordered puts all open statements into batches.
func (w *writer) planUnordered(t *table) []batch {
	var all []batch
	index := map[string]int{}
	for _, i := range slices.Clone(w.open) {
		shards, err := w.target(t, w.stmts[i])
		if err != nil {
			w.result.add(i, err)
			continue
		}
		for _, name := range shards {
			key, ignored := name, len(shards) > 1
			if ignored {
				key += " ignored"
			}
			at, ok := index[key]
			if !ok {
				at = len(all)
				index[key] = at
				all = append(all, batch{shard: name, ignored: ignored})
			}
			all[at].stmts = append(all[at].stmts, i)
		}
	}
	return all
}

// planOrdered takes the first open statements that go to one shard, or one that goes to several.
func (w *writer) planOrdered(t *table) []batch {
	var b batch
	for n, i := range w.open {
		shards, err := w.target(t, w.stmts[i])
		switch {
		case err != nil && n == 0:
			w.result.add(i, err)
			return nil
		case err != nil:
			return []batch{b}
		case n == 0 && len(shards) > 1:
			return spread(shards, []int{i})
		case n == 0:
			b.shard = shards[0]
		case len(shards) > 1 || shards[0] != b.shard:
			return []batch{b}
		}
		b.stmts = append(b.stmts, i)
	}
	return []batch{b}
}

// spread is statements for several shards.
func spread(shards []string, stmts []int) []batch {
	var all []batch
	for _, name := range shards {
		all = append(all, batch{shard: name, ignored: true, stmts: stmts})
	}
	return all
}

const untargeted = "on a sharded collection must contain an exact match on _id (and have the collection default " +
	"collation) " + "or contain the shard key (and have the simple collation). %s request: %s, shard key pattern: %s"

// target returns a statement's shards (server manual, "Routing of write operations").
func (w *writer) target(t *table, stmt bson.Raw) ([]string, *cmdError) {
	switch {
	case !t.sharded:
		return t.owners(), nil
	case w.c.name == "insert":
		shard, err := t.shardOf(stmt)
		return []string{shard}, err
	}
	q, _ := stmt.Lookup("q").DocumentOK()
	collation, _ := stmt.Lookup("collation").DocumentOK()
	key, ok := t.keyIn(q, t.orDefault(collation))
	if u, isDoc := stmt.Lookup("u").DocumentOK(); !ok && isDoc && isReplacement(u) {
		key, ok = t.keyOf(replacement(q, u))
	}
	update := w.c.name == "update"
	switch {
	case ok:
		return []string{t.owner(key).shard}, nil
	case update && truth(stmt.Lookup("upsert")):
		return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound",
			"Failed to target upsert by query :: could not extract exact shard key")
	case update && truth(stmt.Lookup("multi")), !update && number(stmt.Lookup("limit")) == 0:
		return t.shardsFor(q, collation), nil
	case t.byID(q, collation):
		return t.owners(), nil
	case update:
		return nil, fail(codeInvalidOptions, "InvalidOptions", "A {multi:false} update "+untargeted, "Update", stmt,
			rawValue(t.pattern()))
	}
	return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound", "A single delete "+untargeted, "Delete", stmt,
		rawValue(t.pattern()))
}

func (t *table) shardOf(doc bson.Raw) (string, *cmdError) {
	key, ok := t.keyOf(doc)
	if !ok {
		return "", fail(codeShardKeyNotFound, "ShardKeyNotFound",
			"Shard key cannot contain array values or array descendants.")
	}
	return t.owner(key).shard, nil
}

// orDefault is a statement's collation, or the collection's.
func (t *table) orDefault(collation bson.Raw) bson.Raw {
	if collation != nil {
		return collation
	}
	return t.collation
}

func (t *table) byID(q, collation bson.Raw) bool {
	_, ok := demand(equalities(q), "_id")
	return ok && (collation == nil || !collated(collation))
}

// isReplacement reports an update that is a whole document.
func isReplacement(u bson.Raw) bool { return !strings.HasPrefix(stageName(u), "$") }

// replacement is the document that a replacement makes: with the filter's _id when it has none of its own.
func replacement(q, u bson.Raw) bson.Raw {
	if u.Lookup("_id").Type != 0 {
		return u
	}
	id, ok := demand(equalities(q), "_id")
	if !ok {
		return u
	}
	raw, err := bson.Marshal(append(bson.D{{Key: "_id", Value: id}}, fields(u)...))
	if err != nil {
		return u
	}
	return raw
}

// answer is what a shard said to a batch.
type answer struct {
	reply bson.Raw
	err   error
}

// writeResult is the reply of a write command, put together from the shards'.
type writeResult struct {
	n, modified int64
	upserted    []indexed
	errors      []indexed
	bad         map[int]bool  // statements with an error
	concern     bson.RawValue // the first write concern error
	labels      bson.RawValue // that came with it: whether the client may try again
}

// indexed is an entry of a reply that speaks of one statement.
type indexed struct {
	stmt int
	doc  bson.D
}

// add takes an error of the router's own.
func (r *writeResult) add(stmt int, err *cmdError) {
	r.fail(stmt, bson.D{{Key: "code", Value: err.code}, {Key: "errmsg", Value: err.msg}})
}

// fail notes a statement's error; several shards may fail at one statement.
func (r *writeResult) fail(stmt int, doc bson.D) {
	if r.bad == nil {
		r.bad = map[int]bool{}
	}
	if !r.bad[stmt] {
		r.bad[stmt] = true
		r.errors = append(r.errors, indexed{stmt, doc})
	}
}

// take adds a shard's reply and notes what is done. It returns the shard's error that the table is old.
func (r *writeResult) take(b batch, reply bson.Raw, ordered bool, done []bool) (stale error) {
	r.n += number(reply.Lookup("n"))
	r.modified += number(reply.Lookup("nModified"))
	if v := reply.Lookup("writeConcernError"); v.Type != 0 && r.concern.Type == 0 {
		r.concern, r.labels = v, reply.Lookup("errorLabels")
	}
	for _, d := range listed(reply, "upserted") {
		r.upserted = append(r.upserted, indexed{b.stmts[number(d.Lookup("index"))], without(fields(d), "index")})
	}
	failed, first, stale := r.takeErrors(b, reply)
	for i, stmt := range b.stmts {
		if ordered && i >= first {
			break // not tried
		}
		if !failed[i] {
			done[stmt] = true
		}
	}
	return stale
}

// takeErrors adds a reply's write errors. It returns the places in the batch that failed, and the first of them.
func (r *writeResult) takeErrors(b batch, reply bson.Raw) (failed map[int]bool, first int, stale error) {
	failed, first = map[int]bool{}, len(b.stmts)
	for _, d := range listed(reply, "writeErrors") {
		at := int(number(d.Lookup("index")))
		if at < 0 || at >= len(b.stmts) {
			continue
		}
		failed[at] = true
		first = min(first, at)
		if code := int32(number(d.Lookup("code"))); isStale(code) {
			stale = mongo.CommandError{Code: code, Message: text(d.Lookup("errmsg"))}
			continue
		}
		r.fail(b.stmts[at], without(fields(d), "index"))
	}
	return failed, first, stale
}

func (r *writeResult) sort() {
	byStatement := func(a, b indexed) int { return cmp.Compare(a.stmt, b.stmt) }
	slices.SortStableFunc(r.errors, byStatement)
	slices.SortStableFunc(r.upserted, byStatement)
}

func (r *writeResult) reply(command string) bson.D {
	d := bson.D{{Key: "n", Value: int32(r.n)}}
	if command == "update" {
		d = append(d, bson.E{Key: "nModified", Value: int32(r.modified)})
		if len(r.upserted) > 0 {
			d = append(d, bson.E{Key: "upserted", Value: list(r.upserted)})
		}
	}
	if len(r.errors) > 0 {
		d = append(d, bson.E{Key: "writeErrors", Value: list(r.errors)})
	}
	if r.concern.Type != 0 {
		d = append(d, bson.E{Key: "writeConcernError", Value: r.concern})
	}
	if r.labels.Type != 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: r.labels})
	}
	return d
}

func list(all []indexed) bson.A {
	a := bson.A{}
	for _, e := range all {
		a = append(a, append(bson.D{{Key: "index", Value: int32(e.stmt)}}, e.doc...))
	}
	return a
}
