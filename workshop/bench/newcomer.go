package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

type newcomer struct {
	dir, host string
	program   string
	args, env []string
	pid       int
	child     *child // nil when millrace started it
}

// announce prepares a new member's directory, address and command. One that stays in the set keeps them.
func (w *seedWork) announce(ctx context.Context) (*newcomer, error) {
	if w.replaces && w.new != nil {
		return w.new, nil
	}
	port, err := freePort(ctx) // a new one each time: no member knows it as down
	if err != nil {
		return nil, err
	}
	dir, journal := filepath.Join(w.dir, "new-"+port), "log=(prealloc=true)"
	if w.replaces { // where the others are, and with their journal
		dir = filepath.Join(filepath.Dir(filepath.Dir(w.source.lab.Members()[0].DBPath)), "new-"+port)
		journal = lab.LeanJournal
	}
	w.new, err = newNewcomer(ctx, w.source.Info.Version, port, dir, "--replSet", w.source.lab.Name(),
		"--wiredTigerCacheSizeGB", strconv.FormatFloat(w.cacheGB, 'f', -1, 64), "--oplogSize", itoa(seedOplogMB(w.data)),
		"--wiredTigerEngineConfigString", journal)
	return w.new, err
}

// newNewcomer prepares a member's directory, address and command, with more arguments.
func newNewcomer(ctx context.Context, version mongo.Version, port, dir string, more ...string) (*newcomer, error) {
	n := &newcomer{host: "127.0.0.1:" + port, dir: dir}
	var err error
	n.program, n.env, err = lab.Mongod(ctx, version.String())
	n.args = append([]string{"--bind_ip", "127.0.0.1", "--port", port, "--nounixsocket", "--dbpath", dir, "--logpath",
		dir + ".log", "--setParameter", "diagnosticDataCollectionEnabled=false"}, more...)
	return n, err
}

// remove removes the member's files, after its end.
func (n *newcomer) remove() (err error) {
	for _, suffix := range []string{"", ".log", ".out", ".json", ".millrace"} {
		err = errors.Join(err, os.RemoveAll(n.dir+suffix))
	}
	return err
}

func (n *newcomer) uri() string { return "mongodb://" + n.host + "/?directConnection=true" }

// start starts it on an empty directory, and returns when it listens.
func (n *newcomer) start(ctx context.Context, disk lab.DiskSpeed) (err error) {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	if n.child, err = startChild(ctx, program{name: n.program, args: n.args, env: n.env, disk: disk}); err != nil {
		return err
	}
	n.pid = n.child.pid()
	return listens(ctx, n.child, n.host)
}

// listens waits until a program does.
func listens(ctx context.Context, c *child, address string) error {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-c.Done():
			return c.wait()
		default:
		}
		if !tick(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// adopt takes over the mongod that millrace started, and notes the phases that its report has.
func (n *newcomer) adopt(report string, m *meter, took float64) error {
	var r struct{ Result seedResult }
	if err := readJSON(report, "the report of millrace", &r); err != nil {
		return err
	}
	n.pid = r.Result.Pid
	lock := r.Result.Lock
	rest := took
	for _, p := range seedParts() {
		seconds := p.seconds(&r.Result, took)
		m.note(p.name, seconds)
		if p.name != partSettle {
			rest -= seconds
		}
	}
	m.note(partOther, max(rest, 0))
	m.value(valueLocked, r.Result.LockSeconds)
	for name, bytes := range map[string]int64{
		valueCopied: r.Result.CopiedBytes, valueCaught: lock.CaughtBytes, valueCompared: lock.ComparedBytes,
		valueAgain: r.Result.ChangedBytes,
	} {
		m.value(name, float64(bytes)/1e6)
	}
	return nil
}

// seedResult is what millrace reports of a seed, times in seconds.
type seedResult struct {
	Pid     int
	Seconds float64

	PrepareSeconds, CopySeconds, LockSeconds, FreezeSeconds, FinishSeconds float64

	CopiedBytes, ChangedBytes int64
	Lock                      struct {
		CatchUp float64 `json:"catchUpSeconds"`
		Settle  float64 `json:"settleSeconds"`
		Take    float64 `json:"takeSeconds"`
		List    float64 `json:"listSeconds"`
		Compare float64 `json:"compareSeconds"`
		Check   float64 `json:"checkSeconds"`
		Release float64 `json:"releaseSeconds"`

		CaughtBytes, ComparedBytes int64
	}
	MemberTimes struct {
		Listen    float64 `json:"listenSeconds"`
		Answer    float64 `json:"answerSeconds"`
		Add       float64 `json:"addSeconds"`
		Secondary float64 `json:"secondarySeconds"`
		Choose    float64 `json:"chooseSeconds"`
		Apply     float64 `json:"applySeconds"`
	}
}

// Parts of a seed that are looked for by name.
const (
	partSettle = "catch up before the lock: checkpoint"
	partListen = "start: mongod until it listens"
	partAnswer = "start: until it answers"
	partChoose = "until it has chosen whom to follow"
	partOther  = "other"
)

type seedPart struct {
	name    string
	seconds func(r *seedResult, took float64) float64
}

// seedParts are all parts in order. They follow each other, but for partSettle, which is a part of that before it.
func seedParts() []seedPart {
	type r = *seedResult
	return []seedPart{
		{"start and end of millrace, its look at the source",
			func(r r, took float64) float64 { return took - r.Seconds }},
		{"look at both sides", func(r r, _ float64) float64 { return r.PrepareSeconds }},
		{"copy", func(r r, _ float64) float64 { return r.CopySeconds }},
		{"catch up before the lock", func(r r, _ float64) float64 { return r.Lock.CatchUp }},
		{partSettle, func(r r, _ float64) float64 { return r.Lock.Settle }},
		{"take the lock", func(r r, _ float64) float64 { return r.Lock.Take }},
		{"locked: list", func(r r, _ float64) float64 { return r.Lock.List }},
		{"locked: compare", func(r r, _ float64) float64 { return r.Lock.Compare }},
		{"locked: check", func(r r, _ float64) float64 { return r.Lock.Check }},
		{"locked: unlock", func(r r, _ float64) float64 { return r.Lock.Release }},
		{"start the guardian and the rest around the lock", func(r r, _ float64) float64 {
			l := r.Lock
			return max(r.FreezeSeconds-l.CatchUp-l.Take-l.List-l.Compare-l.Check-l.Release, 0)
		}},
		{"second pass and fsync", func(r r, _ float64) float64 { return r.FinishSeconds }},
		{partListen, func(r r, _ float64) float64 { return r.MemberTimes.Listen }},
		{partAnswer, func(r r, _ float64) float64 { return r.MemberTimes.Answer }},
		{"add to the set", func(r r, _ float64) float64 { return r.MemberTimes.Add }},
		{"until SECONDARY", func(r r, _ float64) float64 { return r.MemberTimes.Secondary }},
		{partChoose, func(r r, _ float64) float64 { return r.MemberTimes.Choose }},
		{"apply what is new", func(r r, _ float64) float64 { return r.MemberTimes.Apply }},
		{partOther, func(r, float64) float64 { return 0 }},
	}
}

func (n *newcomer) end(ctx context.Context) error {
	if n.child != nil {
		_ = n.child.cmd.Process.Kill() // it may have ended
		<-n.child.Done()
		n.child, n.pid = nil, 0
		return nil
	}
	if n.pid == 0 {
		return nil
	}
	for until := time.Now().Add(10 * time.Second); syscall.Kill(n.pid, syscall.SIGKILL) == nil &&
		time.Now().Before(until); {
		if !tick(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	n.pid = 0
	return nil
}

// dismiss takes the last round's member out of the set, ends it and removes its files.
func (w *seedWork) dismiss(ctx context.Context) error {
	n := w.new
	if n == nil {
		return nil
	}
	w.new = nil
	err := w.change(ctx, func(c *lab.SetConfig) error {
		c.Members = slices.DeleteFunc(c.Members, func(m bson.M) bool { return m["host"] == n.host })
		return nil
	})
	return errors.Join(err, n.end(ctx), n.remove())
}

func (w *seedWork) add(ctx context.Context, host string) error {
	return w.change(ctx, func(c *lab.SetConfig) error {
		var id int32
		for _, m := range c.Members {
			if n, ok := m["_id"].(int32); ok {
				id = max(id, n+1)
			}
		}
		c.Members = append(c.Members, bson.M{"_id": id, "host": host, "votes": 0, "priority": 0})
		return nil
	})
}

// change changes the members, again while the last change is under way.
func (w *seedWork) change(ctx context.Context, change func(*lab.SetConfig) error) (err error) {
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		if err = lab.Reconfigure(ctx, w.source.direct.Client, change); err == nil || !tick(ctx, 20*time.Millisecond) {
			return err
		}
	}
	return fmt.Errorf("change the set's members: %w", err)
}

// caughtUp waits until a member is a secondary that has applied what the primary had when it became one.
func (w *seedWork) caughtUp(ctx context.Context, c *mongo.Cluster) error {
	var goal mongo.OpTime
	for {
		ok, err := isSecondary(ctx, c)
		if err == nil && ok {
			p, err := w.source.Positions(ctx)
			if err != nil {
				return err
			}
			if goal.IsZero() {
				goal = p.Last
			}
			here, err := c.Positions(ctx)
			if err != nil {
				return err
			}
			if !here.Last.Before(goal) {
				return nil
			}
		}
		if !tick(ctx, 10*time.Millisecond) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// locked locks the secondary meanwhile. As in millrace, the time counts between the server's replies.
func (w *seedWork) locked(ctx context.Context, m *meter, do func() error) error {
	node := w.source.nodes[w.from]
	if _, err := node.Command(ctx, "admin", bson.D{{Key: "fsync", Value: 1}, {Key: "lock", Value: true}}); err != nil {
		return fmt.Errorf("lock the secondary: %w", err)
	}
	began := time.Now()
	err := do()
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, e := node.Command(release, "admin", bson.D{{Key: "fsyncUnlock", Value: 1}}); e != nil {
		err = errors.Join(err, fmt.Errorf("unlock the secondary: %w", e))
	}
	m.value(valueLocked, time.Since(began).Seconds())
	return err
}

// stalls measures the longest time in which the secondary applied nothing, in steps of the load's 10 ms.
func (w *seedWork) stalls(run func(context.Context, *meter) error) func(context.Context, *meter) error {
	return func(ctx context.Context, m *meter) error {
		var longest time.Duration
		stop := beside(ctx, func(ctx context.Context) error {
			var last mongo.OpTime
			for since := time.Now(); tick(ctx, 2*time.Millisecond); {
				p, err := w.source.nodes[w.from].Positions(ctx)
				if err == nil && p.Last != last {
					if !last.IsZero() {
						longest = max(longest, time.Since(since))
					}
					last, since = p.Last, time.Now()
				}
			}
			return nil
		})
		err := errors.Join(run(ctx, m), stop())
		m.value(valueStall, longest.Seconds())
		return err
	}
}

const (
	copyRange   = 8 << 20
	copyBlock   = 1 << 20
	copyWorkers = 4
)

// copyFiles copies a data directory as it is, and returns how many bytes that are not zeros.
func copyFiles(ctx context.Context, from, to string) (int64, error) {
	buffers := sync.Pool{New: func() any { b := make([]byte, copyBlock); return &b }}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(copyWorkers)
	var copied atomic.Int64
	err := eachFile(from, func(name string, size int64) error {
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o700); err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(to, name))
		if err != nil {
			return err
		}
		if err := errors.Join(out.Truncate(size), out.Close()); err != nil {
			return err
		}
		for at := int64(0); at < size && ctx.Err() == nil; at += copyRange {
			g.Go(func() error {
				buf, _ := buffers.Get().(*[]byte)
				defer buffers.Put(buf)
				n, err := copyPart(filepath.Join(from, name), filepath.Join(to, name), at, *buf)
				copied.Add(n)
				return err
			})
		}
		return nil
	})
	err = errors.Join(err, g.Wait())
	return copied.Load(), err
}

func eachFile(dir string, do func(name string, size int64) error) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "mongod.lock" || strings.HasPrefix(name, "diagnostic.data") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return do(name, info.Size())
	})
}

func copyPart(from, to string, at int64, buf []byte) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for end := at + copyRange; at < end; at += copyBlock {
		got, err := in.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		if !isZero(buf[:got]) {
			if _, err := out.WriteAt(buf[:got], at); err != nil {
				return n, err
			}
			n += int64(got)
		}
		if got < copyBlock {
			return n, nil
		}
	}
	return n, nil
}

// isZero looks at the ends first: data differ there.
func isZero(b []byte) bool {
	if len(b) == 0 || b[0] != 0 || b[len(b)-1] != 0 {
		return len(b) == 0
	}
	return bytes.Count(b, []byte{0}) == len(b)
}

func syncFiles(dir string) error {
	var g errgroup.Group
	g.SetLimit(copyWorkers)
	err := eachFile(dir, func(name string, _ int64) error {
		g.Go(func() error {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			return errors.Join(f.Sync(), f.Close())
		})
		return nil
	})
	return errors.Join(err, g.Wait())
}
