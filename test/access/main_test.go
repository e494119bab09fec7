package access

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
)

// sides are the clusters that all tests share, both with users and, where it is to be had, TLS, and
// root's clients of them.
type sides struct {
	source, target     *lab.Cluster
	sourceDB, targetDB *driver.Client
}

var shared sides

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: these tests need servers")
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err := shared.start(ctx)
	defer shared.stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func (s *sides) start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	start := func(cluster **lab.Cluster, client **driver.Client) {
		g.Go(func() (err error) {
			o := lab.Options{Auth: true, TLS: true, LeanJournal: true, Version: os.Getenv("MILLRACE_TEST_VERSION")}
			if *cluster, err = lab.Start(gctx, o); errors.Is(err, lab.ErrNoTLS) {
				o.TLS = false // and the tests that need it are skipped
				*cluster, err = lab.Start(gctx, o)
			}
			if err != nil {
				return err
			}
			*client, err = driver.Connect(options.Client().ApplyURI((*cluster).URI()))
			return err
		})
	}
	start(&s.source, &s.sourceDB)
	start(&s.target, &s.targetDB)
	return g.Wait()
}

func (s *sides) stop() {
	var errs []error
	for _, client := range []*driver.Client{s.sourceDB, s.targetDB} {
		if client != nil {
			errs = append(errs, client.Disconnect(context.Background()))
		}
	}
	for _, cluster := range []*lab.Cluster{s.source, s.target} {
		if cluster != nil {
			errs = append(errs, cluster.Stop())
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// account is a user of database admin.
type account struct{ name, password string }

// uri is a cluster's connection string with the account in place of root.
func (a account) uri(c *lab.Cluster) string {
	_, rest, _ := strings.Cut(c.URI(), "@")
	// A query escape writes a space as +, which connection strings do not know.
	escape := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	return "mongodb://" + escape(a.name) + ":" + escape(a.password) + "@" + rest
}

// reset empties both sides.
func reset(t *testing.T) {
	t.Helper()
	var g errgroup.Group
	for _, c := range []*driver.Client{shared.sourceDB, shared.targetDB} {
		dbs, err := c.ListDatabaseNames(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		for _, db := range dbs {
			switch db {
			case "admin", "config", "local":
			default:
				g.Go(func() error { return c.Database(db).Drop(t.Context()) })
			}
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// rules of most jobs here: what does not fit them comes and goes by renames.
func rules() transform.Config {
	return transform.Config{Include: []string{"acc*"}, Exclude: []string{"acc.out*"}}
}

// spec is a job between two users.
func spec(source, target string, log io.Writer) job.Spec {
	return job.Spec{
		Source: source, Target: target, Mode: job.ModeAll, Rules: rules(), OnExisting: job.ExistingFail,
		Deps: job.Deps{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))},
	}
}

// load empties both sides and loads the source.
func load(t *testing.T) {
	t.Helper()
	reset(t)
	if err := setup(t.Context(), shared.sourceDB); err != nil {
		t.Fatal(err)
	}
	// On the target, too, there may be what is no business of the job.
	if _, err := shared.targetDB.Database("other").Collection("d").InsertOne(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
}

// wholeJob runs the copy of everything, all changes while following, and the
// cut-over.
func wholeJob(t *testing.T, s job.Spec) error {
	t.Helper()
	load(t)
	_, err := attempt(t, s, true, func(ctx context.Context) {
		if err := change(ctx, shared.sourceDB); err != nil {
			t.Fatal(err)
		}
	})
	return err
}

// attempt runs a job to where it follows, does something, and ends it: finalized, or stopped.
func attempt(t *testing.T, s job.Spec, finalize bool, meanwhile func(context.Context)) (end job.Status, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	j, err := job.Open(ctx, s)
	if err != nil {
		return end, err
	}
	defer j.Close()
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	for j.Status().Phase != job.PhaseFollowing {
		select {
		case err := <-done:
			done <- err
			return end, fmt.Errorf("the job ended in phase %s: %w", j.Status().Phase, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	if meanwhile(ctx); finalize {
		err = j.Finalize(ctx, false)
	}
	return j.Status(), err
}

// succeeds runs a whole job between two users, which must end with an identical
// target, and returns its log.
func succeeds(t *testing.T, source, target string) string {
	t.Helper()
	log := finishes(t, source, target)
	report, err := verify.Clusters(t.Context(), verify.Spec{Source: source, Target: target, Rules: rules()})
	if err != nil {
		t.Errorf("verify: %v", err)
	} else if !report.Same {
		t.Error("verify finds differences")
	}
	if t.Failed() {
		t.Log(log)
	}
	return log
}

// finishes is succeeds without a look by the users themselves.
func finishes(t *testing.T, source, target string) string {
	t.Helper()
	var log strings.Builder
	if err := wholeJob(t, spec(source, target, &log)); err != nil {
		t.Fatalf("%v (hint: %s)\n%s", err, mongo.HintOf(err), log.String())
	}
	same(t, func(string) bool { return true })
	return log.String()
}

// same wants the target to have what a job was to keep.
func same(t *testing.T, keep func(ns string) bool) {
	t.Helper()
	diffs, err := test.Compare(t.Context(), shared.sourceDB, shared.targetDB, test.CompareOptions{
		Source: func(ns string) bool {
			return strings.HasPrefix(ns, "acc") && !strings.HasPrefix(ns, "acc.out") && keep(ns)
		},
		Target: func(ns string) bool { return !strings.HasPrefix(ns, "other.") },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Error(d)
	}
}
