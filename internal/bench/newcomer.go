package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/mongo"
)

// newcomer is a member that the source's set gets for a round.
type newcomer struct {
	dir, host string
	program   string
	args, env []string
	pid       int
	child     *child // nil when millrace started it
}

// announce prepares a new member's directory, address and command.
func (w *seedWork) announce(ctx context.Context) (*newcomer, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0") // a new one each time: nobody remembers it as down
	if err != nil {
		return nil, err
	}
	host := l.Addr().String()
	_, port, err := net.SplitHostPort(host)
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	n := &newcomer{host: host, dir: filepath.Join(w.dir, "new-"+port)}
	w.new = n
	if n.program, n.env, err = lab.Mongod(ctx, w.source.Info.Version.String()); err != nil {
		return nil, err
	}
	n.args = []string{"--bind_ip", "127.0.0.1", "--port", port, "--nounixsocket", "--dbpath", n.dir, "--logpath", n.dir + ".log",
		"--wiredTigerCacheSizeGB", strconv.FormatFloat(w.cacheGB, 'f', -1, 64), "--replSet", w.source.lab.Name(),
		"--oplogSize", itoa(seedOplogMB(w.data)), "--setParameter", "diagnosticDataCollectionEnabled=false"}
	return n, nil
}

func (n *newcomer) uri() string { return "mongodb://" + n.host + "/?directConnection=true" }

// start starts it on an empty directory, and returns when it listens.
func (n *newcomer) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	if n.child, err = startChild(ctx, program{name: n.program, args: n.args, env: n.env}); err != nil {
		return err
	}
	n.pid = n.child.pid()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.host)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-n.child.done:
			return n.child.wait()
		default:
		}
		if !tick(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// adopt takes over the mongod that millrace started, and notes what millrace
// says of its phases.
func (n *newcomer) adopt(report string, m *meter) error {
	raw, err := os.ReadFile(report)
	if err != nil {
		return fmt.Errorf("read the report of millrace: %w", err)
	}
	var r struct {
		Result struct {
			Pid           int
			CopySeconds   float64
			LockSeconds   float64
			FinishSeconds float64
			StartSeconds  float64
			CatchUp       float64 `json:"catchUpSeconds"`
			Bytes         int64
			CopiedBytes   int64
			ChangedBytes  int64
			Lock          struct {
				CatchUpSeconds, SettleSeconds, TakeSeconds, ListSeconds, CompareSeconds, CheckSeconds, ReleaseSeconds float64

				CaughtBytes, ComparedBytes int64
			}
		}
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("read the report of millrace: %w", err)
	}
	n.pid = r.Result.Pid
	m.note("copy", r.Result.CopySeconds)
	lock := r.Result.Lock
	m.note("catch up before the lock", lock.CatchUpSeconds)
	m.note("catch up before the lock: checkpoint", lock.SettleSeconds)
	m.note("take the lock", lock.TakeSeconds)
	m.note("locked: list", lock.ListSeconds)
	m.note("locked: compare", lock.CompareSeconds)
	m.note("locked: check", lock.CheckSeconds)
	m.note("locked: unlock", lock.ReleaseSeconds)
	m.note("second pass and fsync", r.Result.FinishSeconds)
	m.note("start", r.Result.StartSeconds)
	m.note("catch up", r.Result.CatchUp)
	m.value(valueLocked, r.Result.LockSeconds)
	m.value(valueCopied, float64(r.Result.CopiedBytes)/1e6)
	m.value(valueCaught, float64(lock.CaughtBytes)/1e6)
	m.value(valueCompared, float64(lock.ComparedBytes)/1e6)
	m.value(valueAgain, float64(r.Result.ChangedBytes)/1e6)
	return nil
}

// end kills it: nobody needs what it holds.
func (n *newcomer) end(ctx context.Context) error {
	if n.child != nil {
		_ = n.child.cmd.Process.Kill() // it may have ended
		<-n.child.done
		return nil
	}
	if n.pid == 0 {
		return nil
	}
	for until := time.Now().Add(10 * time.Second); syscall.Kill(n.pid, syscall.SIGKILL) == nil && time.Now().Before(until); {
		if !tick(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// dismiss takes the last round's member out of the set, ends it and removes its
// files.
func (w *seedWork) dismiss(ctx context.Context) error {
	n := w.new
	if n == nil {
		return nil
	}
	w.new = nil
	err := w.reconfigure(ctx, func(members bson.A) bson.A {
		var keep bson.A
		for _, m := range members {
			if d, ok := m.(bson.D); !ok || hostOf(d) != n.host {
				keep = append(keep, m)
			}
		}
		return keep
	})
	return errors.Join(err, n.end(ctx), os.RemoveAll(n.dir), os.RemoveAll(n.dir+".log"), os.RemoveAll(n.dir+".out"), os.RemoveAll(n.dir+".json"))
}

// add adds a member without vote and priority.
func (w *seedWork) add(ctx context.Context, host string) error {
	return w.reconfigure(ctx, func(members bson.A) bson.A {
		var id int64
		for _, m := range members {
			if d, ok := m.(bson.D); ok {
				for _, e := range d {
					if e.Key == "_id" {
						id = max(id, asInt(e.Value)+1)
					}
				}
			}
		}
		return append(members, bson.D{{Key: "_id", Value: int32(id)}, {Key: "host", Value: host}, {Key: "votes", Value: 0}, {Key: "priority", Value: 0}})
	})
}

func hostOf(member bson.D) string {
	for _, e := range member {
		if e.Key == "host" {
			s, _ := e.Value.(string)
			return s
		}
	}
	return ""
}

// reconfigure changes the members, again while the last change is under way.
func (w *seedWork) reconfigure(ctx context.Context, change func(bson.A) bson.A) (err error) {
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		if err = w.tryReconfigure(ctx, change); err == nil || !tick(ctx, 20*time.Millisecond) {
			return err
		}
	}
	return fmt.Errorf("change the set's members: %w", err)
}

func (w *seedWork) tryReconfigure(ctx context.Context, change func(bson.A) bson.A) error {
	raw, err := w.source.direct.Command(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil {
		return err
	}
	var config struct {
		Config bson.M `bson:"config"`
	}
	if err := bson.Unmarshal(raw, &config); err != nil {
		return err
	}
	members, _ := config.Config["members"].(bson.A)
	config.Config["members"] = change(members)
	config.Config["version"] = int32(asInt(config.Config["version"]) + 1)
	_, err = w.source.direct.Command(ctx, "admin", bson.D{{Key: "replSetReconfig", Value: config.Config}})
	return err
}

// caughtUp waits until a member is a secondary that has applied what the
// primary had when it became one.
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

// indexCount is the number of a collection's indexes.
func indexCount(ctx context.Context, c *mongo.Cluster, coll string) (int, error) {
	raw, err := c.Command(ctx, dataDB, bson.D{{Key: "listIndexes", Value: coll}, {Key: "cursor", Value: bson.D{}}})
	if err != nil {
		return 0, err
	}
	all, ok := raw.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return 0, errors.New("the server lists no indexes")
	}
	list, err := all.Values()
	return len(list), err
}
