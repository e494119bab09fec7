package sharded_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// newTestBed is a bed whose source's servers can be held at moments of their own.
func newTestBed(t *testing.T) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t, seed: testseed.Of(t)}
	b.lab = sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1", TestCommands: true,
		Version:       os.Getenv("MILLRACE_TEST_VERSION"),
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}, Routers: 1})
	b.sourceURI, b.targetURI = b.lab.URI(), lab.ForTest(t, lab.Options{}).URI()
	b.source, b.target = b.client(b.sourceURI), b.client(b.targetURI)
	b.collections()
	return b
}

// loading writes until it is told to end, and moves nothing.
func (b *bed) loading() (end func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var g errgroup.Group
	g.Go(func() error { return load.Run(ctx, b.source, "d", b.seed) })
	return func() {
		b.Helper()
		cancel()
		b.ok(g.Wait())
	}
}

// admin runs a command on one server.
func (b *bed) admin(uri string, cmd bson.D) bson.Raw {
	b.Helper()
	raw, err := b.client(uri).Database("admin").RunCommand(b.Context(), cmd).Raw()
	b.ok(err)
	return raw
}

// halt sets a fail point of a server, and gives what waits until the server has come to
// it.
func (b *bed) halt(uri, point string, mode any, data bson.D) (reached func()) {
	b.Helper()
	if data == nil {
		data = bson.D{}
	}
	entered := b.admin(uri, bson.D{{Key: "configureFailPoint", Value: point}, {Key: "mode", Value: mode},
		{Key: "data", Value: data}}).Lookup("count").AsInt64()
	return func() {
		b.Helper()
		b.admin(uri, bson.D{{Key: "waitForFailPoint", Value: point}, {Key: "timesEntered", Value: entered + 1},
			{Key: "maxTimeMS", Value: 120_000}})
	}
}

// both moves the chunks with the keys 150 and 250 to the first and the second shard.
func (b *bed) both() {
	b.Helper()
	for i, k := range []int{150, 250} {
		b.ok(b.lab.MoveChunk(b.Context(), "d.ranged", key(k), b.lab.ShardNames()[i]))
	}
}

// across writes documents of some bytes to both shards in one transaction.
func (b *bed) across(name string, docs, bytes int) error {
	s, err := b.source.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(b.Context())
	ctx := driver.NewSessionContext(b.Context(), s)
	write := func() error {
		for i := range docs {
			for _, k := range []int{150, 250} {
				doc := bson.D{{Key: "_id", Value: fmt.Sprint(name, k, "-", i)}, {Key: "k", Value: k},
					{Key: "pad", Value: make([]byte, bytes)}}
				if _, err := b.source.Database("d").Collection("ranged").InsertOne(ctx, doc); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for {
		if err := s.StartTransaction(); err != nil {
			return err
		}
		err := write()
		if err == nil {
			return s.CommitTransaction(ctx)
		}
		_ = s.AbortTransaction(ctx)
		var labeled driver.LabeledError
		if !errors.As(err, &labeled) || !labeled.HasErrorLabel("TransientTransactionError") {
			return err
		}
	}
}

// entries counts what a shard's oplog has.
func (b *bed) entries(shard int, filter bson.D) int64 {
	b.Helper()
	n, err := b.client(b.lab.Shards()[shard].URI()).Database("local").Collection("oplog.rs").
		CountDocuments(b.Context(), filter)
	b.ok(err)
	return n
}

// TestUndecided: a large transaction over shards that is prepared and not decided while a
// job copies, follows, is broken off and begins again comes whole when it is committed;
// one that a shard cannot prepare leaves nothing.
func TestUndecided(t *testing.T) {
	lab.Nightly(t)
	b := newTestBed(t)
	b.both()
	prepared, aborted := bson.D{{Key: "o.prepare", Value: true}}, bson.D{{Key: "o.abortTransaction", Value: 1}}
	arrived := func() int64 {
		n, err := b.target.Database("d").Collection("ranged").CountDocuments(t.Context(), bson.D{})
		b.ok(err)
		return n
	}
	for i := range b.lab.Shards() { // the first participant decides
		b.halt(b.lab.Shards()[i].URI(), "hangBeforeWritingDecision", "alwaysOn", nil)
	}
	committed := make(chan error, 1)
	go func() { committed <- b.across("large", 12, 1_500_000) }()
	b.until(committed, func() bool { return b.entries(0, prepared) > 0 && b.entries(1, prepared) > 0 })
	j, ended, breakOff := b.begin(b.spec())
	b.until(ended,
		func() bool { return strings.Contains(j.Status().Waiting, "the decision on a transaction that shard ") })
	pause(1000) // until it is decided there is no position to begin at
	if n, phase := arrived(), j.Status().Phase; n != 0 || phase == job.PhaseCopying || phase == job.PhaseFollowing {
		t.Errorf("%d documents in phase %s before the decision", n, phase)
	}
	let := func() {
		for i := range b.lab.Shards() {
			b.halt(b.lab.Shards()[i].URI(), "hangBeforeWritingDecision", "off", nil)
		}
	}
	let()
	b.ok(<-committed)
	b.following(j, ended)
	if w := j.Status().Waiting; w != "" {
		t.Errorf("follows and waits for %s", w)
	}

	for i := range b.lab.Shards() {
		b.halt(b.lab.Shards()[i].URI(), "hangBeforeWritingDecision", "alwaysOn", nil)
	}
	was := [2]int64{b.entries(0, prepared), b.entries(1, prepared)}
	go func() { committed <- b.across("again", 12, 1_500_000) }()
	b.until(committed, func() bool { return b.entries(0, prepared) > was[0] && b.entries(1, prepared) > was[1] })
	b.insertOne("hashed", "beside")
	breakOff()
	j, ended, breakOff = b.begin(b.spec())
	b.following(j, ended)
	b.until(ended, func() bool { // status says who holds the others up
		h := j.Status().Follow.Holding
		return h != nil && h.Undecided && h.Shard != "" && h.At != ""
	})
	if n := arrived(); n != 24 {
		t.Errorf("%d documents before the second decision, want the 24 of the first", n)
	}
	let()
	b.ok(<-committed)
	b.until(ended, func() bool { return arrived() == 48 })
	breakOff()

	refuses := b.halt(b.lab.Shards()[1].URI(), "failCommand", bson.D{{Key: "times", Value: 1}},
		bson.D{{Key: "failCommands", Value: bson.A{"prepareTransaction"}},
			{Key: "failInternalCommands", Value: true}, {Key: "errorCode", Value: 251}})
	if err := b.across("aborted", 1, 10); err == nil {
		t.Error("a transaction commits that a shard does not prepare")
	}
	refuses()
	if b.entries(0, aborted) == 0 {
		t.Error("nothing was prepared and aborted")
	}
	b.insertOne("hashed", "last")
	j, done := b.start(b.spec())
	b.finish(j, done)
}

func (b *bed) insertOne(name, id string) {
	b.Helper()
	_, err := b.source.Database("d").Collection(name).
		InsertOne(b.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: 1}})
	b.ok(err)
}

// TestMovesFail: migrations whose donor or recipient dies half way, chunks that are merged,
// too large to move, and moved all the same, by hand and by the balancer.
func TestMovesFail(t *testing.T) {
	lab.Nightly(t)
	if os.Getenv("MILLRACE_TEST_VERSION") != "" {
		t.Skip("older servers stop at other moments")
	}
	b := newTestBed(t)
	b.both()
	b.fill(times(100, 500))
	b.ok(b.lab.Balancer(t.Context(), false))
	j, done := b.start(b.spec())
	b.following(j, done)
	end := b.loading()
	names, servers := b.lab.ShardNames(), b.lab.Shards()
	const donor, recipient = 0, 1
	for _, c := range []struct {
		point string
		on    int
	}{
		{"migrateThreadHangAtStep3", recipient}, // documents are copied
		{"moveChunkHangAtStep4", donor},         // they are there, and nothing is committed
		{"moveChunkHangAtStep5", donor},         // the critical section
		{"hangBeforePostMigrationCommitRefresh", donor},
	} {
		b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(150), names[donor]))
		reached := b.halt(servers[c.on].URI(), c.point, "alwaysOn", nil)
		broken, there := make(chan error, 1), make(chan struct{})
		go func() {
			for { // what the last one left may be in its way for a while
				err := b.source.Database("admin").RunCommand(t.Context(), bson.D{{Key: "moveChunk", Value: "d.ranged"},
					{Key: "find", Value: key(150)}, {Key: "to", Value: names[recipient]}}).Err()
				select {
				case <-there:
					broken <- err
					return
				case <-t.Context().Done():
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
		reached()
		close(there)
		b.ok(servers[c.on].Members()[0].Kill())
		b.ok(servers[c.on].Members()[0].Start(t.Context()))
		t.Log(c.point, <-broken)
	}
	applied := j.Status().Follow.Operations
	b.applies(j, done, applied+100)

	// Merged, and split again elsewhere.
	for _, k := range []int{250, 350} {
		b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(k), names[donor]))
	}
	b.ok(b.lab.Merge(t.Context(), "d.ranged", key(200), key(400)))
	b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(250), names[recipient]))
	b.ok(b.lab.Split(t.Context(), "d.ranged", key(222)))

	// One key with more documents than a chunk may have.
	b.ok(b.lab.ChunkSize(t.Context(), 1))
	var docs []any
	for i := range 3000 {
		docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprint("jumbo", i)}, {Key: "k", Value: 555},
			{Key: "pad", Value: make([]byte, 1000)}})
	}
	_, err := b.source.Database("d").Collection("ranged").InsertMany(t.Context(), docs)
	b.ok(err)
	b.ok(b.lab.Split(t.Context(), "d.ranged", key(555), key(556)))
	b.ok(b.lab.MoveChunk(t.Context(), "d.ranged", key(590), names[donor]))
	chunk, err := b.lab.ChunkAt(t.Context(), "d.ranged", key(555))
	b.ok(err)
	to := names[0]
	if chunk.Shard == to {
		to = names[1]
	}
	move := bson.D{{Key: "_configsvrMoveRange", Value: "d.ranged"}, {Key: "toShard", Value: to},
		{Key: "min", Value: chunk.Min}, {Key: "max", Value: chunk.Max},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}
	config := b.client(b.lab.ConfigURI()).Database("admin")
	if err := config.RunCommand(t.Context(), move).Err(); err == nil {
		t.Error("a chunk moves that is too large")
	}
	_, err = config.Client().Database("config").Collection("chunks").
		UpdateByID(t.Context(), chunk.ID, bson.D{{Key: "$set", Value: bson.D{{Key: "jumbo", Value: true}}}})
	b.ok(err)
	b.ok(config.RunCommand(t.Context(), append(move, bson.E{Key: "forceJumbo", Value: 2})).Err())
	if owner, err := b.lab.OwnerOf(t.Context(), "d.ranged", key(555)); err != nil || owner != to {
		t.Errorf("the jumbo chunk is on %s, want %s: %v", owner, to, err)
	}
	b.ok(b.lab.Balancer(t.Context(), true))
	applied = j.Status().Follow.Operations
	b.applies(j, done, applied+200)
	end()
	b.finish(j, done)
}

// TestElections: shards and config servers of several members elect others, one after the
// other, while a job copies and follows; members die, too.
func TestElections(t *testing.T) {
	lab.Nightly(t)
	if os.Getenv("MILLRACE_TEST_VERSION") != "" {
		t.Skip("once is enough")
	}
	lab.NeedServers(t)
	b := &bed{T: t, seed: testseed.Of(t)}
	b.electing()
	b.collections()
	b.fill(times(200, 1000))
	end := b.writing()
	spec := b.spec()
	spec.Limits.Bytes = 1 << 20
	j, done := b.start(spec)
	elect := func() {
		t.Helper()
		for _, set := range append(b.lab.Shards(), b.lab.Config()) {
			b.ok(set.StepDown(t.Context()))
		}
		for _, set := range []*lab.Cluster{b.lab.Shards()[0], b.lab.Config()} {
			first, err := set.Primary(t.Context())
			b.ok(err)
			b.ok(set.Members()[first].Kill())
			b.until(done, func() bool {
				second, err := set.Primary(t.Context())
				return err == nil && second != first
			})
			b.ok(set.Members()[first].Start(t.Context()))
		}
	}
	elect()
	b.following(j, done)
	j.SetLimits(t.Context(), pace.Rates{})
	elect()
	n := j.Status().Follow.Operations
	b.applies(j, done, n+300)
	end()
	b.finish(j, done)
}

// TestKilledInEachPhase kills the program with SIGKILL in each phase while a sharded source
// is written to and its chunks move, starts it again, and wants the same on both sides.
func TestKilledInEachPhase(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	b.collections()
	b.fill(times(300, 1500))
	program := test.BuildMillrace(t)
	args := []string{"sync", "--source", b.sourceURI, "--target", b.targetURI, "--include", "d.*", "--job", "killed",
		"--spool-dir", t.TempDir(), "--until"}
	r := rand.New(rand.NewPCG(b.seed, 11))
	end := b.writing()
	for _, phase := range []string{"catalog", "creating", "copying", "copying", "indexing", "overlap", "following",
		"following"} {
		p := test.Start(t, program, append(args, "never")...)
		p.AwaitPhase(b.target, "killed", phase)
		pause(r.IntN(500)) // somewhere inside
		p.Kill()
	}
	end()
	p := test.Start(t, program, append(args, "caught-up")...)
	p.AwaitPhase(b.target, "killed", "finalizing")
	p.Kill()
	p = test.Start(t, program, append(args, "caught-up")...)
	if err := p.Wait(6 * time.Minute); err != nil {
		t.Fatalf("seed %d: %v\n%s", b.seed, err, p.Output())
	}
	b.sameDocuments("ranged", "hashed", "plain")
}
