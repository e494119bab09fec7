package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/verify"
)

// mongodVersion is the series that the demo runs on.
const mongodVersion = "6.0"

// demo is one run; its fields fill up from step to step.
type demo struct {
	settings
	out   *teller
	began time.Time

	source, target     *lab.Cluster
	sourceDB, targetDB *mongo.Client
	dir                string // of everything that millrace would keep in the home directory

	upTook, loadTook  time.Duration
	loaded            int64
	sessions, expired int64 // loaded, and gone by their time
	writes            *writers
	burst             burst
	move              *move
	report            verify.Report
	hashed            hashes
}

// startClusters fetches mongod, if there is none yet, and starts both sets.
func (d *demo) startClusters(ctx context.Context) error {
	fetching := time.AfterFunc(time.Second, func() { d.out.say("Fetching mongod %s, this once", mongodVersion) })
	_, _, err := lab.Mongod(ctx, mongodVersion)
	fetching.Stop()
	if err != nil {
		return err
	}
	d.began = time.Now()
	g, gctx := errgroup.WithContext(ctx)
	start := func(name, topology string, cluster **lab.Cluster, client **mongo.Client) {
		g.Go(func() (err error) {
			*cluster, err = lab.Start(gctx, lab.Options{Name: name, Topology: topology, Version: mongodVersion,
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
	start("source", fmt.Sprintf("rs:%d", d.members), &d.source, &d.sourceDB)
	start("target", "rs:1", &d.target, &d.targetDB)
	if err := g.Wait(); err != nil {
		return err
	}
	d.dir = filepath.Join(d.target.Dir(), "demo")
	d.upTook = time.Since(d.began)
	d.out.say("Two replica sets are up: source with %d members, target with 1 (%s)", d.members, seconds(d.upTook))
	return os.MkdirAll(d.dir, 0o700)
}

// close ends whatever was started.
func (d *demo) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	for _, client := range []*mongo.Client{d.sourceDB, d.targetDB} {
		if client != nil {
			errs = append(errs, client.Disconnect(ctx))
		}
	}
	for _, cluster := range []*lab.Cluster{d.source, d.target} {
		if cluster != nil {
			errs = append(errs, cluster.Stop())
		}
	}
	return errors.Join(errs...)
}

// moveUnderWrites lets millrace copy and follow while the writers are at work,
// and cuts over.
func (d *demo) moveUnderWrites(ctx context.Context) (err error) {
	d.writes = startWriters(ctx, d.sourceDB)
	defer func() { err = errors.Join(err, d.writes.stop()) }()
	d.out.say("Writers at work: inserts, updates, deletes, transactions, traded unique keys, schema changes")

	d.move, err = startMove(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.move.close()) }()
	if err := d.move.await(ctx, followsFor(d.follow)); err != nil {
		return err
	}
	if err := d.awaitExpiry(ctx); err != nil {
		return err
	}
	if d.burst, err = writeBurst(ctx, d.sourceDB); err != nil {
		return err
	}
	if err := d.writes.stop(); err != nil {
		return err
	}
	return d.move.finalize(ctx)
}
