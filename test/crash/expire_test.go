package crash

import (
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKillWhileDocumentsExpire kills millrace while documents expire on the source, and users
// delete others. The target is to keep the ones and not the others, also where the next
// process meets a deletion again on a document of a later state.
func TestKillWhileDocumentsExpire(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	monitor := map[string]string{"ttlMonitorSleepSecs": "1"}
	src := lab.ForTest(t, lab.Options{SetParameters: monitor})
	dst := lab.ForTest(t, lab.Options{SetParameters: monitor})
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 8))
	bin := test.BuildMillrace(t, raceFlag()...)
	sc, dc := kit.Client(t, src.URI()), kit.Client(t, dst.URI())
	db := sc.Database("expire")
	coll := db.Collection("c")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(db.RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"},
			{Key: "expireAfterSeconds", Value: 0}}}}}).Err())

	const past, future, each, rounds = bson.DateTime(1_600_000_000_000), bson.DateTime(4_000_000_000_000), 200, 4
	filter := func(round, rest int) bson.D {
		return bson.D{{Key: "round", Value: round}, {Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{4, rest}}}}}
	}
	insert := func(round int, only func(id int) bool, at func(id int) bson.DateTime) {
		t.Helper()
		var docs []any
		for id := round * each; id < (round+1)*each; id++ {
			if only(id) {
				docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "round", Value: round}, {Key: "at", Value: at(id)}})
			}
		}
		_, err := coll.InsertMany(t.Context(), docs)
		must(err)
	}
	expired := func() {
		t.Helper()
		for {
			n, err := coll.CountDocuments(t.Context(), bson.D{{Key: "at", Value: past}})
			must(err)
			if n == 0 {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	write := func(round int) {
		t.Helper()
		insert(round, func(int) bool { return true }, func(id int) bson.DateTime {
			if id%2 == 0 {
				return past
			}
			return future
		})
		_, err := coll.DeleteMany(t.Context(), filter(round, 1))
		must(err)
		_, err = coll.UpdateMany(t.Context(), filter(round, 3),
			bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: past}}}})
		must(err)
		expired()
		insert(round, func(id int) bool { return id%4 == 2 }, func(int) bson.DateTime { return future })
		_, err = coll.DeleteMany(t.Context(), filter(round, 2))
		must(err)
	}
	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", "expire.*", "--job", "expire",
		"--skip", "expire.*=ttl", "--until"}
	p := test.Start(t, bin, append(args, "never")...)
	p.AwaitPhase(dc, "expire", "following")
	for round := range rounds {
		done := make(chan struct{})
		kills := []time.Duration{time.Duration(r.IntN(800)) * time.Millisecond,
			time.Duration(200+r.IntN(800)) * time.Millisecond}
		go func() {
			defer close(done)
			for _, after := range kills {
				time.Sleep(after)
				p.Kill()
				p = test.Start(t, bin, append(args, "never")...)
			}
		}()
		write(round)
		<-done
	}
	p.Kill()
	p = test.Start(t, bin, append(args, "caught-up")...)
	if err := p.Wait(6 * time.Minute); err != nil {
		t.Fatalf("last run: %v\n%s", err, p.Output())
	}
	cur, err := dc.Database("expire").Collection("c").Find(t.Context(), bson.D{})
	must(err)
	var docs []struct {
		ID int           `bson:"_id"`
		At bson.DateTime `bson:"at"`
	}
	must(cur.All(t.Context(), &docs))
	found := map[int]bool{}
	for _, d := range docs {
		if found[d.ID] = true; d.ID%4 != 0 && d.ID%4 != 3 || d.At != past {
			t.Errorf("_id %d with %d is left", d.ID, d.At)
		}
	}
	for id := range rounds * each {
		if !found[id] && (id%4 == 0 || id%4 == 3) {
			t.Errorf("_id %d, which has expired, is not left", id)
		}
	}
}
