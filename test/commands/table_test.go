package commands_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test"
	. "github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// The environment of these tests:
//
//	MILLRACE_CELLS        a regular expression of the cells to play, such as
//	                      '^rename-db/skip-insert/change$', or . for all; else make
//	                      matrix plays all, and make test some
//	MILLRACE_TEST_SEED    the seed of TestRandomCommands
//	MILLRACE_TEST_ROUNDS  how many jobs TestRandomCommands plays

// The phases in which commands are run.
const (
	inChange = "change" // the job follows
	inCopy   = "copy"   // hardly anything is copied
	copied   = "copied" // all is copied, and the copy goes on elsewhere
)

// Topologies of the lab.
const (
	oneMember, threeMembers = "rs:1", "rs:3"
	twoShards               = "sharded:2x1"
)

// limit bounds each wait for a job.
const limit = 3 * time.Minute

// bed is a pair of clusters.
type bed struct {
	source, target       *mongo.Client
	sourceURI, targetURI string
	lab, targetLab       *sharded.Cluster // the sides that are sharded
	from, into           *lab.Cluster     // the sides that are replica sets
	bin                  string
	runs                 atomic.Int64
	resharding           sync.Mutex   // servers reshard one collection at a time
	moving               sync.Mutex   // which of two renames between databases a drop ends is not logged
	calm                 sync.RWMutex // locked for reading by each command on the source
	commands             atomic.Int64 // that the source has run
	killed               string       // what the processes of a soak have logged
	points               *rand.Rand   // draws the failpoints of a soak
}

// newBed starts clusters of two topologies.
func newBed(t *testing.T, source, target string) *bed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{bin: test.BuildMillrace(t)}
	b.from, b.lab, b.sourceURI = side(t, source, kit.Via() == "routers")
	b.into, b.targetLab, b.targetURI = side(t, target, false)
	b.source, b.target = kit.Client(t, b.sourceURI), kit.Client(t, b.targetURI)
	return b
}

// side starts a cluster, which is one of the two. Its shards may refuse to be read directly.
func side(t *testing.T, topology string, refuse bool) (set *lab.Cluster, cluster *sharded.Cluster, uri string) {
	t.Helper()
	o := lab.Options{Topology: topology, TestCommands: true,
		SetParameters: map[string]string{"ttlMonitorEnabled": "false"}}
	if !sharded.Is(topology) {
		set = lab.ForTest(t, o)
		return set, nil, set.URI()
	}
	o.SetParameters = map[string]string{"orphanCleanupDelaySecs": "0"}
	cluster = sharded.ForTest(t, sharded.Options{Options: o, Routers: 1, RefuseDirect: refuse})
	config := kit.Client(t, cluster.ConfigURI())
	if err := config.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "setParameter", Value: 1}, {Key: "reshardingMinimumOperationDurationMillis",
			Value: 0}}).Err(); err != nil {
		t.Fatal(err)
	}
	return nil, cluster, cluster.URI()
}

// orphanPause is how long an update that an orphan refuses waits before it is tried again.
const orphanPause = 50 * time.Millisecond

// run runs a step on a side.
func (b *bed) run(ctx context.Context, on *mongo.Client, s Step) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	db, cmd := s.Command()
	if on == b.source {
		b.calm.RLock()
		defer b.calm.RUnlock()
		defer b.commands.Add(1)
	}
	ofDocuments := slices.Contains([]Op{Insert, Update, Replace, Delete}, s.Do)
	if (s.Do == Rename || s.Do == Drop || s.Do == DropDatabase || b.lab != nil && !ofDocuments) && on == b.source {
		b.moving.Lock()
		defer b.moving.Unlock()
		if s.Do == Rename { // an entry in the new database ends the doubt about which drop is the rename's
			defer func() { _ = b.entryIn(ctx, s.To) }()
		}
	}
	if s.Do == Shard {
		return b.lab.ShardCollection(ctx, s.NS, sharded.Sharding{Key: bson.D{{Key: "k", Value: "hashed"}}, Chunks: 4})
	}
	if s.Do == Reshard {
		b.resharding.Lock()
		defer b.resharding.Unlock()
	}
	if at, moves := s.Doc["_at"]; moves { // by a retryable write, as drivers do it
		ns, coll, _ := strings.Cut(s.NS, ".")
		q := bson.D{{Key: "_id", Value: s.ID}, {Key: "k", Value: at}}
		for {
			_, err := on.Database(ns).Collection(coll).UpdateOne(ctx, q, cmd[1].Value.(bson.A)[0].(bson.D)[1].Value)
			// A chunk that left the other shard may have left an orphan, which it deletes by itself.
			if err == nil || !strings.Contains(err.Error(), "There is either an orphan") || pace.Pause(ctx, orphanPause) != nil {
				return err
			}
		}
	}
	reply, err := on.Database(db).RunCommand(ctx, cmd).Raw()
	if err != nil {
		return err
	}
	if v, err := reply.LookupErr("writeErrors"); err == nil {
		return fmt.Errorf("%s", v)
	}
	if s.Do == DropDatabase && b.lab != nil {
		return b.lab.CreateDatabase(ctx, s.NS, b.lab.ShardNames()[0])
	}
	return nil
}

// entryIn has the source log an entry that changes nothing of a collection.
func (b *bed) entryIn(ctx context.Context, ns string) error {
	db, coll, _ := strings.Cut(ns, ".")
	return b.source.Database(db).RunCommand(ctx, bson.D{{Key: "collMod", Value: coll}}).Err()
}

// shard shards c of a play, where the source is sharded and the command is for sharded
// collections.
func (b *bed) shard(p *play) error {
	if b.lab == nil {
		return nil
	}
	if err := b.createDatabases(p); err != nil {
		return err
	}
	switch p.command.name {
	case "documents", "reused-ids", "rename", "rename-out", "rename-and-anew", "drop", "drop-and-anew", "drop-database",
		"move-documents", "reshard":
		p.world.Shard(p.ns("", "c"), "k_hashed")
		return b.lab.ShardCollection(p.ctx, p.ns("", "c"),
			sharded.Sharding{Key: bson.D{{Key: "k", Value: "hashed"}}, Chunks: 4})
	}
	return nil
}

// createDatabases makes those of a play on the first shard of both sides: routers rename
// between databases of one shard alone.
func (b *bed) createDatabases(p *play) error {
	for _, c := range []*sharded.Cluster{b.lab, b.targetLab} {
		if c == nil {
			continue
		}
		for _, db := range []string{p.base, p.base + "-x"} {
			if err := c.CreateDatabase(p.ctx, db, c.ShardNames()[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// cells are those of a topology and phases that the environment asks for.
func cells(t *testing.T, topology string, phases ...string) (out []cell) {
	t.Helper()
	chosen, err := regexp.Compile(os.Getenv("MILLRACE_CELLS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range phases {
		for _, set := range ruleSets() {
			for _, c := range commandList() {
				x := cell{c, set, phase}
				r := set.rules
				switch {
				case c.only != "" && c.only != topology:
				case kit.Streamed() && !x.streams(topology):
				case topology == "sharded" && (r.History || slices.Contains(r.Skip, "ttl")): // refused
				case !chosen.MatchString(x.String()):
				case os.Getenv("MILLRACE_CELLS") == "" && !lab.InMatrix() && !usual(x):
				default:
					out = append(out, x)
				}
			}
		}
	}
	return out
}

// usual are the cells that make test plays: each command under a few rules, each rule with
// a few commands, and renames that are skipped during the copy.
func usual(c cell) bool {
	if c.phase == inCopy {
		return c.set.name == "skip-rename" && strings.HasPrefix(c.command.name, "rename") && !c.alone()
	}
	names := func(list string, name string) bool { return slices.Contains(strings.Fields(list), name) }
	return c.phase == inChange && !c.alone() && (names("rename-db out-onto convert-to-capped", c.command.name) ||
		names("skip-insert soft-delete merge", c.set.name) && !names("map-reduce-onto map-reduce-new", c.command.name))
}

// TestCommands: every user command under every rule leaves the target as the model says.
func TestCommands(t *testing.T) {
	t.Parallel()
	table(t, "rs", oneMember, oneMember)
}

// TestCommandsOfSharded is TestCommands with a sharded source.
func TestCommandsOfSharded(t *testing.T) {
	t.Parallel()
	if !lab.InMatrix() && os.Getenv("MILLRACE_CELLS") == "" {
		t.Skip("make matrix plays it, and MILLRACE_CELLS")
	}
	table(t, "sharded", twoShards, oneMember)
}

// TestCommandsBetweenShards is TestCommands with shards on both sides.
func TestCommandsBetweenShards(t *testing.T) {
	t.Parallel()
	if !lab.InMatrix() && os.Getenv("MILLRACE_CELLS") == "" {
		t.Skip("make matrix plays it, and MILLRACE_CELLS")
	}
	table(t, "sharded", twoShards, twoShards)
}

// TestRandomCommands draws commands, under every rule and in every phase.
func TestRandomCommands(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	b := newBed(t, oneMember, oneMember)
	for round := range uint64(testseed.Rounds(t, 1)) {
		t.Logf("MILLRACE_TEST_SEED=%d", seed+round)
		for i, phase := range []string{inChange, inCopy, copied} {
			for _, merge := range []bool{false, true} {
				var all []cell
				for j, set := range ruleSets() {
					c := cell{command{name: fmt.Sprint("seed-", seed+round), seed: (seed+round)<<8 + uint64(i*50+j)}, set, phase}
					if set.rules.Merge == merge && (os.Getenv("MILLRACE_CELLS") == "" ||
						regexp.MustCompile(os.Getenv("MILLRACE_CELLS")).MatchString(c.String())) {
						all = append(all, c)
					}
				}
				b.report(t, b.inOne(t, all, 0))
			}
		}
		if t.Failed() {
			return
		}
	}
}

func table(t *testing.T, topology, source, target string) {
	all := cells(t, topology, inChange, inCopy, copied)
	if target == twoShards { // that rule is refused there, and no fail point holds back its copy
		all = slices.DeleteFunc(all, func(c cell) bool {
			return c.phase == copied ||
				slices.Contains(c.set.rules.Skip, "insert")
		})
	}
	if len(all) == 0 {
		t.Skip("no cell is chosen")
	}
	b := newBed(t, source, target)
	for _, phase := range []string{inChange, inCopy, copied} {
		// Histories have a job of their own, so that one that fails does not end the others.
		for _, kind := range []Rules{{}, {History: true}, {Merge: true}} {
			var together, alone []cell
			for _, c := range all {
				r := c.set.rules
				switch {
				case c.phase != phase || r.Merge != kind.Merge || r.History != kind.History:
				case c.alone():
					alone = append(alone, c)
				default:
					together = append(together, c)
				}
			}
			b.report(t, b.inOne(t, together, 0))
			b.report(t, b.stops(t, alone))
		}
	}
}

// finding is what is wrong with a cell.
type finding struct {
	play  *play
	wrong []string
}

// report has a test for each cell.
func (b *bed) report(t *testing.T, list []finding) {
	t.Helper()
	slices.SortFunc(list, func(a, b finding) int { return cmp.Compare(a.play.cell.String(), b.play.cell.String()) })
	for _, f := range list {
		t.Run(f.play.cell.String(), func(t *testing.T) {
			if len(f.wrong) > 0 {
				t.Errorf("%s\nwhat was done:\n  %s\nagain: MILLRACE_CELLS='^%s$' go test -count=1 -run '%s' ./test/commands",
					strings.Join(f.wrong, "\n"),
					strings.Join(f.play.log[max(0, len(f.play.log)-60):], "\n  "), f.play.cell, strings.Split(t.Name(), "/")[0])
			}
		})
	}
}

// inOne plays cells in one job. If it fails, it plays the cells that the failure does not
// name in other jobs.
func (b *bed) inOne(t *testing.T, cells []cell, depth int) (out []finding) {
	t.Helper()
	if len(cells) == 0 {
		return nil
	}
	var plays []*play
	var output string
	var err error
	began := time.Now()
	t.Run("job", func(t *testing.T) {
		plays = b.plays(t.Context(), cells)
		output, err = b.job(t, plays)
		if err == nil {
			out, err = compare(t.Context(), plays)
		}
	})
	t.Logf("%d cells in %.1f s: %v", len(cells), time.Since(began).Seconds(), err)
	if err == nil {
		return out
	}
	if len(cells) == 1 {
		return []finding{{plays[0], []string{fmt.Sprintf("the job: %v\n%s", err, tail(output))}}}
	}
	if depth == 0 && len(cells) > 30 { // one job for each rule
		for _, set := range ruleSets() {
			of := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.set.name != set.name })
			out = append(out, b.inOne(t, of, 1)...)
		}
		return out
	}
	if p := blamed(plays, lastError(output)); p != nil {
		i := slices.Index(plays, p)
		out = b.inOne(t, slices.Delete(slices.Clone(cells), i, i+1), depth+1)
		return append(out, finding{p, []string{fmt.Sprintf("the job: %v\n%s", err, lastError(output))}})
	}
	half := len(cells) / 2
	return append(b.inOne(t, cells[:half], depth+1), b.inOne(t, cells[half:], depth+1)...)
}

// compare compares the target with the model, cell by cell.
func compare(ctx context.Context, plays []*play) (out []finding, err error) {
	for _, p := range plays {
		if p.err != nil {
			out = append(out, finding{p, []string{"the play itself: " + p.err.Error()}})
			continue
		}
		diffs, err := p.differences(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, finding{p, diffs})
	}
	return out, nil
}

// plays gives cells names of their own on both sides.
func (b *bed) plays(ctx context.Context, cells []cell) (out []*play) {
	run := b.runs.Add(1)
	number := map[string]int{}
	for i, set := range ruleSets() {
		number[set.name] = i
	}
	for i, c := range cells {
		ruled := fmt.Sprintf("t%dr%d%s", run, number[c.set.name], map[string]string{"*": "a", "?": "n"}[c.pattern()])
		p := &play{cell: c, ctx: ctx, bed: b, base: fmt.Sprint(ruled, i)}
		p.world = New(func(ns string) Rules {
			r := c.set.rules
			if !strings.HasPrefix(ns, ruled) {
				r = Rules{Merge: r.Merge}
			}
			return r
		}, func(ns string) bool { return !strings.HasSuffix(ns, "."+excluded) })
		p.world.Shards = b.targetLab != nil
		out = append(out, p)
	}
	return out
}

// stops plays cells in which the job has to end, each in a job of its own.
func (b *bed) stops(t *testing.T, cells []cell) []finding {
	t.Helper()
	out := make([]finding, len(cells))
	var g errgroup.Group
	g.SetLimit(2)
	for i, c := range cells {
		g.Go(func() error {
			t.Run("job", func(t *testing.T) {
				p := b.plays(t.Context(), []cell{c})[0]
				out[i] = finding{p, b.stop(t, p)}
			})
			return nil
		})
	}
	_ = g.Wait()
	return out
}

// stop plays one cell, and starts the job again.
func (b *bed) stop(t *testing.T, x *play) (wrong []string) {
	t.Helper()
	plays := []*play{x}
	output, err := b.job(t, plays)
	for turn := 0; ; turn++ {
		named := strings.Contains(lastError(output), x.base+".") || strings.Contains(lastError(output), "free-"+x.base+".")
		switch {
		case x.err != nil || x.world.Stops == "":
			return append(wrong, fmt.Sprintf("the play itself: %v, the job: %v", x.err, err))
		case err == nil:
			wrong = append(wrong, fmt.Sprintf("run %d of the job ends well, though %s must not become capped", turn+1,
				x.world.Stops))
		case !strings.Contains(err.Error(), "exit status ") && !strings.HasPrefix(err.Error(), "finalize: "):
			wrong = append(wrong, fmt.Sprintf("run %d of the job: %v\n%s", turn+1, err, tail(output)))
		case !named:
			wrong = append(wrong, fmt.Sprintf("run %d of the job does not name %s: %s", turn+1, x.world.Stops,
				lastError(output)))
		}
		if turn == 2 {
			break
		}
		p := test.Start(t, b.bin, append(b.args(plays), "--until", "caught-up")...)
		err = p.Wait(limit)
		output = p.Output()
	}
	diffs, err := x.differences(t.Context())
	if err != nil {
		diffs = []string{err.Error()}
	}
	// The job ends amid the command: what the server has filled for it is on the target.
	filled := regexp.MustCompile(`\.tmp.{5}\.(renameCollection|convertToCapped\.c) is on the target`)
	diffs = slices.DeleteFunc(diffs, filled.MatchString)
	if x.phase != inChange { // a job may end before all is copied
		diffs = slices.DeleteFunc(diffs, func(d string) bool { return !strings.Contains(d, "capped is") })
	}
	return append(wrong, diffs...)
}
