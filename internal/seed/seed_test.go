package seed

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// openAgent opens an agent as the command does.
func openAgent(t *testing.T, o ServeOptions) *Agent {
	t.Helper()
	o.Guard = guardCommand()
	if o.LockLimit == 0 {
		o.LockLimit = 30 * time.Second
	}
	plan, err := Inspect(t.Context(), o.SourceOptions)
	must(t, err)
	t.Logf("plan: %s, %s", plan.Way, plan.Why)
	for _, c := range plan.Checks {
		t.Logf("%s %s: %s", c.Level, c.Name, c.Message)
	}
	a, err := OpenAgent(plan, o)
	must(t, err)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// joined seeds a member and compares it with the primary.
func seedAndCompare(t *testing.T, c *lab.Cluster, src Source, stop func() int, db string) *Result {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	port := freePort(t)
	host := "127.0.0.1:" + strconv.Itoa(port)
	p, err := c.Primary(t.Context())
	must(t, err)
	pid := 0
	endLater(t, &pid)
	res, err := Run(t.Context(), src, Options{
		Pull: PullOptions{DBPath: dir},
		Member: MemberOptions{Command: memberCommand(t, "6.0", c.Name(), dir, port), Join: host, Votes: 1, Priority: 1,
			SetURI: c.DirectURI(p), CatchUp: time.Minute},
	})
	if res != nil {
		pid = res.Pid
	}
	if err != nil {
		out, _ := os.ReadFile(dir + ".out")
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-3000):])
	}
	defer removeMember(t, c.URI(), host)
	t.Logf("%+v", *res)
	if n := stop(); n == 0 {
		t.Error("nothing was written meanwhile")
	}
	member := connect(t, "mongodb://"+host+"/?directConnection=true")
	primary := connect(t, c.URI())
	var want string
	kit.Until(t, "the new member has the same content", func() bool {
		want = hashes(t, primary, db)
		return want == hashes(t, member, db)
	})
	raw, err := member.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
	must(t, err)
	if v, err := raw.LookupErr("metrics", "repl", "initialSync", "completed"); err != nil || v.AsInt64() != 0 {
		t.Errorf("logical initial syncs: %v, %v", v, err)
	}
	return res
}

func TestLockedSecondaryBecomesMember(t *testing.T) {
	c := threeMembers(t)
	s := secondary(t, c)
	d := fill(t, c.URI(), "locked", 3, 2000)
	stop := writer(t, d)
	a := openAgent(t, ServeOptions{SourceOptions: SourceOptions{URI: c.DirectURI(s.Index), DBPath: s.DBPath}})
	res := seedAndCompare(t, c, a, stop, "locked")
	if res.Way != WayLock || res.LockSeconds <= 0 {
		t.Errorf("%+v", res)
	}
	if isLocked(t, c.DirectURI(s.Index)) {
		t.Error("the source is still locked")
	}
}

func TestStoppedMemberIsCopied(t *testing.T) {
	lab.Nightly(t)
	c := threeMembers(t)
	s := secondary(t, c)
	d := fill(t, c.URI(), "stopped", 2, 2000)
	must(t, s.Stop())
	stop := writer(t, d)
	a := openAgent(t, ServeOptions{SourceOptions: SourceOptions{DBPath: s.DBPath}})
	res := seedAndCompare(t, c, a, stop, "stopped")
	if res.Way != WayStopped || res.AgainBytes != 0 {
		t.Errorf("%+v", res)
	}
	must(t, a.lock.Close()) // as the agent's end does
	a.lock = nil
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must(t, s.Start(ctx))
}

func TestPlanSaysWhatStandsInTheWay(t *testing.T) {
	c := threeMembers(t)
	s := secondary(t, c)
	p, err := c.Primary(t.Context())
	must(t, err)
	primary := c.Members()[p]
	plan, err := Inspect(t.Context(), SourceOptions{URI: c.DirectURI(s.Index), DBPath: s.DBPath})
	must(t, err)
	if plan.Checks.Err() != nil || plan.Way != WayLock || !strings.Contains(plan.Why, "no $backupCursor") {
		t.Errorf("a secondary: %+v", plan)
	}
	for name, o := range map[string]SourceOptions{
		"the primary":              {URI: c.DirectURI(p), DBPath: primary.DBPath},
		"asked for once":           {URI: c.DirectURI(p), DBPath: primary.DBPath, AllowPrimary: true},
		"another member's files":   {URI: c.DirectURI(s.Index), DBPath: primary.DBPath},
		"a running one as stopped": {DBPath: s.DBPath},
		"a cursor there is not":    {URI: c.DirectURI(s.Index), DBPath: s.DBPath, Way: WayCursor},
	} {
		plan, err := Inspect(t.Context(), o)
		must(t, err)
		if err := plan.Checks.Err(); err == nil || mongo.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Inspect(t.Context(), SourceOptions{DBPath: t.TempDir()}); err == nil {
		t.Error("an empty directory is taken for a member's")
	}
}
