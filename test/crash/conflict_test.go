package crash

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKillAmongConflicts: somebody else writes on the target what takes unique
// keys away from documents of the source, before the copy and all the time
// after, while millrace is killed again and again. In the end every document of
// the source is on the target or in exactly one dead letter, and every document
// of somebody else likewise.
func TestKillAmongConflicts(t *testing.T) {
	t.Parallel()
	src := lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_SOURCE")})
	dst := lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_TARGET")})
	bin := test.BuildMillrace(t, raceFlag()...)
	for _, policy := range []string{"skip", "overwrite"} {
		t.Run(policy, func(t *testing.T) {
			if policy != "overwrite" {
				lab.Nightly(t)
			}
			seed := testseed.Of(t)
			db := "conflict_" + policy
			c := &conflicts{sc: kit.Client(t, src.URI()).Database(db), dc: kit.Client(t, dst.URI()).Database(db), job: policy,
				foreign: map[string]bson.Raw{}}
			c.load(t)
			stop := c.write(t, seed)
			args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", db + ".*", "--job", policy,
				"--on-existing", "merge", "--on-conflict", policy, "--until"}
			r := rand.New(rand.NewPCG(seed, 9))
			for _, phase := range []string{"copying", "copying", "overlap", "following", "following", "following", "following",
				"following"} {
				p := test.Start(t, bin, append(args, "never")...)
				func() {
					if phase == "following" { // on a busy machine the job would never catch up
						c.gate.Lock()
						defer c.gate.Unlock()
					}
					p.AwaitPhase(c.dc.Client(), policy, phase)
				}()
				select {
				case <-time.After(time.Duration(100+r.IntN(900)) * time.Millisecond):
				case <-p.Done():
				}
				p.Kill()
			}
			stop()
			p := test.Start(t, bin, append(args, "caught-up")...)
			// The catalogs differ: the target has more documents, but no more collections.
			if err := p.Wait(6 * time.Minute); err != nil {
				t.Fatalf("last run: %v\n%s", err, p.Output())
			}
			c.check(t, policy)
			if t.Failed() {
				t.Logf("seed %d\n%s", seed, p.Output())
			}
		})
	}
}

const conflictDocs, conflictKeys = 3000, 9000

type conflicts struct {
	sc, dc *driver.Database
	job    string

	gate    sync.RWMutex // a writer holds it for each write
	mu      sync.Mutex
	foreign map[string]bson.Raw // by "collection _id"
}

// collections: the target has the unique index of the first before the copy,
// that of the second is held back.
func (c *conflicts) collections() []string { return []string{"first", "held"} }

func (c *conflicts) load(t *testing.T) {
	t.Helper()
	unique := driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}
	for _, name := range c.collections() {
		var docs []any
		for i := range conflictDocs {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: make([]byte, i%2000)}})
		}
		if _, err := c.sc.Collection(name).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
		if _, err := c.sc.Collection(name).Indexes().CreateOne(t.Context(), unique); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.dc.Collection("first").Indexes().CreateOne(t.Context(), unique); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		c.intrude(t, "first", fmt.Sprint("before", i), i*100)
	}
	for i := range 3 {
		c.intrude(t, "held", fmt.Sprint("before", i), i*100)
	}
}

// intrude inserts a document of somebody else, unless its key is taken.
func (c *conflicts) intrude(t *testing.T, coll, id string, k int) {
	t.Helper()
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}, {Key: "theirs", Value: id}})
	if err != nil {
		t.Error(err)
		return
	}
	// Before, for millrace may remove it at once.
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.dc.Collection(coll).InsertOne(context.WithoutCancel(t.Context()), bson.Raw(doc))
	if driver.IsDuplicateKeyError(err) {
		return
	}
	if err != nil {
		t.Error(err)
	}
	c.foreign[coll+" "+id] = doc
}

// write changes documents of the source, and intrudes on the target, until
// the returned function is called.
func (c *conflicts) write(t *testing.T, seed uint64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := 0; ctx.Err() == nil; n++ {
				pause, err := time.Millisecond, error(nil)
				c.gate.RLock()
				if i == 0 {
					pause = 20 * time.Millisecond
					c.intrude(t, "first", fmt.Sprint("later", n), r.IntN(conflictKeys))
				} else {
					err = c.change(ctx, c.sc.Collection(c.collections()[i%2]), r)
				}
				c.gate.RUnlock()
				if err != nil && ctx.Err() == nil && !driver.IsDuplicateKeyError(err) {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				time.Sleep(pause)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (c *conflicts) change(ctx context.Context, coll *driver.Collection, r *rand.Rand) error {
	id := bson.D{{Key: "_id", Value: r.IntN(conflictDocs)}}
	set := func(key string, v any) error {
		_, err := coll.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: key, Value: v}}}})
		return err
	}
	switch r.IntN(8) {
	case 0:
		_, err := coll.DeleteOne(ctx, id)
		return err
	case 1:
		_, err := coll.ReplaceOne(ctx, id, bson.D{{Key: "k", Value: r.IntN(conflictKeys)},
			{Key: "a", Value: bson.A{1, 2, 3}}}, options.Replace().SetUpsert(true))
		return err
	case 2:
		_, err := coll.UpdateOne(ctx, id,
			bson.D{{Key: "$push",
				Value: bson.D{{Key: "a", Value: bson.D{{Key: "$each", Value: bson.A{r.IntN(99)}}, {Key: "$slice", Value: -3}}}}}})
		return err
	case 3, 4, 5:
		return set("k", r.IntN(conflictKeys))
	}
	return set(fmt.Sprint("f", r.IntN(5)), r.IntN(1000))
}

type deadLetter struct {
	NS, State  string
	DocumentID bson.RawValue `bson:"documentId"`
	Document   bson.Raw
}

func (c *conflicts) check(t *testing.T, policy string) {
	t.Helper()
	cur, err := c.dc.Client().Database("millrace").Collection("deadletters").
		Find(t.Context(), bson.D{{Key: "job", Value: c.job}})
	if err != nil {
		t.Fatal(err)
	}
	var letters []deadLetter
	if err := cur.All(t.Context(), &letters); err != nil {
		t.Fatal(err)
	}
	open, removed, counts := map[string]bson.Raw{}, map[string]bson.Raw{}, map[string]int{}
	for _, l := range letters {
		counts[l.State]++
		key := l.NS[len(c.dc.Name())+1:] + " " + idOf(l.DocumentID)
		of := map[string]map[string]bson.Raw{"open": open, "removed": removed}[l.State]
		if l.State == "undecided" {
			t.Errorf("undecided: %s", key)
		}
		if of == nil {
			continue
		}
		if of[key] != nil {
			t.Errorf("%s has two letters that are %s", key, l.State)
		}
		of[key] = l.Document
	}
	t.Logf("%d documents of somebody else, letters: %v", len(c.foreign), counts)
	if policy == "overwrite" && len(open) > 0 || policy == "skip" && (len(removed) > 0 || len(open) == 0) {
		t.Errorf("%d open, %d removed", len(open), len(removed))
	}
	target := map[string]bson.Raw{}
	for _, name := range c.collections() {
		for k, v := range dump(t, c.dc.Collection(name)) {
			target[name+" "+k] = v
		}
	}
	c.checkSource(t, target, open)
	for key, doc := range c.foreign {
		there, gone := target[key], removed[key]
		if (there == nil) == (gone == nil) || there != nil && !bytes.Equal(there, doc) || gone != nil &&
			!bytes.Equal(gone, doc) {
			t.Errorf("theirs, %s: on the target %s, removed %s", key, there, gone)
		}
		delete(target, key)
	}
	for key := range target {
		t.Errorf("%s is on the target only", key)
	}
}

// checkSource takes the source's documents out of target and open.
func (c *conflicts) checkSource(t *testing.T, target, open map[string]bson.Raw) {
	t.Helper()
	bad := 0
	for _, name := range c.collections() {
		for k, doc := range dump(t, c.sc.Collection(name)) {
			key := name + " " + k
			there, letter := target[key], open[key]
			if bytes.Equal(there, doc) && letter == nil || letter != nil && bytes.Equal(letter, doc) {
				delete(target, key)
				delete(open, key)
				continue
			}
			if bad++; bad < 10 {
				t.Errorf("%s: source %s\ntarget %s\nletter %s", key, doc, there, letter)
			}
		}
	}
	for key, l := range open {
		t.Errorf("%s: an open letter about a document that the source does not have: %s", key, l)
	}
}

func dump(t *testing.T, coll *driver.Collection) map[string]bson.Raw {
	t.Helper()
	cur, err := coll.Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bson.Raw{}
	for cur.Next(t.Context()) {
		out[idOf(cur.Current.Lookup("_id"))] = bytes.Clone(cur.Current)
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func idOf(v bson.RawValue) string {
	if s, ok := v.StringValueOK(); ok {
		return s
	}
	return v.String()
}
