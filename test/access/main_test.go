package access

import (
	"context"
	"errors"
	"flag"
	"fmt"
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

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/replicate"
	"github.com/millrace/millrace/internal/rule"
	"github.com/millrace/millrace/test"
)

// sides are the clusters that all tests share, both with users and TLS, and
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
			if *cluster, err = lab.Start(gctx, lab.Options{Auth: true, TLS: true, Version: os.Getenv("MILLRACE_TEST_VERSION")}); err != nil {
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

// reset empties both sides and loads the source.
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

// rules of all jobs here: what does not fit them comes and goes by renames.
func rules() rule.Config {
	return rule.Config{Include: []string{"acc*"}, Exclude: []string{"acc.out*"}}
}

// job runs a whole job between two users: the copy of everything, all changes
// while following, the cut-over, and verification.
func job(t *testing.T, source, target string) (log string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	reset(t)
	if err := setup(ctx, shared.sourceDB); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	defer func() { log = out.String() }()
	j, err := replicate.Open(ctx, replicate.Spec{
		Source: source, Target: target, Mode: replicate.ModeAll, Rules: rules(),
		OnExisting: replicate.ExistingFail, Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	if err != nil {
		return "", err
	}
	defer j.Close()
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	for j.Status().Phase != replicate.PhaseFollowing {
		select {
		case err := <-done:
			return "", fmt.Errorf("the job ended in phase %s: %w", j.Status().Phase, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	if err := change(ctx, shared.sourceDB); err != nil {
		cancel()
		<-done
		t.Fatal(err)
	}
	err = j.Finalize(ctx)
	cancel()
	<-done
	return "", err
}

// same compares what a job was to keep.
func same(t *testing.T) []test.Difference {
	t.Helper()
	keep := func(ns string) bool { return strings.HasPrefix(ns, "acc") && !strings.HasPrefix(ns, "acc.out") }
	diffs, err := test.Compare(t.Context(), shared.sourceDB, shared.targetDB, test.CompareOptions{Source: keep})
	if err != nil {
		t.Fatal(err)
	}
	return diffs
}
