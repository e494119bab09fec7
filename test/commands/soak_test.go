package commands_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestSoak draws commands under every rule for MILLRACE_SOAK, while millrace is killed, at
// failpoints, too, and primaries of both sides step down.
func TestSoak(t *testing.T) { soak(t, threeMembers, threeMembers) }

// TestSoakOfSharded is TestSoak with a sharded source whose chunks move. The target has
// shards, too, every other round.
func TestSoakOfSharded(t *testing.T) { soak(t, twoShards, twoShards, oneMember) }

func soak(t *testing.T, source string, targets ...string) {
	rounds, done := 0, map[string]int{}
	bin := test.BuildMillrace(t, "-tags", "failpoint")
	play := func(t *testing.T, seed uint64) {
		rounds++
		b := newBed(t, source, targets[seed%uint64(len(targets))])
		b.bin, b.points = bin, rand.New(rand.NewPCG(seed, 0x6661696c))
		b.soakRound(t, seed, done)
	}
	defer func() { t.Logf("%d rounds: %v", rounds, done) }()
	long, err := time.ParseDuration(os.Getenv("MILLRACE_SOAK"))
	if err != nil { // what soaks have found
		lab.Nightly(t)
		testseed.Each(t, play)
		return
	}
	seed := testseed.Of(t)
	for began := time.Now(); time.Since(began) < long && !t.Failed(); seed++ {
		t.Logf("MILLRACE_TEST_SEED=%d", seed)
		t.Run("round", func(t *testing.T) { play(t, seed) })
	}
}

// soakRound has jobs on one pair of clusters: in both phases, with and without merge.
func (b *bed) soakRound(t *testing.T, seed uint64, done map[string]int) {
	r := rand.New(rand.NewPCG(seed, 0x736f616b))
	chosen := regexp.MustCompile(os.Getenv("MILLRACE_CELLS"))
	for i := range 4 {
		phase, merge := []string{inChange, inCopy}[i%2], i/2 == 1
		var drawn []cell
		for j, set := range ruleSets() {
			refused := b.lab != nil && (set.rules.History || slices.Contains(set.rules.Skip, "ttl")) ||
				b.targetLab != nil && slices.Contains(set.rules.Skip, "insert")
			c := cell{command{name: fmt.Sprint("seed-", seed), seed: seed<<8 + uint64(i*50+j)}, set, phase}
			if set.rules.Merge == merge && !refused && chosen.MatchString(c.String()) {
				drawn = append(drawn, c)
			}
		}
		if len(drawn) == 0 {
			continue
		}
		r.Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
		plays := b.plays(t.Context(), drawn[:min(len(drawn), 8)])
		b.killed = ""
		if err := b.disturbed(t, plays, r, done); err != nil {
			if b.crashed() {
				t.Logf("a mongod has crashed by itself: the rest of the round says nothing")
				done["crash of a mongod"]++
				return
			}
			t.Fatalf("%s: %v\n%s", phase, err, b.story(plays, err.Error()))
		}
		found, err := compare(t.Context(), plays)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range found {
			if len(f.wrong) > 0 {
				found[i].wrong = append(f.wrong, "what was logged of it:\n  "+strings.Join(b.logged(f.play), "\n  "))
			}
		}
		b.report(t, found)
		for _, p := range plays {
			done["commands"] += len(p.log)
		}
		if t.Failed() {
			return
		}
	}
}

// crashed reports that a mongod of the bed has ended by itself: 6.0.5 fails an invariant at times
// where a collection gets documents while it is sharded (collection->isEmpty(opCtx)).
func (b *bed) crashed() bool {
	sets := []*lab.Cluster{b.from, b.into}
	for _, c := range []*sharded.Cluster{b.lab, b.targetLab} {
		if c != nil {
			sets = append(append(sets, c.Config()), c.Shards()...)
		}
	}
	return slices.ContainsFunc(sets, func(set *lab.Cluster) bool {
		return set != nil && slices.ContainsFunc(set.Members(), (*lab.Member).Crashed)
	})
}

// story is what was done to the play that an error names, and what processes logged of it.
func (b *bed) story(plays []*play, why string) string {
	p := blamed(plays, why)
	if p == nil {
		return ""
	}
	b.killed += why
	return p.cell.String() + ":\n  " + strings.Join(append(b.logged(p), p.log...), "\n  ")
}

// logged is what processes logged of a play.
func (b *bed) logged(p *play) []string {
	return slices.DeleteFunc(strings.Split(b.killed, "\n"), func(l string) bool { return !strings.Contains(l, p.base) })
}

// disturbed has one job of all plays among disturbances.
func (b *bed) disturbed(t *testing.T, plays []*play, r *rand.Rand, done map[string]int) error {
	together(plays, (*play).setup)
	p, err := b.begin(t, plays)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		defer close(ended)
		together(plays, (*play).change)
	})
	for err == nil {
		next := b.commands.Load() + int64(5+r.IntN(50))
		over := false
		for b.commands.Load() < next && !over {
			select {
			case <-ended:
				over = true
			case <-time.After(5 * time.Millisecond):
			}
		}
		if over {
			break
		}
		p, err = b.disturb(t, p, plays, r, done)
	}
	g.Wait()
	if err != nil {
		return err
	}
	for {
		if err = b.finish(t, p, plays); !p.Killed() {
			return err
		}
		done[atFailpoint]++
		p = b.again(t, p, plays)
	}
}

// finish has the job copy at full speed and finalize. The process may have ended already:
// a restart ends a job that was finalizing.
func (b *bed) finish(t *testing.T, p *test.Process, plays []*play) (err error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if plays[0].phase == inCopy { // it may have been killed since it was slowed down
		err = poll(ctx, p, "answer", func() bool {
			_, err := p.Command(ctx, "throttle", "--max-rate-docs", "0")
			return err == nil
		})
	}
	if err == nil {
		err = poll(ctx, p, "finalize", func() bool { return p.Finalize(ctx) == nil })
	}
	select {
	case <-p.Done():
		err = nil
	default:
	}
	if err == nil {
		err = p.Wait(limit)
	}
	if !p.Killed() {
		b.killed += p.Output()
	}
	if err != nil && !admitted(p.Output(), plays) {
		return fmt.Errorf("%w\n%s", err, p.Output())
	}
	return nil
}

// atFailpoint is a kill in the middle of what the process does.
const atFailpoint = "kill at a failpoint"

// again starts the program after it was killed. Mostly a failpoint is to kill it again.
func (b *bed) again(t *testing.T, killed *test.Process, plays []*play) *test.Process {
	b.killed += killed.Output()
	args := append(b.args(plays), "--until", "never")
	if plays[0].phase == inCopy {
		args = append(args, "--max-rate-docs", "5")
	}
	var env []string
	if b.points.IntN(4) > 0 {
		points := []string{"schema.before", "schema.noted", "schema.noted", "schema.after", "schema.after", "rename.done",
			"save.written", "save.after", "note.after", "batch.after",
			"send.after", "commit.after", "slices.written", "copy.after", "make.after", "phase.after", "expire.before",
			"expire.after"}
		env = []string{fmt.Sprintf("MILLRACE_FAILPOINTS=%s:%d=kill", points[b.points.IntN(len(points))], 1+b.points.IntN(8))}
	}
	return test.StartWith(t, env, b.bin, args...)
}

// disturb strikes once. The process is the one that goes on.
func (b *bed) disturb(t *testing.T, p *test.Process, plays []*play, r *rand.Rand, done map[string]int) (*test.Process,
	error) {
	what := []string{"kill", "kill", "kill", "source steps down", "target steps down", "move"}[r.IntN(6)]
	select {
	case <-p.Done():
		if what = atFailpoint; !p.Killed() {
			return p, fmt.Errorf("the job has ended\n%s", p.Output())
		}
	default:
	}
	var err error
	switch {
	case what == "kill" || what == atFailpoint:
		p.Kill()
		p = b.again(t, p, plays)
	case what == "source steps down" && b.from != nil:
		b.calm.Lock()
		err = stepDown(t.Context(), b.from, b.source)
		b.calm.Unlock()
	case what == "target steps down" && b.into != nil && len(b.into.Members()) > 1:
		err = stepDown(t.Context(), b.into, b.target)
	case b.lab != nil:
		what = "move"
		var moved bool
		if moved, err = b.moveChunk(t.Context(), plays, r); !moved {
			return p, err
		}
	default:
		return p, nil
	}
	done[what]++
	return p, err
}

// stepDown waits until a client writes to another primary.
func stepDown(ctx context.Context, c *lab.Cluster, client *mongo.Client) error {
	if err := c.StepDown(ctx); err != nil {
		return err
	}
	for {
		_, err := client.Database("beside").Collection("c").InsertOne(ctx, bson.D{})
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// moveChunk moves a chunk of a sharded collection of the plays, if there is one and
// users do not change its schema at the same time.
func (b *bed) moveChunk(ctx context.Context, plays []*play, r *rand.Rand) (moved bool, err error) {
	b.moving.Lock()
	defer b.moving.Unlock()
	var names []string
	run := plays[0].base[:strings.Index(plays[0].base, "r")]
	of := bson.D{{Key: "_id", Value: bson.D{{Key: "$regex", Value: "^" + run + "r"}}}}
	err = b.source.Database("config").Collection("collections").Distinct(ctx, "_id", of).Decode(&names)
	if err != nil || len(names) == 0 {
		return false, err
	}
	ns := names[r.IntN(len(names))]
	chunks, err := b.lab.Chunks(ctx, ns)
	if err != nil || len(chunks) == 0 {
		return false, nil // it is gone
	}
	c := chunks[r.IntN(len(chunks))]
	shards := b.lab.ShardNames()
	to := shards[(slices.Index(shards, c.Shard)+1)%len(shards)]
	return b.lab.MoveChunk(ctx, ns, c.Min, to) == nil, nil
}
