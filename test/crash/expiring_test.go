package crash

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKillWhenTargetExpires kills a finalizing job once the target expires documents by
// itself. The source then changes documents that the target has no longer: the next run ends
// the job where it drained to, and follows nothing of that.
func TestKillWhenTargetExpires(t *testing.T) {
	t.Parallel()
	src := lab.ForTest(t, lab.Options{SetParameters: map[string]string{"ttlMonitorEnabled": "false"}})
	dst := lab.ForTest(t, lab.Options{SetParameters: map[string]string{"ttlMonitorSleepSecs": "1"}})
	bin := test.BuildMillrace(t, "-tags", "failpoint")
	sc, dc := kit.Client(t, src.URI()), kit.Client(t, dst.URI())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, copied := sc.Database("expiring"), dc.Database("expiring").Collection("c")
	index := bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"},
		{Key: "expireAfterSeconds", Value: 60}}
	must(db.RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{index}}}).
		Err())
	for id := range 10 {
		_, err := db.Collection("c").InsertOne(t.Context(),
			bson.D{{Key: "_id", Value: id}, {Key: "at", Value: bson.DateTime(1_600_000_000_000)}})
		must(err)
	}
	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", "expiring.*", "--job", "expiring",
		"--until", "caught-up"}
	p := test.StartWith(t, []string{"MILLRACE_FAILPOINTS=expire.after=stop"}, bin, args...)
	p.AwaitPhase(dc, "expiring", "finalizing")
	for left := int64(1); left > 0; time.Sleep(20 * time.Millisecond) {
		var err error
		left, err = copied.CountDocuments(t.Context(), bson.D{})
		must(err)
	}
	p.Kill()
	_, err := db.Collection("c").UpdateMany(t.Context(), bson.D{},
		bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: time.Now()}}}})
	must(err)
	p = test.Start(t, bin, args...)
	if err := p.Wait(4 * time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	cur, err := copied.Indexes().List(t.Context())
	must(err)
	var indexes []bson.Raw
	must(cur.All(t.Context(), &indexes))
	if n, ok := indexes[len(indexes)-1].Lookup("expireAfterSeconds").AsInt64OK(); !ok || n != 60 {
		t.Errorf("the target expires by %v", indexes)
	}
}
