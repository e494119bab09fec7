package seed

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/workshop/lab"
)

// TestMeasure reports how long a seed, a logical initial sync and the locks of
// one pass and two take, side by side. It measures and asserts nothing.
func TestMeasure(t *testing.T) {
	if os.Getenv("MILLRACE_SEED_MEASURE") == "" {
		t.Skip("MILLRACE_SEED_MEASURE is not set")
	}
	c := lab.ForTest(t, lab.Options{Topology: "rs:3"})
	d := fill(t, c.URI(), "measure", 10, 20_000)
	for i := range 10 {
		var more []driver.IndexModel
		for _, k := range []bson.D{{{Key: "a", Value: 1}, {Key: "b", Value: 1}},
			{{Key: "b", Value: -1}, {Key: "a", Value: 1}}, {{Key: "pad", Value: 1}, {Key: "b", Value: 1}}} {
			more = append(more, driver.IndexModel{Keys: k})
		}
		_, err := d.Collection("c"+strconv.Itoa(i)).Indexes().CreateMany(t.Context(), more)
		must(t, err)
	}
	s := secondary(t, c)
	stop := writer(t, d)
	a := openAgent(t, ServeOptions{SourceOptions: SourceOptions{URI: c.DirectURI(s.Index), DBPath: s.DBPath}})
	m, err := a.Join(t.Context())
	must(t, err)
	final, err := a.Freeze(t.Context(), m.Round, m.Puller) // nothing was read: all is put aside
	must(t, err)
	must(t, a.Leave(t.Context(), m.Round, m.Puller))
	t.Logf("lock of one pass: %.2f s, %d MB", final.LockSeconds, final.ChangedBytes>>20)
	for _, way := range []string{"logical", "seed", "logical", "seed"} {
		began := time.Now()
		dir := filepath.Join(t.TempDir(), way)
		port := freePort(t)
		host := "127.0.0.1:" + strconv.Itoa(port)
		pid := 0
		endLater(t, &pid)
		o := Options{Pull: PullOptions{DBPath: dir, Stats: &Stats{}}, Member: MemberOptions{
			Command: memberCommand(t, "6.0", c.Name(), dir, port), Join: host, SetURI: c.URI(), CatchUp: 3 * time.Minute,
			LogPath: dir + ".out"}}
		var res *Result
		if way == "seed" {
			res, err = Run(t.Context(), a, o)
		} else {
			must(t, os.MkdirAll(dir, 0o700))
			res = &Result{}
			err = startMember(t.Context(), o, res)
		}
		pid = res.Pid
		must(t, err)
		t.Logf("%s: %.1f s (start %.1f, catch up %.1f, lock %.2f, changed %d MB, bytes %d MB)", way,
			time.Since(began).Seconds(), res.StartSeconds, res.CatchUpSeconds, res.LockSeconds, res.ChangedBytes>>20,
			res.Bytes>>20)
		removeMember(t, c.URI(), host)
		stopPid(t, pid)
	}
	t.Logf("%d writes meanwhile", stop())
}

// stopPid ends a mongod and waits until its port is free.
func stopPid(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	must(t, err)
	_ = p.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = pace.Until(ctx, 20*time.Millisecond, func() (bool, error) { return p.Signal(syscall.Signal(0)) != nil, nil })
}
