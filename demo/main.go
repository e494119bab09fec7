// Command demo shows millrace at work on two real replica sets of its own: it
// loads data of several kinds, keeps writing while `millrace sync` copies and
// follows, cuts over right after a burst of writes, and proves that nothing
// differs. Everything it starts ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/verify"
)

// mongodVersion is the series that the demo runs on.
const mongodVersion = "6.0"

// demo is one run: its flags, and fields that fill up from step to step.
type demo struct {
	millrace      string
	members, docs int
	follow        time.Duration

	out   *log.Logger // the demo's own lines
	began time.Time

	source, target     *lab.Cluster
	sourceDB, targetDB *mongo.Client
	dir                string // of everything that millrace would keep in the home directory

	loaded, sessions int64 // documents; those that may expire
	expired          int64 // gone by their time
	writes           *writers
	burstTook        time.Duration
	move             *move
	report           verify.Report
	hashed           int      // collections whose dbHash was compared
	unequal          []string // those whose dbHash differs
}

func main() {
	d := &demo{out: log.New(os.Stdout, "", 0), began: time.Now()}
	flag.StringVar(&d.millrace, "millrace", "bin/millrace", "the program to show")
	flag.IntVar(&d.members, "members", 3, "members of the source replica set; the target has one")
	flag.IntVar(&d.docs, "docs", 200_000, "documents to load, about")
	flag.DurationVar(&d.follow, "follow", 5*time.Second, "how long to follow before the cut-over")
	flag.Parse()
	os.Exit(d.run())
}

// run returns the exit code: 0 when the target is the same as the source.
func (d *demo) run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	err, left := d.show(ctx), d.close()
	switch {
	case err == nil && left == nil:
		return 0
	case ctx.Err() != nil && left == nil:
		fmt.Fprintln(os.Stderr, "demo: stopped; nothing is left running")
	default:
		fmt.Fprintln(os.Stderr, "demo:", errors.Join(err, left))
	}
	return 1
}

// show runs the demo from the clusters' start to the summary.
func (d *demo) show(ctx context.Context) error {
	if err := inTurn(ctx, d.startClusters, d.load, d.moveUnderWrites, d.compare); err != nil {
		return err
	}
	return d.summary()
}

// inTurn takes one step after the other until one fails.
func inTurn(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startClusters fetches mongod, if there is none yet, and starts both sets.
func (d *demo) startClusters(ctx context.Context) error {
	fetching := time.AfterFunc(time.Second, func() { d.out.Printf("Fetching mongod %s, this once", mongodVersion) })
	_, _, err := lab.Mongod(ctx, mongodVersion)
	fetching.Stop()
	if err != nil {
		return err
	}
	d.began = time.Now()
	g, gctx := errgroup.WithContext(ctx)
	start := func(name string, members int, cluster **lab.Cluster, client **mongo.Client) {
		g.Go(func() (err error) {
			*cluster, err = lab.Start(gctx, lab.Options{
				Name: name, Topology: fmt.Sprintf("rs:%d", members), Version: mongodVersion,
				// Expired documents go within a second, not a minute, as the demo is short.
				SetParameters: map[string]string{"ttlMonitorSleepSecs": "1"}})
			if err != nil {
				return err
			}
			// Writes do not wait for the majority, so that the oplog has an end
			// that is not yet committed, as it is in the worst case.
			*client, err = mongo.Connect(options.Client().ApplyURI((*cluster).URI()).SetWriteConcern(writeconcern.W1()))
			return err
		})
	}
	start("source", d.members, &d.source, &d.sourceDB)
	start("target", 1, &d.target, &d.targetDB)
	if err := g.Wait(); err != nil {
		return err
	}
	d.out.Printf("Two replica sets are up: source with %d members, target with 1 (%s)", d.members, since(d.began))
	d.dir = filepath.Join(d.target.Dir(), "demo")
	return os.MkdirAll(d.dir, 0o700)
}

// close ends the servers.
func (d *demo) close() (err error) {
	for _, cluster := range []*lab.Cluster{d.source, d.target} {
		if cluster != nil {
			err = errors.Join(err, cluster.Stop())
		}
	}
	return err
}

// poll asks ten times a second until the answer is yes.
func poll(ctx context.Context, met func() (bool, error)) error {
	for {
		if ok, err := met(); ok || err != nil {
			return err
		}
		if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func since(began time.Time) string { return seconds(time.Since(began)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
