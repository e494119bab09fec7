package seed

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

func run(t *testing.T, db *driver.Database, cmd bson.D) bson.Raw {
	t.Helper()
	raw, err := db.RunCommand(t.Context(), cmd).Raw()
	must(t, err)
	return raw
}

func index(name, field string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "key", Value: bson.D{{Key: field, Value: 1}}}, {Key: "name", Value: name}}, more...)
}

// expiring makes collections whose documents all have expired long ago.
func expiring(t *testing.T, db *driver.Database, version mongo.Version) (held int) {
	t.Helper()
	after := func(v any) bson.E { return bson.E{Key: "expireAfterSeconds", Value: v} }
	old := time.Now().Add(-24 * time.Hour)
	insert := func(coll string, docs ...any) {
		_, err := db.Collection(coll).InsertMany(t.Context(), docs)
		must(t, err)
	}
	if version.AtLeast(4, 4) {
		run(t, db, bson.D{{Key: "create", Value: "i"}, {Key: "recordPreImages", Value: true}})
	}
	run(t, db, bson.D{{Key: "createIndexes", Value: "i"}, {Key: "indexes", Value: bson.A{
		index("at", "at", after(30)), index("far", "far", after(int64(1_700_000_000))),
		index("unique", "u", after(60.0), bson.E{Key: "unique", Value: true}),
		index("partial", "p", after(0),
			bson.E{Key: "partialFilterExpression", Value: bson.D{{Key: "p", Value: bson.D{{Key: "$exists", Value: true}}}}}),
		index("plain", "x")}}})
	for i := range 20 {
		insert("i", bson.D{{Key: "at", Value: old}, {Key: "far", Value: old},
			{Key: "u", Value: old.Add(time.Duration(i) * time.Second)}, {Key: "p", Value: old}})
	}
	if held = 4; !version.AtLeast(5, 0) {
		return held
	}
	run(t, db, bson.D{{Key: "create", Value: "s"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}},
		after(60)})
	insert("s", bson.D{{Key: "t", Value: old}})
	if held++; !version.AtLeast(6, 0) {
		return held
	}
	run(t, db, bson.D{{Key: "create", Value: "c"},
		{Key: "clusteredIndex",
			Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}}, after(60)})
	insert("c", bson.D{{Key: "_id", Value: old}})
	return held + 1
}

// A clone that is to follow its old set expires nothing, whatever its server is
// started with: what says when is held back in its files, and a job of the name that
// is told restores it.
func TestCloneHoldsExpiriesBack(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			for _, keep := range []bool{false, true} {
				cloneExpiring(t, version, keep)
			}
		})
	}
}

func cloneExpiring(t *testing.T, version string, keep bool) {
	t.Helper()
	off := map[string]string{"ttlMonitorEnabled": "false"}
	src := lab.ForTest(t, lab.Options{Version: version, SetParameters: off})
	source := connect(t, src.URI())
	v, err := mongo.ParseVersion(version)
	must(t, err)
	want := expiring(t, source.Database("x"), v)
	must(t, source.Disconnect(t.Context()))
	m := src.Members()[0]
	must(t, m.Stop())
	to, port := filepath.Join(t.TempDir(), "to"), freePort(t)
	host := fmt.Sprintf("127.0.0.1:%d", port)
	o := Options{Pull: PullOptions{DBPath: to},
		Member: MemberOptions{NewSet: "stage", NewSetHost: host, KeepExpiry: keep, Guardian: privateCommand(),
			Command: append(memberCommand(t, version, "stage", to, port), "--setParameter", "ttlMonitorSleepSecs=1")}}
	pid := 0
	endLater(t, &pid)
	res, err := Run(t.Context(), openAgent(t, ServeOptions{SourceOptions: SourceOptions{DBPath: m.DBPath}}), o)
	must(t, err)
	pid = res.Pid
	clone := connect(t, "mongodb://"+host+"/?directConnection=true")
	defer func() { must(t, clone.Disconnect(context.Background())) }()
	count := func(coll string) int {
		n, err := clone.Database("x").Collection(coll).CountDocuments(t.Context(), bson.D{})
		must(t, err)
		return int(n)
	}
	gone := func() bool { return count("i")+count("s")+count("c") == 0 }
	if keep {
		if res.HeldExpiries != 0 || res.Job != "" {
			t.Errorf("%d expiries are held back by job %q", res.HeldExpiries, res.Job)
		}
		kit.Until(t, "all documents expire", gone)
		return
	}
	if res.HeldExpiries != want || res.Job != "clone-stage" {
		t.Errorf("%d of %d expiries are held back, by job %q", res.HeldExpiries, want, res.Job)
	}
	admin := clone.Database("admin")
	if on := run(t, admin, bson.D{{Key: "getParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: 1}}).
		Lookup("ttlMonitorEnabled").Boolean(); on {
		t.Error("the clone was started with its monitor on")
	}
	run(t, admin, bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: true}}) // as an operator might
	passes := func() int64 {
		return run(t, admin, bson.D{{Key: "serverStatus", Value: 1}}).Lookup("metrics", "ttl", "passes").AsInt64()
	}
	twice := func() {
		t.Helper()
		from := passes()
		kit.Until(t, "the monitor passes", func() bool { return passes() > from+2 })
	}
	twice()
	if got := []int{count("i"), count("s"), count("c")}; !slices.Equal(got, counts(v)) {
		t.Errorf("the clone has expired documents: %v of %v are there", got, counts(v))
	}
	restore(t, "mongodb://"+host+"/?replicaSet=stage", res.Job, want)
	kit.Until(t, "all documents expire", gone)
}

// restore restores what is held back, as the end of a job does.
func restore(t *testing.T, uri, job string, want int) {
	t.Helper()
	cluster, err := mongo.Connect(t.Context(), uri, mongo.Options{})
	must(t, err)
	defer cluster.Close()
	target := schema.NewTarget(cluster, schema.TargetOptions{Job: job})
	cur, err := cluster.Client.Database(mongo.StateDB).Collection("held").
		Find(t.Context(), bson.D{{Key: "_id.job", Value: job}})
	must(t, err)
	var deferred []bson.Raw
	must(t, cur.All(t.Context(), &deferred))
	if len(deferred) != want {
		t.Errorf("%d of %d: %v", len(deferred), want, deferred)
	}
	for _, d := range deferred {
		t.Logf("deferred: %s", d)
	}
	must(t, target.Expiries.Restore(t.Context()))
}

// counts are the documents of each collection.
func counts(v mongo.Version) []int {
	switch {
	case v.AtLeast(6, 0):
		return []int{20, 1, 1}
	case v.AtLeast(5, 0):
		return []int{20, 1, 0}
	}
	return []int{20, 0, 0}
}

func TestFollowJobIsAUsableName(t *testing.T) {
	for set, want := range map[string]string{"stage-1.b_C": "clone-stage-1.b_C", "a set/ö": "clone-a_set___",
		strings.Repeat("x", 99): "clone-" + strings.Repeat("x", 58)} {
		if got := FollowJob(set); got != want {
			t.Errorf("%q: %q", set, got)
		}
	}
}

func TestStartCommandExpiresNothing(t *testing.T) {
	for _, c := range []struct {
		o    MemberOptions
		want int
	}{
		{MemberOptions{NewSet: "s", Command: []string{"env", "A=b", "mongod", "--fork"}}, 2},
		{MemberOptions{NewSet: "s", Command: []string{"mongod", "--setParameter", "ttlMonitorEnabled=true"}}, 0},
		{MemberOptions{NewSet: "s", Command: []string{"systemctl", "start", "db"}}, 0},
		{MemberOptions{NewSet: "s", KeepExpiry: true, Command: []string{"mongod"}}, 0},
		{MemberOptions{Command: []string{"mongod"}}, 0},
	} {
		if got := len(c.o.startCommand()) - len(c.o.Command); got != c.want {
			t.Errorf("%+v: %d words more", c.o, got)
		}
	}
}
