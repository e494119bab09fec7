package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestChanges watches a cluster through a router.
func TestChanges(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range lab.Versions("4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, version)
			t.Run("same", w.sameChanges)
			t.Run("idle", w.idleShard)
			t.Run("levels", w.levels)
			t.Run("invalidate", w.invalidates)
			t.Run("lookup", w.lookups)
			t.Run("cursor", w.changeCursor)
			t.Run("errors", w.changeErrors)
		})
	}
}

// event is what tests compare of a change.
type event struct {
	ID struct {
		Data string `bson:"_data"`
	} `bson:"_id"`
	Type string         `bson:"operationType"`
	At   bson.Timestamp `bson:"clusterTime"`
	NS   struct {
		DB   string `bson:"db"`
		Coll string `bson:"coll"`
	} `bson:"ns"`
	Key struct {
		ID any `bson:"_id"`
	} `bson:"-"`
	DocumentKey bson.Raw      `bson:"documentKey"`
	Document    bson.Raw      `bson:"fullDocument"`
	Update      bson.Raw      `bson:"updateDescription"`
	Txn         bson.RawValue `bson:"txnNumber"`
}

// say is an event as text: the same on a replica set.
func (e event) say() string {
	return fmt.Sprintf("%s %s.%s %v %s %s %t", e.Type, e.NS.DB, e.NS.Coll, e.Key.ID, e.Document, e.Update, e.Txn.Type != 0)
}

// follow opens a stream and returns a function that waits for the next event.
func follow(t *testing.T, cs *mongo.ChangeStream, err error) func() event {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close(context.Background()) })
	return func() (e event) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if !cs.Next(ctx) {
			t.Fatalf("no event: %v", cs.Err())
		}
		if err := cs.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.DocumentKey != nil {
			if err := bson.Unmarshal(e.DocumentKey, &e.Key); err != nil {
				t.Fatal(err)
			}
		}
		return e
	}
}

// untilEnd reads until a document of the collection "end" comes.
func untilEnd(next func() event) (all []event) {
	for {
		e := next()
		if e.NS.Coll == "end" {
			return all
		}
		if e.Type == "insert" || e.Type == "update" || e.Type == "replace" || e.Type == "delete" {
			all = append(all, e)
		}
	}
}

// now is the present operation time.
func now(t *testing.T, client *mongo.Client) *bson.Timestamp {
	t.Helper()
	at, i := command(t, client.Database("admin"), bson.D{{Key: "ping", Value: 1}}).Lookup("operationTime").Timestamp()
	return &bson.Timestamp{T: at, I: i + 1}
}

func startAt(at *bson.Timestamp) *options.ChangeStreamOptionsBuilder {
	return options.ChangeStream().SetStartAtOperationTime(at)
}

// sameChanges compares with what a replica set says of the same writes, while chunks move.
func (w *world) sameChanges(t *testing.T) {
	c := w.spread(t, "same", 0)
	db := c.Database()
	one := kit.Client(t, lab.ForTest(t, lab.Options{Version: w.version}).URI())
	history := &history{rnd: rand.New(rand.NewPCG(testseed.Of(t), 3)), there: map[int]bool{}}
	begin, plainBegin := now(t, w.client), now(t, one)
	cs, err := w.client.Watch(t.Context(), mongo.Pipeline{}, startAt(begin))
	next := follow(t, cs, err)

	moves := 12
	if lab.Brief() {
		moves = 5
	}
	moving, moved := make(chan struct{}), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(moving)
		names := w.cluster.ShardNames()
		for i := range moves {
			if err := w.cluster.MoveChunk(t.Context(), "same.c", k(i%3*100), names[(i/3+i+1)%3]); err != nil {
				t.Logf("move: %v", err) // given up, which must do no harm
				continue
			}
			moved++
		}
	})
	defer wg.Wait()
	for done := false; !done || len(history.done) < 150; {
		history.play(t, c)
		select {
		case <-moving:
			done = true
		default:
		}
	}
	insert(t, db.Collection("end"), bson.D{{Key: "_id", Value: 1}})
	got := untilEnd(next)

	plain := one.Database("same").Collection("c")
	for _, step := range history.done {
		step(t, plain)
	}
	insert(t, plain.Database().Collection("end"), bson.D{{Key: "_id", Value: 1}})
	cs, err = one.Watch(t.Context(), mongo.Pipeline{}, startAt(plainBegin))
	want := untilEnd(follow(t, cs, err))

	t.Logf("%d events, %d moves", len(got), moved)
	compareChanges(t, got, want)
	w.resumes(t, got, begin)
}

// compareChanges wants the same events of each document in the same order, and tokens that grow.
func compareChanges(t *testing.T, got, want []event) {
	t.Helper()
	if len(want) == 0 || len(got) != len(want) {
		t.Errorf("%d events, want %d", len(got), len(want))
	}
	for i := 1; i < len(got); i++ {
		if got[i].ID.Data <= got[i-1].ID.Data || got[i].At.Before(got[i-1].At) {
			t.Errorf("event %d is not after the one before: %v, %v", i, got[i-1], got[i])
		}
	}
	found, right := map[any][]string{}, map[any][]string{}
	for _, e := range got {
		found[e.Key.ID] = append(found[e.Key.ID], e.say())
	}
	for _, e := range want {
		right[e.Key.ID] = append(right[e.Key.ID], e.say())
	}
	for id := range right {
		if !slices.Equal(found[id], right[id]) {
			t.Errorf("document %v:\n%q, want\n%q", id, found[id], right[id])
		}
	}
}

// resumes continues after events, each of one shard, and after tokens between them.
func (w *world) resumes(t *testing.T, all []event, begin *bson.Timestamp) {
	step := len(all)/30 + 1
	if lab.Brief() {
		step = len(all)/8 + 1
	}
	for i := 0; i < len(all); i += step {
		if !w.apart(all, i) {
			continue
		}
		token := bson.D{{Key: "_data", Value: all[i].ID.Data}}
		o := options.ChangeStream().SetResumeAfter(token)
		if i/step%2 == 1 {
			o = options.ChangeStream().SetStartAfter(token)
		}
		cs, err := w.client.Watch(t.Context(), mongo.Pipeline{}, o)
		rest := untilEnd(follow(t, cs, err))
		w.sameIDs(t, fmt.Sprintf("after event %d", i), rest, all[i+1:])
	}
	cs, err := w.client.Watch(t.Context(), mongo.Pipeline{}, startAt(begin).SetBatchSize(7))
	next := follow(t, cs, err)
	for i := 0; i < len(all); i++ {
		if e := next(); e.Key.ID == nil {
			i--
			continue
		}
		if i%(2*step) > 0 || !w.apart(all, i) {
			continue
		}
		resumed, err := w.client.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(cs.ResumeToken()))
		w.sameIDs(t, fmt.Sprintf("after token %d", i), untilEnd(follow(t, resumed, err)), all[i+1:])
	}
	// A token that nobody has given: that of an event, but of another collection.
	data := []byte(all[0].ID.Data)
	if data[40] == '0' { // still a digit
		data[40] = '1'
	} else {
		data[40] = '0'
	}
	cs, err = w.client.Watch(t.Context(), mongo.Pipeline{},
		options.ChangeStream().SetResumeAfter(bson.D{{Key: "_data", Value: string(data)}}))
	if err == nil {
		kit.Until(t, "a token that is none is refused", func() bool {
			if cs.TryNext(t.Context()) {
				t.Fatalf("an event after a token that is none: %v", cs.Current)
			}
			return cs.Err() != nil
		})
		err = cs.Err()
	}
	if !hasCode(err, 280) {
		t.Errorf("a token that is none: %v", err)
	}
}

// apart reports whether a stream may be resumed between two events. Before 6.0 the token of an event has the shard key
// or not, by what the shard knows when it is read. So events of one time, those of a transaction, change their order
// (SERVER-34702).
func (w *world) apart(all []event, i int) bool {
	return w.version == "6.0" || i+1 == len(all) || all[i].At != all[i+1].At
}

func (w *world) sameIDs(t *testing.T, what string, got, want []event) {
	t.Helper()
	ids := func(events []event) (all []string) {
		for _, e := range events {
			all = append(all, fmt.Sprint(e.At, e.Type, e.Key.ID))
		}
		if w.version != "6.0" {
			slices.Sort(all)
		}
		return all
	}
	if !slices.Equal(ids(got), ids(want)) {
		t.Errorf("%s: %d events, want %d", what, len(got), len(want))
	}
}

// history makes writes at random that can be done once more elsewhere.
type history struct {
	rnd   *rand.Rand
	there map[int]bool
	n     int
	done  []func(*testing.T, *mongo.Collection)
}

// play does one more write.
func (h *history) play(t *testing.T, c *mongo.Collection) {
	t.Helper()
	step := h.step(h.rnd.IntN(60))
	if h.rnd.IntN(6) == 0 {
		steps := []func(context.Context, *mongo.Collection) error{
			step, h.step(60 + h.rnd.IntN(20)), h.step(80 + h.rnd.IntN(20)),
		}
		step = func(ctx context.Context, c *mongo.Collection) error {
			return c.Database().Client().UseSession(ctx, func(ctx context.Context) error {
				_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
					for _, one := range steps {
						if err := one(ctx, c); err != nil {
							return nil, err
						}
					}
					return nil, nil
				})
				return err
			})
		}
	}
	do := func(t *testing.T, c *mongo.Collection) {
		t.Helper()
		if err := step(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	h.done = append(h.done, do)
	do(t, c)
}

// step is a write to a document, whose shard key is five times its _id.
func (h *history) step(id int) func(context.Context, *mongo.Collection) error {
	h.n++
	n, what := h.n, h.rnd.IntN(10)
	key := bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id * 3}}
	if !h.there[id] {
		h.there[id] = true
		return func(ctx context.Context, c *mongo.Collection) error {
			_, err := c.InsertOne(ctx, append(key[:2:2], bson.E{Key: "n", Value: n}, bson.E{Key: "a", Value: bson.A{1, 2, 3}}))
			return err
		}
	}
	switch {
	case what == 0:
		h.there[id] = false
		return func(ctx context.Context, c *mongo.Collection) error {
			_, err := c.DeleteOne(ctx, key)
			return err
		}
	case what < 3:
		return func(ctx context.Context, c *mongo.Collection) error {
			_, err := c.ReplaceOne(ctx, key, append(key[:2:2], bson.E{Key: "r", Value: n}))
			return err
		}
	}
	return func(ctx context.Context, c *mongo.Collection) error {
		_, err := c.UpdateOne(ctx, key, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}, {Key: "s.x", Value: n}}}})
		return err
	}
}

// idleShard writes to one shard only: the others must not hold events up until they write by themselves, each ten
// seconds.
func (w *world) idleShard(t *testing.T) {
	c := w.spread(t, "idle", 0)
	cs, err := w.client.Watch(t.Context(), mongo.Pipeline{}, startAt(now(t, w.client)))
	next := follow(t, cs, err)
	began := time.Now()
	const rounds = 8
	for i := range rounds {
		insert(t, c, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
		equal(t, "id", next().Key.ID, any(int32(i)))
	}
	if took := time.Since(began); took > rounds*5*time.Second {
		t.Errorf("%d events took %v", rounds, took)
	}
	// Without any event the position goes on, too.
	before := cs.ResumeToken().String()
	kit.Until(t, "the token grows", func() bool {
		if cs.TryNext(t.Context()) {
			t.Fatalf("an event: %v", cs.Current)
		}
		return cs.ResumeToken().String() > before
	})
}

// levels watches a collection, a database and all.
func (w *world) levels(t *testing.T) {
	at := now(t, w.client) // before chunks go to new shards, which a client does not see
	c, other := w.spread(t, "levels", 0), w.client.Database("levels").Collection("other")
	elsewhere := w.client.Database("elsewhere").Collection("c")
	for i, one := range []*mongo.Collection{c, other, elsewhere, c} {
		insert(t, one, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i * 90}})
	}
	stages := mongo.Pipeline{{{Key: "$project", Value: bson.D{{Key: "documentKey", Value: 1}}}}}
	if w.version == "4.4" { // there the config servers do not say it
		stages = mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}
	}
	for name, watch := range map[string]interface {
		Watch(context.Context, any, ...options.Lister[options.ChangeStreamOptions]) (*mongo.ChangeStream, error)
	}{"[0 3]": c, "[0 1 3]": c.Database(), "[0 1 2 3]": w.client} {
		cs, err := watch.Watch(t.Context(), stages, startAt(at))
		next := follow(t, cs, err)
		ids := []any{}
		for len(ids) == 0 || ids[len(ids)-1] != int32(3) {
			ids = append(ids, next().Key.ID)
		}
		equal(t, name, fmt.Sprint(ids), name)
	}
}

// invalidates drops what is watched. Each shard says so, and the first ends the stream of a collection.
func (w *world) invalidates(t *testing.T) {
	c := w.spread(t, "invalid", 30)
	at := now(t, w.client)
	if err := c.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = w.spread(t, "invalid", 1)
	cs, err := c.Watch(t.Context(), mongo.Pipeline{}, startAt(at))
	next := follow(t, cs, err)
	types := next().Type
	for e := next(); ; e = next() { // another shard's drop at the very same time
		if e.Type != "drop" {
			equal(t, "first", types+" "+e.Type, "drop invalidate")
			break
		}
	}
	if cs.ID() != 0 || cs.Next(t.Context()) {
		t.Errorf("the stream goes on: %v", cs.Current)
	}
	_, err = c.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(cs.ResumeToken()))
	if !hasCode(err, 260) {
		t.Errorf("resumed after an invalidation: %v", err)
	}
	cs, err = c.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetStartAfter(cs.ResumeToken()))
	next = follow(t, cs, err)
	e := next()
	for ; e.Type == "drop"; e = next() { // of the other shards
	}
	equal(t, "after it", fmt.Sprint(e.Type, e.Key.ID), "insert0")
	w.filteredInvalidation(t, c, at)
	// A database, whose collections go first.
	if err := c.Database().Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	cs, err = c.Database().Watch(t.Context(), mongo.Pipeline{}, startAt(at))
	next = follow(t, cs, err)
	counts := map[string]int{}
	for counts["invalidate"] == 0 {
		counts[next().Type]++
	}
	if counts["drop"] < 2 || counts["dropDatabase"] != 1 || cs.ID() != 0 {
		t.Errorf("of a database: %v, cursor %d", counts, cs.ID())
	}
}

// filteredInvalidation filters the invalidation, which does not keep the stream open. Before 6.0 servers go on.
func (w *world) filteredInvalidation(t *testing.T, c *mongo.Collection, at *bson.Timestamp) {
	if w.version != "6.0" {
		return
	}
	inserts := mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}
	cs, err := c.Watch(t.Context(), inserts, startAt(at))
	follow(t, cs, err)
	kit.Until(t, "the stream has ended", func() bool {
		if cs.TryNext(t.Context()) {
			t.Fatalf("an event: %v", cs.Current)
		}
		return cs.ID() == 0
	})
	equal(t, "filtered", cs.Err(), nil)
}

// lookups shows documents as they are now.
func (w *world) lookups(t *testing.T) {
	c := w.spread(t, "lookups", 0)
	at := now(t, w.client)
	insert(t, c, k(1))
	for i := range 2 {
		if _, err := c.UpdateOne(t.Context(), k(1), set("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.cluster.MoveChunk(t.Context(), "lookups.c", k(0), w.cluster.ShardNames()[2]); err != nil {
		t.Fatal(err)
	}
	cs, err := c.Watch(t.Context(), mongo.Pipeline{}, startAt(at).SetFullDocument(options.UpdateLookup))
	next := follow(t, cs, err)
	next()
	equal(t, "now", next().Document.Lookup("x").AsInt64(), 1)
	if _, err := c.DeleteOne(t.Context(), k(1)); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "an update shows that the document is gone", func() bool { // once a majority says so
		cs, err := c.Watch(t.Context(), mongo.Pipeline{}, startAt(at).SetFullDocument(options.UpdateLookup))
		next := follow(t, cs, err)
		next()
		e := next()
		return e.Type == "update" && e.Document == nil
	})
}

// changeCursor takes a cursor as commands do.
func (w *world) changeCursor(t *testing.T) {
	c := w.spread(t, "cursors", 0)
	db := c.Database()
	at := now(t, w.client)
	for i := range 9 {
		insert(t, c, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i * 33}})
	}
	stage := bson.D{{Key: "$changeStream", Value: bson.D{{Key: "startAtOperationTime", Value: at}}}}
	open := func() int64 {
		raw := command(t, db, bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{stage}},
			{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}}})
		if raw.Lookup("cursor", "postBatchResumeToken", "_data").StringValue() == "" {
			t.Error("the first reply has no token")
		}
		return raw.Lookup("cursor", "id").Int64()
	}
	id, last, n := open(), "", 0
	for n < 9 {
		raw := command(t, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"},
			{Key: "batchSize", Value: 2}})
		docs, err := raw.Lookup("cursor", "nextBatch").Array().Values()
		token := raw.Lookup("cursor", "postBatchResumeToken", "_data").StringValue()
		if err != nil || len(docs) > 2 || token < last {
			t.Fatalf("%d documents, %s after %s: %v", len(docs), token, last, err)
		}
		n, last = n+len(docs), token
		if n < 9 && len(docs) == 2 {
			equal(t, "token", token, docs[1].Document().Lookup("_id", "_data").StringValue())
		}
	}
	began := time.Now()
	more := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "maxTimeMS", Value: 300}}
	command(t, db, more)
	if took := time.Since(began); took < 250*time.Millisecond {
		t.Errorf("it waited %v for changes", took)
	}
	kill := bson.D{{Key: "killCursors", Value: "c"}, {Key: "cursors", Value: bson.A{id}}}
	equal(t, "killed", command(t, db, kill).Lookup("cursorsKilled", "0").Int64(), id)
	if err := db.RunCommand(t.Context(), more).Err(); !hasCode(err, 43) {
		t.Errorf("a cursor that was killed: %v", err)
	}
	w.killedInUse(t, db, open())
}

// killedInUse kills a cursor while a command waits for changes with it.
func (w *world) killedInUse(t *testing.T, db *mongo.Database, id int64) {
	more := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "maxTimeMS", Value: 2000}}
	command(t, db, more) // the changes so far
	var wg sync.WaitGroup
	wg.Go(func() { _ = db.RunCommand(t.Context(), more).Err() })
	kill := bson.D{{Key: "killCursors", Value: "c"}, {Key: "cursors", Value: bson.A{id}}}
	kit.Until(t, "it is killed", func() bool {
		killed, err := command(t, db, kill).Lookup("cursorsKilled").Array().Values()
		return err == nil && len(killed) == 1
	})
	wg.Wait()
	if err := db.RunCommand(t.Context(), more).Err(); !hasCode(err, 43) {
		t.Errorf("a cursor that was killed while in use: %v", err)
	}
}

// changeErrors has a shard fail, whose error a client gets. Its cursor has ended then.
func (w *world) changeErrors(t *testing.T) {
	db := w.client.Database("errors")
	insert(t, db.Collection("c"), k(1))
	client, err := w.cluster.Direct(w.cluster.ShardNames()[1])
	if err != nil {
		t.Fatal(err)
	}
	shard := client.Database("admin")
	for _, code := range []int32{280, 286} {
		raw := command(t, db, bson.D{{Key: "aggregate", Value: "c"}, {Key: "cursor", Value: bson.D{}},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}}})
		command(t, shard, bson.D{{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
			{Key: "data", Value: bson.D{{Key: "errorCode", Value: code}, {Key: "failCommands", Value: bson.A{"getMore"}},
				{Key: "namespace", Value: "errors.c"}}}})
		more := bson.D{{Key: "getMore", Value: raw.Lookup("cursor", "id").Int64()}, {Key: "collection", Value: "c"}}
		if err := db.RunCommand(t.Context(), more).Err(); !hasCode(err, int(code)) {
			t.Errorf("with error %d of a shard: %v", code, err)
		}
		if err := db.RunCommand(t.Context(), more).Err(); !hasCode(err, 43) {
			t.Errorf("after error %d: %v", code, err)
		}
	}
}
