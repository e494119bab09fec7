// Command demo shows millrace at work on two real replica sets of its own. It loads data of several kinds, and
// keeps writing while `millrace sync` copies and follows. It cuts over right after a burst of writes, and proves
// that nothing differs. With --service the same is a job of `millrace serve`, which has one more worker. Everything
// it starts ends with it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// mongodVersion is the series that the demo runs on.
const mongodVersion = "6.0"

// demo is one run: its flags, and fields that fill up from step to step.
type demo struct {
	millrace       string
	source, target side
	docs           int
	follow         time.Duration
	service, back  bool
	files          *byFiles // nil is a copy of documents
	capture, via   string

	out   *log.Logger  // the demo's own lines
	later bytes.Buffer // of those what waits until nobody draws on the terminal
	began time.Time
	dir   string // of everything that millrace would keep in the home directory

	scripted
	kinds     map[string]kind // by their namespaces
	job       string
	series    string // of what writers insert
	changed   int    // schema changes so far
	loaded    int64  // documents
	expired   int64  // of these, by their time
	writes    *writers
	burstTook time.Duration
	watched
	finalizeTook time.Duration
	report       verify.Report
	hashed       int      // collections whose dbHash was compared
	unequal      []string // those whose dbHash differs
}

// side is the source or the target: a replica set, or a sharded cluster with two routers.
type side struct {
	name, topology string
	cluster        interface {
		URI() string
		Stop() error
	}
	client *mongo.Client
}

func main() {
	d := &demo{kinds: map[string]kind{}, out: log.New(os.Stdout, "", 0), began: time.Now(), job: "demo", series: "new"}
	flag.StringVar(&d.millrace, "millrace", "bin/millrace", "the program to show")
	flag.StringVar(&d.source.topology, "source", "rs:3",
		"topology of the source: rs:3 is a replica set of three members, sharded:3x1 three shards of one")
	flag.StringVar(&d.target.topology, "target", "rs:1", "topology of the target")
	flag.IntVar(&d.docs, "docs", 200_000, "documents to load, about")
	flag.DurationVar(&d.follow, "follow", 5*time.Second, "how long to follow before the cut-over")
	flag.StringVar(&d.capture, "capture", "auto", "how changes are read: auto, oplog or change-streams")
	flag.StringVar(&d.via, "via", "auto", "which servers of a sharded source are read: auto, shards or routers")
	flag.BoolVar(&d.service, "service", false, "have the service run the job, with one more worker")
	flag.BoolVar(&d.back, "back", false, "then go back to the source by millrace reverse, and to the target again")
	files := flag.Bool("files", false, "copy by files into three new members; by documents too, for the time")
	flag.Parse()
	if *files {
		var err error
		if d.files, err = planFiles(); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			os.Exit(1)
		}
	}
	os.Exit(d.run())
}

// run returns the exit code: 0 when the target is the same as the source.
func (d *demo) run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	err := inTurn(ctx, d.startClusters, d.load, d.move, d.compare, d.logicalWay, d.summary, d.goBack)
	left := d.close()
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

// inTurn takes one step after the other until one fails.
func inTurn(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startClusters fetches mongod, if there is none yet, and starts both sides.
func (d *demo) startClusters(ctx context.Context) error {
	fetching := time.AfterFunc(time.Second, func() { d.out.Printf("Fetching mongod %s, this once", mongodVersion) })
	_, _, err := lab.Mongod(ctx, mongodVersion)
	fetching.Stop()
	if err != nil {
		return err
	}
	d.began = time.Now()
	d.source.name, d.target.name = "source", "target"
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.source.start(gctx) })
	g.Go(func() error {
		if d.files == nil {
			return d.target.start(gctx)
		}
		d.target.topology, d.target.cluster = fmt.Sprintf("%d new members by files", filesMembers), d.files
		return d.target.connect()
	})
	if err := g.Wait(); err != nil {
		return err
	}
	d.out.Printf("Two clusters are up: source %s, target %s (%s)", d.source.topology, d.target.topology, since(d.began))
	d.dir, err = os.MkdirTemp("", "millrace-demo-")
	return err
}

func (s *side) start(ctx context.Context) (err error) {
	o := lab.Options{
		Name: s.name, Topology: s.topology, Version: mongodVersion,
		ElectionTimeout: 30 * time.Second, // no primary is to change because the machine is busy
		// Expired documents go within a second, not a minute, as the demo is short.
		SetParameters: map[string]string{"ttlMonitorSleepSecs": "1"}}
	if sharded.Is(s.topology) {
		// A chunk comes back only to a shard that has cleaned up after it.
		o.SetParameters["orphanCleanupDelaySecs"] = "0"
		o.LeanJournal, o.CacheGB = true, 0.25 // there are many of them
		s.cluster, err = sharded.Start(ctx, sharded.Options{Options: o, Routers: 2})
	} else {
		s.cluster, err = lab.Start(ctx, o)
	}
	if err != nil {
		s.cluster = nil // not a nil pointer in an interface
		return err
	}
	return s.connect()
}

func (s *side) connect() (err error) {
	// Writes do not wait for the majority, so that the end of the oplog is not yet committed.
	s.client, err = mongo.Connect(options.Client().ApplyURI(s.cluster.URI()).SetWriteConcern(writeconcern.W1()))
	return err
}

// close ends the servers.
func (d *demo) close() (err error) {
	for _, s := range []side{d.source, d.target} {
		if s.cluster != nil {
			err = errors.Join(err, s.cluster.Stop())
		}
	}
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}

// run runs a command, given as extended JSON with verbs of fmt in it.
func run(ctx context.Context, db *mongo.Database, command string, args ...any) error {
	var parsed bson.D
	if err := bson.UnmarshalExtJSON(fmt.Appendf(nil, command, args...), false, &parsed); err != nil {
		return fmt.Errorf("read %s: %w", command, err)
	}
	return db.RunCommand(ctx, parsed).Err()
}

// poll asks some times a second until the answer is yes.
func poll(ctx context.Context, met func() (bool, error)) error {
	for {
		if ok, err := met(); ok || err != nil {
			return err
		}
		if err := pace.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func since(began time.Time) string { return seconds(time.Since(began)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
