package seed

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// A server with so much to do that it does not grant the lock in time keeps none,
// and what it says is that another attempt may get it.
func TestLockIsNotGrantedInTime(t *testing.T) {
	t.Parallel()
	c := lab.ForTest(t, lab.Options{Topology: "rs:1", TestCommands: true})
	uri := c.DirectURI(0)
	must(t, connect(t, uri).Database("admin").
		RunCommand(t.Context(), bson.D{{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"fsync"}}, {Key: "blockConnection", Value: true},
				{Key: "blockTimeMS", Value: time.Hour.Milliseconds()}}}}).Err())
	g := guardian(uri, 60)
	g.Request.Primary = true
	_, err := g.Freeze(t.Context())
	if err == nil || mongo.Classify(err) != mongo.ClassRetry || !strings.Contains(err.Error(), lockWait.String()) ||
		mongo.HintOf(err) == "" {
		t.Errorf("the first lock: %v; hint %q", err, mongo.HintOf(err))
	}
	if isLocked(t, uri) {
		t.Error("the member is locked by nobody")
	}
	thaw, err := g.Freeze(t.Context())
	must(t, err)
	must(t, thaw.Release())
}

// busyFreezer does not get its first locks.
type busyFreezer struct {
	settlingFreezer
	busy, asked int
	err         error
}

func (f *busyFreezer) Freeze(ctx context.Context) (Thaw, error) {
	if f.asked++; f.asked <= f.busy {
		return nil, f.err
	}
	return f.settlingFreezer.Freeze(ctx)
}

// A lock that a busy member does not grant in time is asked for again; what changes
// meanwhile is in the copy. Other failures end it.
func TestBusyMemberIsLockedLater(t *testing.T) {
	for _, c := range []struct {
		err   error
		asked int
	}{{mongo.Retry("not in time", nil, ""), 3}, {errors.New("no"), 1}} {
		dir := fakeMember(t)
		freezer := &busyFreezer{busy: 2, err: c.err}
		freezer.settle = func() { // before each lock, which changes one block more
			f, err := os.OpenFile(filepath.Join(dir, "index-2.wt"), os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("changed"), int64(freezer.asked)*int64(smallestBlock))
			must(t, errors.Join(err, f.Close()))
		}
		to := filepath.Join(t.TempDir(), "to")
		_, err := Pull(t.Context(), fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: freezer}),
			PullOptions{DBPath: to, NoClone: true})
		if freezer.asked != c.asked || (err == nil) != (c.asked > 1) {
			t.Errorf("%v after %d attempts", err, freezer.asked)
		}
		if err == nil {
			sameFiles(t, dir, to)
		}
	}
}

// The guardian is killed while the member answers nobody for a while: its parent
// goes on until the member is let go.
func TestLockOfAnUnresponsiveMemberEnds(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	c := lab.ForTest(t, lab.Options{Topology: "rs:1"})
	uri := c.DirectURI(0)
	g := guardian(uri, 60)
	g.Request.Primary = true
	thaw, err := g.Freeze(t.Context())
	must(t, err)
	pid := c.Members()[0].Pid()
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	must(t, thaw.(*guardedLock).cmd.Process.Signal(syscall.SIGKILL))
	go func() {
		time.Sleep(17 * time.Second) // longer than one attempt lasts
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}()
	if err := thaw.Release(); err == nil || !strings.Contains(err.Error(), "killed") ||
		strings.Contains(err.Error(), "may still be locked") {
		t.Errorf("release: %v", err)
	}
	must(t, syscall.Kill(pid, syscall.SIGCONT))
	if isLocked(t, uri) {
		t.Error("the member is still locked")
	}
}

// A set that is asked for another configuration in the middle of an election, or over
// a connection that breaks, is asked again.
func TestReconfigurationPassesFailures(t *testing.T) {
	t.Parallel()
	c := lab.ForTest(t, lab.Options{Topology: "rs:1", TestCommands: true})
	set, err := connectSet(t.Context(), c.DirectURI(0))
	must(t, err)
	defer set.Disconnect(context.Background())
	const interrupted = 11602 // InterruptedDueToReplStateChange
	for i, how := range []bson.E{{Key: "errorCode", Value: interrupted}, {Key: "closeConnection", Value: true}} {
		for _, command := range []string{"replSetGetConfig", "replSetReconfig"} {
			must(t, set.Database("admin").RunCommand(t.Context(),
				bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
					{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{command}}, how}}}).Err())
			priority := float64(2 + i)
			err := reconfigure(t.Context(), set, func(cfg *replConfig) error {
				cfg.Members[0].Priority = priority
				return nil
			})
			if err != nil {
				t.Errorf("%s, %v: %v", command, how, err)
			}
		}
	}
}
