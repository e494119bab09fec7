package failover

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	millrace "github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// small is a source with a short oplog and a target, of one member each.
type small struct {
	t              *testing.T
	source, target *lab.Cluster
	sc, tc         *mongo.Client
	bin            string
}

const smallDocs = 20_000

func newSmall(t *testing.T) *small {
	t.Helper()
	lab.NeedServers(t)
	s := &small{t: t, bin: test.BuildMillrace(t)}
	var g errgroup.Group
	g.Go(func() error {
		// The servers never cut off what came after the last checkpoint.
		s.source = lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_SOURCE"), OplogMB: 8,
			Args: []string{"--syncdelay", "1"}})
		return nil
	})
	g.Go(func() error {
		s.target = lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_TARGET")})
		return nil
	})
	_ = g.Wait()
	if t.Failed() {
		t.FailNow()
	}
	s.sc, s.tc = kit.Client(t, s.source.URI()), kit.Client(t, s.target.URI())
	pad := make([]byte, 200)
	for n := 0; n < smallDocs; n += 1000 {
		docs := make([]any, 1000)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: n + i}, {Key: "pad", Value: pad}}
		}
		if _, err := s.sc.Database(database).Collection("c").InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *small) start(more ...string) *test.Process {
	s.t.Helper()
	args := []string{"sync", "--source", s.source.URI(), "--target", s.target.URI(), "--include", database + ".*", "--job",
		"faults"}
	return test.Start(s.t, s.bin, append(args, more...)...)
}

// change updates some documents.
func (s *small) change(n int) {
	s.t.Helper()
	_, err := s.sc.Database(database).Collection("c").UpdateMany(s.t.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 100}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}}}})
	if err != nil {
		s.t.Fatal(err)
	}
}

// roll floods the oplog until it has forgotten all that was there before.
func (s *small) roll() { s.rollBeside(func() {}) }

// rollSpooled does so no faster than a process can spool it.
func (s *small) rollSpooled(p *test.Process) { s.rollBeside(func() { s.spooledUpTo(p) }) }

func (s *small) rollBeside(each func()) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	newest := s.newest()
	each()
	err := Flood(ctx, s.sc, func(ctx context.Context) (bool, error) {
		each()
		oldest, err := OldestEntry(ctx, s.source, 0)
		return newest.Before(oldest), err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// newest is the last write in the oplog; others than writes may follow it.
func (s *small) newest() bson.Timestamp {
	s.t.Helper()
	var newest struct {
		TS bson.Timestamp `bson:"ts"`
	}
	err := s.sc.Database("local").Collection("oplog.rs").
		FindOne(s.t.Context(), bson.D{{Key: "op", Value: bson.D{{Key: "$ne", Value: "n"}}}},
			options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Decode(&newest)
	if err != nil {
		s.t.Fatal(err)
	}
	return newest.TS
}

// await waits until a process says something.
func (s *small) await(p *test.Process, text string) {
	s.t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); !strings.Contains(p.Output(),
		text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("millrace does not say %q\n%s", text, p.Output())
		}
	}
}

// failed wants a process to have ended with a code and a reason.
func (s *small) failed(p *test.Process, code int, texts ...string) {
	s.t.Helper()
	if err := p.Wait(4 * time.Minute); err == nil || p.ExitCode() != code {
		s.t.Fatalf("millrace ended with %v, want code %d\n%s", err, code, p.Output())
	}
	for _, text := range texts {
		if !strings.Contains(p.Output(), text) {
			s.t.Errorf("millrace does not say %q\n%s", text, p.Output())
		}
	}
}

func (s *small) succeeded(p *test.Process) {
	s.t.Helper()
	if err := p.Wait(6 * time.Minute); err != nil {
		s.t.Fatalf("%v\n%s", err, p.Output())
	}
	ours := func(ns string) bool { return strings.HasPrefix(ns, database+".") }
	diffs, err := test.Compare(s.t.Context(), s.sc, s.tc, test.CompareOptions{Source: ours, Target: ours})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range diffs {
		s.t.Error(d)
	}
}

// hash is a checksum of the target's data, and what it remembers of the job.
func (s *small) hash() string {
	s.t.Helper()
	var reply struct {
		MD5 string `bson:"md5"`
	}
	if err := s.tc.Database(database).RunCommand(s.t.Context(), bson.D{{Key: "dbHash", Value: 1}}).
		Decode(&reply); err != nil {
		s.t.Fatal(err)
	}
	var job bson.D
	if err := s.tc.Database("millrace").Collection("jobs").FindOne(s.t.Context(), bson.D{{Key: "_id", Value: "faults"}}).
		Decode(&job); err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprint(reply.MD5, job)
}

// TestOplogRolled: the oplog loses what the job needs, once while none runs and
// once while one is paused. There is no gap: the job ends, says why, and begins
// anew only when it is told to.
func TestOplogRolled(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	p := s.start("--until", "never")
	p.AwaitPhase(s.tc, "faults", "following")
	p.Kill()
	s.change(1)
	s.roll()
	before := s.hash()
	s.failed(s.start("--until", "never"), 2, "no longer holds", "nothing was written", "--restart", "replSetResizeOplog")
	if after := s.hash(); after != before {
		t.Errorf("the target was %s and is %s", before, after)
	}

	again := []string{"--restart", "--on-existing", "drop"}
	p = s.start(append(again, "--until", "never")...)
	s.await(p, "following the source")
	if _, err := p.Command(t.Context(), "pause"); err != nil {
		t.Fatal(err)
	}
	s.change(2)
	s.roll()
	s.failed(p, 1, "no longer holds", "--restart", "replSetResizeOplog")
	s.succeeded(s.start(append(again, "--until", "caught-up")...))
}

// TestSpoolDiskFull: the disk of the spool is full before the copy is done. The
// job goes on and says so; when there is room again, the spool goes on too, and
// the oplog may forget the start of the copy.
func TestSpoolDiskFull(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	disk, end, err := lab.NewDisk(t.TempDir(), 512)
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	s := newSmall(t)
	spooled := []string{"--until", "caught-up", "--spool-dir", disk.Path(), "--warn-window", "10000h"}
	begin := func() *test.Process {
		if _, err := s.sc.Database(ballast).Collection("c").
			InsertOne(t.Context(), bson.D{{Key: "pad", Value: make([]byte, 7<<20)}}); err != nil {
			t.Fatal(err)
		}
		p := s.start(append(spooled, "--max-rate-bytes", "1", "--restart", "--on-existing", "drop")...)
		s.await(p, "keeping them on local disk")
		s.change(1)
		if err := disk.Fill(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := begin()
	s.writeUntil(p, "the disk of the spool is full")
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	s.change(2)
	s.rollSpooled(p)
	if _, err := p.Command(t.Context(), "throttle", "--max-rate-bytes", "0"); err != nil {
		t.Fatal(err)
	}
	s.succeeded(p)

	// Without room the oplog alone has to do; when it does not, the job says so.
	p = begin()
	s.writeUntil(p, "the disk of the spool is full")
	s.roll()
	s.failed(p, 1, "no longer holds", "--restart")
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	s.succeeded(s.start("--until", "caught-up", "--restart", "--on-existing", "drop"))
	if left, err := os.ReadDir(disk.Path()); err != nil || len(left) > 1 {
		t.Errorf("left on the disk: %v, %v", left, err)
	}
}

// TestSpoolFileTooLarge: a failure of the spool that does not pass names the file,
// what is wrong and what to do, and is none of the job.
func TestSpoolFileTooLarge(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	s := newSmall(t)
	if _, err := s.sc.Database(ballast).Collection("c").
		InsertOne(t.Context(), bson.D{{Key: "pad", Value: make([]byte, 7<<20)}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := test.Start(t, "sh", "-c", `ulimit -f 64 && exec "$0" "$@"`, s.bin, "sync", "--source", s.source.URI(), "--target",
		s.target.URI(),
		"--include", database+".*", "--job", "faults", "--until", "caught-up", "--spool-dir", dir, "--warn-window", "10000h",
		"--max-rate-bytes", "1")
	s.await(p, "keeping them on local disk")
	s.change(1)
	s.writeUntil(p, "changes are no longer kept on local disk")
	for _, text := range []string{dir + "/faults/", "file too large", "ulimit -f", "--spool-dir"} {
		if !strings.Contains(p.Output(), text) {
			t.Errorf("millrace does not say %q\n%s", text, p.Output())
		}
	}
	if phase := p.Status(t.Context()).Phase; phase != "copying" {
		t.Errorf("the job is in phase %q\n%s", phase, p.Output())
	}
	p.Kill()
	s.succeeded(s.start("--until", "caught-up", "--restart", "--on-existing", "drop", "--spool-dir", dir))
}

// writeUntil writes until a process says something: so little at a time that the
// oplog forgets nothing meanwhile.
func (s *small) writeUntil(p *test.Process, text string) {
	s.t.Helper()
	coll := s.sc.Database(ballast).Collection("c")
	for deadline := time.Now().Add(4 * time.Minute); !strings.Contains(p.Output(),
		text); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("millrace does not say %q\n%s", text, p.Output())
		}
		if _, err := coll.InsertOne(s.t.Context(), bson.D{{Key: "pad", Value: make([]byte, 10<<10)}}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// spooledUpTo waits until the spool has taken in what was written so far.
func (s *small) spooledUpTo(p *test.Process) {
	s.t.Helper()
	newest := s.newest()
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		to, err := millrace.ParseOpTime(p.Status(s.t.Context()).Follow.SpooledTo)
		if err == nil && !to.TS.Before(newest) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the spool reaches %v, not %v\n%s", to, newest, p.Output())
		}
	}
}
