package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKilledAtRandomMoments kills the agent, the puller, the guardian and the
// source's mongod with SIGKILL while files are copied or the source is locked:
// the source is let go each time, no mongod starts on what there is, the same
// command again completes it, and a copy during which the source was killed
// becomes a member. More rounds: MILLRACE_TEST_ROUNDS.
func TestKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	g := newGround(t, "6.0", "rs:3")
	r := rand.New(rand.NewPCG(testseed.Of(t), 5))
	db := kit.Client(t, g.set.URI()).Database("kill")
	fill(t, db)
	stop := write(t, db)
	order := r.Perm(len(victims()))
	rounds := 3
	if lab.InMatrix() {
		rounds = len(order)
	}
	for i := range testseed.Rounds(t, rounds) {
		k := &killing{ground: g, victim: victims()[order[i%len(order)]], dir: filepath.Join(t.TempDir(), "new")}
		k.moment = moment(r.IntN(3))
		if k.victim == victimGuardian {
			k.moment = moment(r.IntN(2))
		}
		k.after = time.Duration(50+r.IntN(1500)) * time.Millisecond
		k.run()
	}
	last := &killing{ground: g, victim: victimSource, moment: underLock, dir: filepath.Join(t.TempDir(), "last")}
	locked := last.strike()
	err := last.puller.Wait(4 * time.Minute)
	if !half(last.dir) { // it was quicker
		must(t, os.RemoveAll(last.dir))
	}
	t.Logf("last: source killed (locked: %t), puller: %v", locked, err)
	n := g.newcomer(last.dir)
	g.joined(n)
	stop()
	g.same(n, "kill")
	last.agent.Interrupt()
}

type victim string

const (
	victimAgent    victim = "agent"
	victimPuller   victim = "puller"
	victimBoth     victim = "agent and puller"
	victimGuardian victim = "guardian"
	victimSource   victim = "source"
)

func victims() []victim {
	return []victim{victimAgent, victimPuller, victimBoth, victimGuardian, victimSource}
}

// moment is when somebody is killed.
type moment int

const (
	underLock   moment = iota
	locking            // a guardian is there
	afterAWhile        // any time
)

func (m moment) String() string {
	return []string{"under the lock", "at the guardian's begin", "after"}[m]
}

// killing is one copy in which somebody is killed.
type killing struct {
	*ground
	victim victim
	moment moment
	after  time.Duration // for afterAWhile
	dir    string

	agent, puller *test.Process
	guardian      int // its process, when there was one
}

// strike begins a copy and kills the victim; it reports whether the source was
// locked then. A source that was killed runs again when it returns.
func (k *killing) strike() bool {
	t := k.t
	t.Helper()
	k.agent = k.serve("--max-rate-bytes", "120MB")
	k.puller = k.pull(k.dir)
	locked := k.await()
	k.kill()
	if k.victim == victimSource {
		must(t, k.member.Start(t.Context()))
	}
	return locked
}

func (k *killing) run() {
	t := k.t
	t.Helper()
	locked := k.strike()
	kit.Until(t, "the source is let go", func() bool { return !k.locked() })
	kit.Until(t, "the guardian has ended", func() bool { return k.guardian == 0 || syscall.Kill(k.guardian, 0) != nil })
	how := k.complete()
	t.Logf("%s killed %s %s (locked: %t), %s", k.victim, k.moment, k.after, locked, how)
	k.agent.Interrupt()
	must(t, os.RemoveAll(k.dir))
}

// await waits for the moment; it reports whether the source was locked then.
func (k *killing) await() bool {
	began := time.Now()
	for {
		k.guardian = guardianOf(k.agent.Pid())
		select {
		case <-k.puller.Done(): // it was quicker
			return false
		default:
		}
		switch {
		case k.moment == underLock && k.guardian != 0 && k.locked():
			return true
		case k.moment == locking && k.guardian != 0, k.moment == afterAWhile && time.Since(began) > k.after:
			return k.guardian != 0 && k.locked()
		}
		time.Sleep(10 * time.Millisecond) // a lock lasts longer
	}
}

func (k *killing) kill() {
	t := k.t
	t.Helper()
	if k.victim == victimAgent || k.victim == victimBoth {
		k.agent.Kill()
	}
	if k.victim == victimPuller || k.victim == victimBoth {
		k.puller.Kill()
	}
	if k.victim == victimGuardian && k.guardian != 0 {
		_ = syscall.Kill(k.guardian, syscall.SIGKILL) // it may have ended
	}
	if k.victim == victimSource {
		must(t, k.member.Kill())
	}
}

// complete has the copy completed, and reports how that went.
func (k *killing) complete() string {
	t := k.t
	t.Helper()
	switch k.victim {
	case victimAgent:
		// The puller lives on and waits for an agent; a copy that is whole
		// needs none any more.
		k.agent = k.serve()
	case victimBoth:
		k.agent = k.serve()
	}
	how := "the puller went on"
	select {
	case <-k.puller.Done():
		how = "the puller had ended"
	default:
	}
	err := k.puller.Wait(4 * time.Minute)
	if half(k.dir) {
		if err == nil {
			t.Fatalf("the puller calls a half copy complete\n%s", k.puller.Output())
		}
		refuses(t, k.program, k.set.Name(), k.dir)
		began := time.Now()
		again := k.pull(k.dir)
		if err := again.Wait(4 * time.Minute); err != nil {
			t.Fatalf("again: %v\n%s\nagent: %s", err, again.Output(), k.agent.Output())
		}
		how = fmt.Sprintf("again in %.1f s", time.Since(began).Seconds())
	} else if err != nil && k.victim == victimSource { // before anything was copied
		if err := k.pull(k.dir).Wait(4 * time.Minute); err != nil {
			t.Fatalf("from the beginning: %v\nagent: %s", err, k.agent.Output())
		}
		how = "from the beginning"
	} else if err != nil && k.victim != victimPuller && k.victim != victimBoth {
		t.Fatalf("nothing is left to complete, but the puller failed: %v\n%s", err, k.puller.Output())
	}
	if half(k.dir) {
		t.Fatal("the copy is still marked as a half one")
	}
	return how
}

// half reports whether a directory holds a copy that is not complete.
func half(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "storage.bson"))
	return err == nil && strings.Contains(string(b), "not complete")
}

// locked asks the source, which may be down.
func (k *killing) locked() bool {
	raw, err := k.source.RunCommand(k.t.Context(), bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}}).Raw()
	if err != nil {
		return false
	}
	locked, _ := raw.Lookup("fsyncLock").BooleanOK()
	return locked
}

// guardianOf is the process id of an agent's guardian, 0 when it has none.
func guardianOf(agent int) int {
	if all := test.Children(agent); len(all) > 0 {
		return all[0]
	}
	return 0
}
