// Command demo shows millrace at work on two real replica sets of its own: it
// loads data of several kinds, keeps writing while `millrace sync` copies and
// follows, cuts over right after a burst of writes, and proves that nothing
// differs. With --service the same is a job of `millrace serve`, which has one more
// worker. Everything it starts ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/workshop/lab"
)

// mongodVersion is the series that the demo runs on.
const mongodVersion = "6.0"

// demo is one run: its flags, and fields that fill up from step to step.
type demo struct {
	millrace string
	from, to string // topologies
	docs     int
	follow   time.Duration
	service  bool

	out   *log.Logger // the demo's own lines
	began time.Time

	source, target     cluster
	sourceDB, targetDB *mongo.Client
	dir                string // of everything that millrace would keep in the home directory
	moved              *moves

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
	flag.StringVar(&d.from, "source", "rs:3", "topology of the source: rs:3 is a replica set of three members, sharded:3x1 three shards of one")
	flag.StringVar(&d.to, "target", "rs:1", "topology of the target")
	flag.IntVar(&d.docs, "docs", 200_000, "documents to load, about")
	flag.DurationVar(&d.follow, "follow", 5*time.Second, "how long to follow before the cut-over")
	flag.BoolVar(&d.service, "service", false, "have the service run the job, with one more worker")
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
	move := d.moveUnderWrites
	if d.service {
		move = d.serveUnderWrites
	}
	if err := inTurn(ctx, d.startClusters, d.load, move, d.compare); err != nil {
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
	g.Go(func() (err error) {
		d.source, d.sourceDB, err = d.startCluster(gctx, "source", d.from)
		return err
	})
	g.Go(func() (err error) {
		d.target, d.targetDB, err = d.startCluster(gctx, "target", d.to)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	d.out.Printf("Two clusters are up: source %s, target %s (%s)", d.from, d.to, since(d.began))
	d.dir, err = os.MkdirTemp("", "millrace-demo-")
	return err
}

// close ends the servers.
func (d *demo) close() (err error) {
	for _, cluster := range []cluster{d.source, d.target} {
		if cluster != nil {
			err = errors.Join(err, cluster.Stop())
		}
	}
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
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
