package job_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestSpool: the oplog forgets the start of a copy while that goes on, and the
// process is stopped; the changes are on local disk and nothing is lost.
func TestSpool(t *testing.T) {
	t.Parallel()
	o := lab.Options{OplogMB: 8, Args: []string{"--syncdelay", "1"}} // entries after the last checkpoint are never cut off
	s := servers{src: lab.ForTest(t, o), dst: lab.ForTest(t, lab.Options{})}
	s.srcDB, s.targetC = dial(t, s.src.URI()), dial(t, s.dst.URI())
	coll := s.srcDB.Database("spool").Collection("c")
	insert(t, s.srcDB, "spool", 5000)
	noise(t, s.srcDB, 8)

	spec := s.spec("spool")
	spec.Job, spec.WarnWindow, spec.SpoolDir, spec.SpoolBytes = "spooled", 1<<62, t.TempDir(), 1<<30
	spec.Limits = pace.Rates{Bytes: 1}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	j := open(t, spec)
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	kit.Until(t, "spooling begins", func() bool { return j.Status().Follow.SpoolBytes > 0 })
	begun := lastOp(t, s.srcDB)

	if _, err := coll.UpdateMany(t.Context(), bson.D{{Key: "i", Value: bson.D{{Key: "$lt", Value: 1000}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "changed", Value: true}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.DeleteMany(t.Context(), bson.D{{Key: "i", Value: bson.D{{Key: "$gte", Value: 4500}}}}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the oplog forgets the start", func() bool {
		noise(t, s.srcDB, 2)
		written := lastOp(t, s.srcDB) // a machine that is busy reads on before the oplog forgets that, too
		kit.Until(t, "the spool has what was written", func() bool {
			until, err := mongo.ParseOpTime(j.Status().Follow.SpooledTo)
			return err == nil && until.TS.Compare(written.TS) >= 0
		})
		var oldest struct {
			TS bson.Timestamp `bson:"ts"`
		}
		if err := s.srcDB.Database("local").Collection("oplog.rs").FindOne(t.Context(),
			bson.D{}).Decode(&oldest); err != nil {
			t.Fatal(err)
		}
		return begun.TS.Compare(oldest.TS) < 0
	})
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the first process ended with %v", err)
	}

	spec.Limits = pace.Rates{}
	if err := open(t, spec).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	target := s.targetC.Database("spool").Collection("c")
	for _, q := range []bson.D{{}, {{Key: "changed", Value: true}}} {
		want, err1 := coll.CountDocuments(t.Context(), q)
		got, err2 := target.CountDocuments(t.Context(), q)
		if err := errors.Join(err1, err2); err != nil || got != want || want == 0 {
			t.Errorf("%v: %d documents, want %d (%v)", q, got, want, err)
		}
	}
	if left, err := os.ReadDir(spec.SpoolDir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestYoungOplog: an oplog that is nearly empty holds what a copy needs, although it reaches back only seconds.
// Nothing is spooled, and neither the precheck nor the job warns, also where the job resumes.
func TestYoungOplog(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	s := servers{src: lab.ForTest(t, lab.Options{}), dst: lab.ForTest(t, lab.Options{})}
	s.srcDB, s.targetC = dial(t, s.src.URI()), dial(t, s.dst.URI())
	insert(t, s.srcDB, "young", 5000)
	var log logged
	spec := s.spec("young")
	spec.Job, spec.WarnWindow, spec.SpoolDir, spec.SpoolBytes = "young", 24*time.Hour, t.TempDir(), 1<<30
	spec.Limits, spec.Log = pace.Rates{Bytes: 1}, slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		j := open(t, spec)
		plan, err := j.Plan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range plan.Checks {
			if (c.Name == "oplog" || c.Name == "spool") && c.Level != precheck.OK {
				t.Errorf("precheck: %+v", c)
			}
		}
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx) }()
		kit.Until(t, "some looks at the oplog", func() bool {
			st := j.Status()
			return st.Phase == job.PhaseCopying && st.PhaseSeconds[job.PhaseCopying] > 12
		})
		if f := j.Status().Follow; f.WindowSeconds < 24*3600 || f.WindowHeld || f.SpoolBytes > 0 {
			t.Errorf("%+v", f)
		}
		stop()
		<-ended
	}
	for _, text := range []string{"level=WARN", "keeping them on local disk"} {
		if strings.Contains(log.String(), text) {
			t.Errorf("%q is logged:\n%s", text, &log)
		}
	}
}

// TestSpoolDamaged: a spool that cannot be read is no failure of the job while the
// oplog holds the changes; it says which file is damaged and what to do.
func TestSpoolDamaged(t *testing.T) {
	t.Parallel()
	s := servers{src: lab.ForTest(t, lab.Options{OplogMB: 8}), dst: lab.ForTest(t, lab.Options{})}
	s.srcDB, s.targetC = dial(t, s.src.URI()), dial(t, s.dst.URI())
	coll := s.srcDB.Database("spool").Collection("c")
	insert(t, s.srcDB, "spool", 5000)
	noise(t, s.srcDB, 8)

	var log logged
	spec := s.spec("spool")
	spec.Job, spec.WarnWindow, spec.SpoolDir, spec.SpoolBytes = "spooled", 1<<62, t.TempDir(), 1<<30
	spec.Limits, spec.Log = pace.Rates{Bytes: 1}, slog.New(slog.NewTextHandler(&log, nil))
	j := open(t, spec)
	ended := make(chan error, 1)
	go func() { ended <- j.Run(t.Context()) }()
	kit.Until(t, "spooling begins", func() bool { return j.Status().Follow.SpoolBytes > 0 })
	if _, err := coll.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "changed",
		Value: true}}}}); err != nil {
		t.Fatal(err)
	}
	last := lastOp(t, s.srcDB)
	kit.Until(t, "the changes are spooled", func() bool {
		to, err := mongo.ParseOpTime(j.Status().Follow.SpooledTo)
		return err == nil && !to.Before(last)
	})
	files, err := filepath.Glob(filepath.Join(spec.SpoolDir, "spooled", "*.spool"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damaged"), 40); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.SetLimits(t.Context(), pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	if n, err := s.targetC.Database("spool").Collection("c").CountDocuments(t.Context(),
		bson.D{{Key: "changed", Value: true}}); n != 5000 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	for _, want := range []string{files[0], "spool is damaged", "remove " + filepath.Dir(files[0])} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in\n%s", want, &log)
		}
	}
}

func dial(t *testing.T, uri string) *driver.Client {
	t.Helper()
	c, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// logged is a log that is read while it is written.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// noise writes megabytes that no job wants.
func noise(t *testing.T, c *driver.Client, mb int) {
	t.Helper()
	for range mb {
		if _, err := c.Database("noise").Collection("c").InsertOne(t.Context(), bson.D{{Key: "x", Value: strings.Repeat("x",
			1<<20)}}); err != nil {
			t.Fatal(err)
		}
	}
}
