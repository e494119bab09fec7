package failover

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// finalizing is a source and a target of one member each, with an interposer before one.
type finalizing struct {
	*testing.T
	source, target *lab.Cluster
	sc, tc         *mongo.Client // past the interposer
	in             *Interposer
	bin            string
}

// TestEachCommandFails strikes commands that a job sends to either side, from its start to
// its end: the server refuses it as one that is no primary, fails after it was run, loses the
// reply, elects, or the job is killed. The job, or its next process, ends as without that.
func TestEachCommandFails(t *testing.T) {
	lab.Nightly(t)
	r := rand.New(rand.NewPCG(testseed.Of(t), 61))
	for _, side := range []string{"source", "target"} {
		t.Run(side, func(t *testing.T) {
			f := newFinalizing(t, side)
			all := f.play(0, Blow{})
			for range 15 {
				at := 1 + r.IntN(len(all))
				if r.IntN(2) == 0 { // finalize is the second half of them
					at = 1 + len(all)/2 + r.IntN(len(all)-len(all)/2)
				}
				f.play(at, f.blows()[r.IntN(len(f.blows()))])
			}
		})
	}
}

func newFinalizing(t *testing.T, side string) *finalizing {
	t.Helper()
	o := lab.Options{Proxy: true, LeanJournal: true}
	f := &finalizing{T: t, source: lab.ForTest(t, o), target: lab.ForTest(t, o), bin: test.BuildMillrace(t)}
	direct := func(c *lab.Cluster) *mongo.Client {
		return kit.Client(t, "mongodb://"+c.Members()[0].Host()+"/?directConnection=true")
	}
	f.sc, f.tc = direct(f.source), direct(f.target)
	struck := f.target
	if side == "source" {
		struck = f.source
	}
	var err error
	f.in, err = Interpose(struck.Members()[0].Host())
	f.ok(err)
	t.Cleanup(func() { _ = f.in.Close() })
	struck.Members()[0].Proxy().Divert(f.in.Addr())
	return f
}

func (f *finalizing) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// blows are what may become of a command. Killed is done by play.
func (f *finalizing) blows() []Blow {
	const notPrimary, interrupted = 10107, 11602
	elect := func() {
		for _, c := range []*mongo.Client{f.sc, f.tc} {
			_ = c.Database("admin").RunCommand(f.Context(), bson.D{{Key: "replSetStepDown", Value: 1},
				{Key: "secondaryCatchUpPeriodSecs", Value: 0}, {Key: "force", Value: true}}).Err()
		}
	}
	return []Blow{{Name: "refused", Before: true, Code: notPrimary}, {Name: "interrupted", Code: interrupted},
		{Name: "reply lost"},
		{Name: "elected", Do: elect}, {Name: "killed"}}
}

// play runs a job to its end, of which one command is struck, and compares. It returns the
// commands that were sent.
func (f *finalizing) play(at int, blow Blow) []string {
	f.Helper()
	for _, c := range []*mongo.Client{f.sc, f.tc} {
		f.ok(c.Database("d").Drop(f.Context()))
		f.ok(c.Database("millrace").Drop(f.Context()))
	}
	f.load()
	args := []string{"sync", "--source", uri(f.source), "--target", uri(f.target), "--include", "d.*", "--until",
		"caught-up"}
	var p *test.Process
	var starting sync.Mutex // the process is struck only once it is known
	starting.Lock()
	if blow.Name == "killed" {
		blow.Do = func() {
			starting.Lock()
			defer starting.Unlock()
			p.Kill()
		}
	}
	f.in.Arm(at, blow)
	p = test.Start(f.T, f.bin, args...)
	starting.Unlock()
	err := p.Wait(4 * time.Minute)
	seen, struck := f.in.Disarm()
	if blow.Name == "killed" && struck != "" {
		p = test.Start(f.T, f.bin, args...)
		err = p.Wait(4 * time.Minute)
	}
	if err != nil {
		f.Errorf("command %d, %s, is %s: %v\n%s", at, struck, blow.Name, err, p.Output())
		return seen
	}
	of := func(ns string) bool { return strings.HasPrefix(ns, "d.") }
	diffs, err := test.Compare(f.Context(), f.sc, f.tc, test.CompareOptions{Source: of, Target: of})
	f.ok(err)
	deferred, err := f.tc.Database("millrace").Collection("held").CountDocuments(f.Context(), bson.D{})
	f.ok(err)
	if len(diffs) > 0 || deferred > 0 {
		f.Errorf("command %d, %s, is %s: %d settings are deferred, differences %v\n%s", at, struck, blow.Name, deferred,
			diffs, p.Output())
	}
	return seen
}

// load makes collections of which much comes late: unique indexes, expiries, limits.
func (f *finalizing) load() {
	f.Helper()
	db := f.sc.Database("d")
	run := func(cmd string) {
		f.Helper()
		var doc bson.D
		f.ok(bson.UnmarshalExtJSON([]byte(cmd), false, &doc))
		f.ok(db.RunCommand(f.Context(), doc).Err())
	}
	run(`{"create":"ring","capped":true,"size":1000000,"max":1000}`)
	run(`{"create":"series","timeseries":{"timeField":"at"},"expireAfterSeconds":36000}`)
	for _, name := range []string{"plain", "ring", "series"} {
		var docs []any
		for i := range 20 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i}, {Key: "at", Value: time.Now()}})
		}
		_, err := db.Collection(name).InsertMany(f.Context(), docs)
		f.ok(err)
	}
	run(
		`{"createIndexes":"plain","indexes":[{"key":{"a":1},"name":"a","unique":true},{"key":{"at":1},"name":"at","expireAfterSeconds":36000}]}`)
	run(`{"create":"view","viewOn":"plain","pipeline":[]}`)
}
