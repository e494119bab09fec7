package test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestVerifyGoesByTheSourcesClock: what has expired on the source does not depend on the clock
// of the machine where verify runs.
func TestVerifyGoesByTheSourcesClock(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	off := lab.Options{SetParameters: map[string]string{"ttlMonitorEnabled": "false"}}
	src, dst, bin := lab.ForTest(t, off), lab.ForTest(t, off), BuildMillrace(t)
	sc, dc := kit.Client(t, src.URI()), kit.Client(t, dst.URI())
	index := d("key", d("at", 1), "name", "at", "expireAfterSeconds", 0)
	if err := sc.Database("clock").RunCommand(t.Context(), d("createIndexes", "c", "indexes", a(index))).
		Err(); err != nil {
		t.Fatal(err)
	}
	plain := d("createIndexes", "c", "indexes", a(d("key", d("at", 1), "name", "at")))
	if err := dc.Database("clock").RunCommand(t.Context(), plain).Err(); err != nil {
		t.Fatal(err)
	}
	left := dc.Database("clock").Collection("c")
	for _, c := range []struct {
		name    string
		expires time.Duration
		clock   time.Duration
		exit    int
	}{
		{"ahead", 30 * time.Minute, time.Hour, 1},
		{"behind", -30 * time.Minute, -time.Hour, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := left.ReplaceOne(t.Context(), bson.D{{Key: "n", Value: 1}},
				bson.D{{Key: "n", Value: 1}, {Key: "at", Value: time.Now().Add(c.expires)}},
				options.Replace().SetUpsert(true)); err != nil {
				t.Fatal(err)
			}
			p, clock := StartClocked(t, nil, bin, "verify", "--source", src.URI(), "--target", dst.URI(), "--include", "clock.*",
				"--skip", "clock.*=ttl", "--recheck-for", "0")
			if err := clock.Set(c.clock); err != nil {
				t.Fatal(err)
			}
			if _ = p.Wait(4 * time.Minute); p.ExitCode() != c.exit {
				t.Errorf("exit code %d, want %d\n%s", p.ExitCode(), c.exit, p.Output())
			}
		})
	}
}
