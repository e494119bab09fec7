package job_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// mostUnderLow is how many connections a side whose load is low has to a server: six, and one
// more where nothing moves for seconds, as on a busy machine (wire.Pool.Limit).
const mostUnderLow = 7

// TestFewConnections counts the connections of both sides of a job, from its first question
// to its end.
func TestFewConnections(t *testing.T) {
	s := start(t)
	t.Run("low", func(t *testing.T) { testFewConnections(t, s) })
	t.Run("lower", func(t *testing.T) { testFewerConnections(t, s) })
}

func testFewConnections(t *testing.T, s servers) {
	const db, colls, docs = "few", 12, 400
	fillUnique(t, s, db, colls, docs)
	var phase phases
	source, target := watch(t, s.src.URI(), phase.now), watch(t, s.dst.URI(), phase.now)
	spec := s.spec(db)
	spec.Until, spec.SpoolDir, spec.SpoolBytes = "", t.TempDir(), 64<<20
	spec.Loads = pace.Loads{Source: pace.Low, Target: pace.Low}
	spec.Limits = pace.Rates{Docs: colls * docs / 4}
	j := open(t, spec)
	phase.of(j)
	ended := make(chan error, 1)
	go func() { ended <- j.Run(t.Context()) }()
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	for i := range colls {
		c := s.srcDB.Database(db).Collection(fmt.Sprintf("c%d", i))
		addUnique(t, c, docs, docs+200)
		moveUnique(t, s.srcDB, c)
	}
	if err := s.srcDB.Database(db).Collection("c0").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the changes are applied", func() bool {
		names, err := s.targetC.Database(db).ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: "c0"}})
		return err == nil && len(names) == 0
	})
	if err := j.Finalize(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "what is left at the end is counted", func() bool {
		return source.counted(job.PhaseFinalized) &&
			target.counted(job.PhaseFinalized)
	})
	for side, peaks := range map[string]map[job.Phase]peak{"source": source.end(t), "target": target.end(t)} {
		for _, phase := range []job.Phase{job.PhaseStarting, job.PhaseCopying, job.PhaseFollowing, job.PhaseFinalized} {
			if peaks[phase].samples == 0 {
				t.Errorf("%s: nothing was counted while %s", side, phase)
			}
		}
		for phase, p := range peaks {
			t.Logf("%s, %s: %d connections (%d samples)", side, phase, p.count, p.samples)
			if p.count > mostUnderLow {
				t.Errorf("%s: %d connections while %s, at most %d are right:\n%s", side, p.count, phase, mostUnderLow, p.who)
			}
		}
	}
}

// testFewerConnections: a job whose loads become low while it runs has few connections once
// those have ended that it does not use.
func testFewerConnections(t *testing.T, s servers) {
	lab.Nightly(t) // unused ones end after a minute
	const db, docs = "fewer", 2000
	fillUnique(t, s, db, 4, docs)
	j, _ := running(t, s.spec(db))
	if err := j.SetLoads(t.Context(), pace.Loads{Source: pace.Low, Target: pace.Low}); err != nil {
		t.Fatal(err)
	}
	addUnique(t, s.srcDB.Database(db).Collection("c1"), docs, 2*docs) // what is in use is used once more
	kit.Until(t, "both sides have few connections", func() bool {
		for _, client := range []*driver.Client{s.srcDB, s.targetC} {
			all, err := list(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) > mostUnderLow {
				return false
			}
		}
		return true
	})
	same := s.targetC.Database(db).Collection("c1")
	kit.Until(t, "the changes are applied", func() bool {
		n, err := same.CountDocuments(t.Context(), bson.D{})
		return err == nil && n == 2*docs
	})
}

// fillUnique makes collections with a unique index and another one, c0 and so on.
func fillUnique(t *testing.T, s servers, db string, colls, docs int) {
	t.Helper()
	for i := range colls {
		c := s.srcDB.Database(db).Collection(fmt.Sprintf("c%d", i))
		for _, unique := range []bool{false, true} {
			key := bson.D{{Key: fmt.Sprintf("u%t", unique), Value: 1}}
			if _, err := c.Indexes().CreateOne(t.Context(),
				driver.IndexModel{Keys: key, Options: options.Index().SetUnique(unique)}); err != nil {
				t.Fatal(err)
			}
		}
		addUnique(t, c, 0, docs)
	}
}

// addUnique inserts documents that differ in the field of the unique index.
func addUnique(t *testing.T, c *driver.Collection, from, to int) {
	t.Helper()
	var all []any
	for i := from; i < to; i++ {
		all = append(all, bson.D{{Key: "_id", Value: i}, {Key: "utrue", Value: i},
			{Key: "pad", Value: strings.Repeat("x", 1000)}})
	}
	if _, err := c.InsertMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

// moveUnique hands the value of the unique index from one document to another, within a
// transaction and without one.
func moveUnique(t *testing.T, client *driver.Client, c *driver.Collection) {
	t.Helper()
	move := func(ctx context.Context, from, to int) error {
		for _, step := range [][2]int{{to, -1 - to}, {from, to}} {
			if _, err := c.UpdateByID(ctx, step[0], bson.D{{Key: "$set",
				Value: bson.D{{Key: "utrue", Value: step[1]}}}}); err != nil {
				return err
			}
		}
		return nil
	}
	err := client.UseSession(t.Context(), func(ctx context.Context) error {
		_, err := driver.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			return nil,
				move(ctx, 1, 2)
		})
		return err
	})
	if err == nil {
		err = move(t.Context(), 3, 4)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// phases tells the phase of a job that is not there yet.
type phases struct {
	mu sync.Mutex
	j  *job.Job
}

func (p *phases) of(j *job.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.j = j
}

func (p *phases) now() job.Phase {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.j == nil {
		return job.PhaseStarting
	}
	return p.j.Status().Phase
}

// peak is the most connections that were counted in one phase.
type peak struct {
	count, samples int
	who            string
}

// connections counts those that jobs have to a server.
type connections struct {
	client *driver.Client
	phase  func() job.Phase
	stop   context.CancelFunc
	done   chan error

	mu    sync.Mutex
	peaks map[job.Phase]peak
}

// watch begins to count.
func watch(t *testing.T, uri string, phase func() job.Phase) *connections {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &connections{client: kit.Client(t, uri), phase: phase, stop: stop, done: make(chan error, 1),
		peaks: map[job.Phase]peak{}}
	go func() { c.done <- c.sample(ctx) }()
	return c
}

// sample counts until ctx ends.
func (c *connections) sample(ctx context.Context) error {
	for ctx.Err() == nil {
		phase := c.phase()
		all, err := list(ctx, c.client)
		if err != nil {
			return err
		}
		c.count(phase, all)
	}
	return nil
}

func (c *connections) count(phase job.Phase, all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peaks[phase]
	p.samples++
	if len(all) > p.count {
		p.count, p.who = len(all), strings.Join(all, "\n")
	}
	c.peaks[phase] = p
}

// counted reports whether the connections were counted in a phase.
func (c *connections) counted(phase job.Phase) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peaks[phase].samples > 0
}

// end stops counting and returns the peaks.
func (c *connections) end(t *testing.T) map[job.Phase]peak {
	t.Helper()
	c.stop()
	if err := <-c.done; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return c.peaks
}

// list tells of each connection that jobs have to a server what it does.
func list(ctx context.Context, client *driver.Client) (lines []string, err error) {
	cur, err := client.Database("admin").Aggregate(ctx, bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^millrace"}}},
			{Key: "connectionId", Value: bson.D{{Key: "$exists", Value: true}}}}}},
	})
	if err != nil {
		return nil, err
	}
	var all []struct {
		App     string `bson:"appName"`
		Desc    string `bson:"desc"`
		Command bson.D `bson:"command"`
	}
	if err := cur.All(ctx, &all); err != nil {
		return nil, err
	}
	for _, one := range all {
		command := fmt.Sprint(one.Command)
		lines = append(lines, fmt.Sprintf("%s, %s: %s", one.App, one.Desc, command[:min(len(command), 120)]))
	}
	slices.Sort(lines)
	return lines, nil
}
