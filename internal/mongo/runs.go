package mongo

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/wire"
)

// Write runs a command that changes something on the primary, over the pool: the guard is asked, and the
// connection has the pool's application name (see EndConnections). A write error in the reply is an error.
func (c *Cluster) Write(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	return write(ctx, conn, db, cmd)
}

// Change is Write for commands whose reply has no election term, such as schema changes: it asks the same
// connection for the term. It is -1 without a replica set.
func (c *Cluster) Change(ctx context.Context, db string, cmd bson.D) (term int64, err error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return -1, err
	}
	defer conn.Release()
	if cmd[0].Key == "create" { // quick: the question need not wait for the answer
		return changeAndAsk(ctx, conn, db, cmd)
	}
	if _, err := write(ctx, conn, db, cmd); err != nil {
		return -1, err
	}
	body, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return -1, fmt.Errorf("read the term of %s: %w", conn.Addr(), err)
	}
	return termOf(bson.Raw(body)), nil
}

// termOf returns the term of the newest write in a reply to isMaster, -1 if there is none.
func termOf(hello bson.Raw) int64 {
	if term, ok := hello.Lookup("lastWrite", "opTime", "t").AsInt64OK(); ok {
		return term
	}
	return -1
}

func changeAndAsk(ctx context.Context, conn *wire.Conn, db string, cmd bson.D) (term int64, err error) {
	replies, failed, err := conn.RunBoth(ctx, db, cmd, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err = cmp.Or(failed, err); err != nil {
		return -1, err
	}
	if _, err := written(replies[0]); err != nil {
		return -1, err
	}
	return termOf(bson.Raw(replies[1])), nil
}

func write(ctx context.Context, conn *wire.Conn, db string, cmd bson.D) (bson.Raw, error) {
	body, err := conn.Run(ctx, db, cmd)
	if err != nil {
		return nil, err
	}
	return written(body)
}

func written(body []byte) (bson.Raw, error) {
	res := wire.ParseWriteResult(body)
	if err := Interrupted(res); err != nil {
		return nil, err
	}
	if len(res.Errors) > 0 {
		return nil, fmt.Errorf("%s (code %d)", res.Errors[0].Message, res.Errors[0].Code)
	}
	return bson.Raw(body), nil
}

// RenewConnections gives later connections of the pool another application name, and closes earlier ones that the
// client does not share. Nothing may have been written over those, and none may be checked out meanwhile.
// See wire.Pool.Renew.
func (c *Cluster) RenewConnections(ctx context.Context, name string) error {
	var members []string
	if h, err := c.hello(ctx); err == nil { // else the pool knows some
		members = h.Hosts
	}
	leave, err := c.Pool.Renew(name, members)
	if err != nil {
		return err
	}
	return leave(ctx)
}

// Connection is a client's connection to a server.
type Connection struct {
	App    string `bson:"appName"` // the application name of its handshake
	Client string // address of the client, as the server sees it
	Active bool   // an operation runs on it, OpID
	OpID   any
	// Type is "idleSession" where the connection is gone and has left a transaction open, in Session: it holds its
	// documents for a minute by default.
	Type    string
	Session bson.Raw `bson:"lsid"`
}

// end is the command that ends a connection's operation or transaction, nil without one.
func (c *Connection) end() bson.D {
	id, err := c.Session.LookupErr("id")
	switch {
	case c.Active:
		return bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: c.OpID}}
	case c.Type == "idleSession" && err == nil:
		return bson.D{{Key: "killSessions", Value: bson.A{bson.D{{Key: "id", Value: id}}}}}
	}
	return nil
}

// EndConnections kills what runs on connections with matching application names, at the primary and the other
// members, and waits until none of these connections exists. As messages arrive over connections only, nothing sent
// over them has an effect on that server afterwards. It calls waiting at times with those that are left. Then it
// runs a command over the same connection and returns the reply, whose term shows that the primary's list was read.
//
// Without the privilege inprog only connections of the same user are seen.
func (c *Cluster) EndConnections(ctx context.Context, match func(name string) bool, waiting func([]Connection),
	then bson.D) (bson.Raw, error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	return c.endConnections(ctx, conn, match, waiting, then)
}

// EndConnectionsFirst is EndConnections for a pool over which nothing was written yet, and which it renews meanwhile
// with a name. See RenewConnections.
func (c *Cluster) EndConnectionsFirst(ctx context.Context, name string, match func(name string) bool,
	waiting func([]Connection), then bson.D) (bson.Raw, error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	var leave func(context.Context) error
	var renewing errgroup.Group
	renewing.Go(func() (err error) {
		if leave, err = c.Pool.Renew(name, c.Info.Hosts); err == nil {
			const soon = 3 // what is written next wants them
			c.Pool.Warm(ctx, soon)
		}
		return err
	})
	raw, err := c.endConnections(ctx, conn, match, waiting, then)
	conn.Release()
	if renewErr := renewing.Wait(); err == nil {
		err = renewErr
	}
	if leave != nil {
		err = cmp.Or(err, leave(ctx))
	}
	return raw, err
}

func (c *Cluster) endConnections(ctx context.Context, conn *wire.Conn, match func(string) bool,
	waiting func([]Connection), then bson.D) (bson.Raw, error) {
	var reporting sync.Mutex
	primary := at{conn: conn, match: match, waiting: func(left []Connection) {
		reporting.Lock()
		defer reporting.Unlock()
		waiting(left)
	}}
	end := c.endOnMembers
	if c.Info.Kind == KindSharded {
		end = c.endBehindRouters
	}
	if err := end(ctx, primary); err != nil {
		return nil, err
	}
	reply, err := conn.Run(ctx, StateDB, then)
	return bson.Raw(reply), err
}

func (c *Cluster) endOnMembers(ctx context.Context, primary at) error {
	primary.list = bson.D{{Key: "idleConnections", Value: true}}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return primary.end(gctx) })
	g.Go(func() error {
		// Such a connection to another member may have an effect when that becomes primary again.
		hosts, err := c.othersThan(gctx, primary.conn.Addr())
		for _, host := range hosts {
			g.Go(func() error {
				_, err := c.endAt(gctx, host, primary)
				return err
			})
		}
		return err
	})
	return g.Wait()
}

// endBehindRouters waits until no router has a connection left. It ends operations on the shards, which learn the
// application's name with each command. A router would only stop waiting for what it has sent to shards.
func (c *Cluster) endBehindRouters(ctx context.Context, shards at) error {
	router := shards
	router.list = bson.D{{Key: "idleConnections", Value: true}, {Key: "localOps", Value: true}}
	router.spare = true
	var gone atomic.Bool
	ended, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop()
		var all errgroup.Group
		all.Go(func() error { return router.end(gctx) })
		for _, host := range c.Pool.Addresses() {
			if host != router.conn.Addr() {
				all.Go(func() error {
					reached, err := c.endAt(gctx, host, router)
					gone.Store(gone.Load() || !reached)
					return err
				})
			}
		}
		return all.Wait()
	})
	g.Go(func() error { return c.endOnShards(gctx, ended, shards) })
	if err := g.Wait(); err != nil || !gone.Load() {
		return err
	}
	// The last messages of a router that is gone may be under way.
	if err := pace.Pause(ctx, time.Second); err != nil {
		return err
	}
	return c.endOnShards(ctx, ended, shards)
}

// endOnShards ends operations on the shards until ended is done and nothing is left.
func (c *Cluster) endOnShards(ctx, ended context.Context, shards at) (err error) {
	if shards.conn, err = c.Pool.Checkout(ctx, wire.Primary()); err != nil {
		return err
	}
	defer shards.conn.Release()
	for last := false; ; {
		if err := shards.end(ctx); err != nil || last {
			return err
		}
		last = ended.Err() != nil // once more after that
		if !last {
			_ = pace.Pause(ended, 20*time.Millisecond)
		}
	}
}

func (c *Cluster) othersThan(ctx context.Context, addr string) ([]string, error) {
	conn, err := c.Pool.Checkout(ctx, wire.ByAddress(addr))
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	h, err := helloOn(ctx, conn)
	return slices.DeleteFunc(h.Hosts, func(host string) bool { return host == addr }), err
}

// endAt is at.end for another server. One that cannot be reached is left out: it is checked when it becomes primary.
func (c *Cluster) endAt(ctx context.Context, host string, a at) (reached bool, err error) {
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if a.conn, err = c.Pool.Checkout(short, wire.ByAddress(host).Urgent()); err != nil {
		return false, ctx.Err()
	}
	defer a.conn.Release()
	err = a.end(ctx)
	if err != nil && ctx.Err() == nil && Classify(err) == ClassRetry {
		return false, nil
	}
	return true, err
}

// at is a server on which matching connections, or operations, are to end.
type at struct {
	conn    *wire.Conn
	match   func(name string) bool
	waiting func([]Connection)
	list    bson.D // options of $currentOp, without allUsers; none: a router lists what runs on the shards
	spare   bool   // what runs is waited for, not killed
}

// end kills operations, and waits until nothing is left.
func (a at) end(ctx context.Context) error {
	const interval = time.Second
	pause, reported := 5*time.Millisecond, time.Now()
	for {
		left, err := a.connections(ctx)
		if err != nil {
			return fmt.Errorf("list the connections of %s: %w", a.conn.Addr(), err)
		}
		if len(left) == 0 {
			return nil
		}
		for _, l := range left {
			end := l.end()
			if end == nil || a.spare {
				continue
			}
			// The next list shows what is over, or may not be killed.
			_, err := a.conn.Run(ctx, "admin", end)
			if err != nil && Classify(err) == ClassRetry {
				return fmt.Errorf("kill operations of %s: %w", a.conn.Addr(), err)
			}
		}
		if time.Since(reported) > interval {
			reported = time.Now()
			a.waiting(left)
		}
		if err := pace.Pause(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, 200*time.Millisecond)
	}
}

func (a at) connections(ctx context.Context) ([]Connection, error) {
	list, err := a.currentOp(ctx, true)
	if IsCode(err, CodeUnauthorized) {
		list, err = a.currentOp(ctx, false)
	}
	return slices.DeleteFunc(list, func(l Connection) bool { return !a.match(l.App) }), err
}

func (a at) currentOp(ctx context.Context, all bool) (out []Connection, err error) {
	options := append(bson.D{{Key: "allUsers", Value: all}}, a.list...)
	cur, err := a.conn.OpenCursor(ctx, "admin", bson.D{
		{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: options}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^" + TargetApp}}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "appName", Value: 1}, {Key: "client", Value: 1},
				{Key: "opid", Value: 1}, {Key: "active", Value: 1},
				{Key: "type", Value: 1}, {Key: "lsid.id", Value: 1}}}},
		}},
	}, wire.CursorOptions{})
	if err != nil {
		return nil, err
	}
	defer cur.Close(ctx)
	for {
		b, err := cur.Next(ctx)
		if err == nil {
			err = b.Each(func(doc []byte) error {
				out = append(out, Connection{})
				return bson.Unmarshal(doc, &out[len(out)-1])
			})
		}
		if err != nil || b.Done {
			return out, err
		}
	}
}

// TargetApp is the application name of connections to a target that change no data, and begins that of others.
const TargetApp = "millrace-target"

// RunName is the application name of connections over which an attempt of a run writes. It fits into the 128 bytes of
// the MongoDB handshake specification.
func RunName(job, run string, attempt int64) string {
	return fmt.Sprintf("%s%s.%d", runPrefix(job), run, attempt)
}

func runPrefix(job string) string {
	h := sha256.Sum256([]byte(job))
	return TargetApp + " " + hex.EncodeToString(h[:8]) + "/"
}

// OtherRuns matches the application names of a job's attempts, but for one.
func OtherRuns(job, run string, attempt int64) func(name string) bool {
	prefix, present := runPrefix(job), RunName(job, run, attempt)
	return func(name string) bool { return strings.HasPrefix(name, prefix) && name != present }
}

// AssistantName returns the application name of an assistant's connections for an attempt, which OtherRuns of a later
// attempt matches. An empty token returns the common prefix of these names.
func AssistantName(job, run string, attempt int64, token string) string {
	return RunName(job, run, attempt) + "/" + token
}

// Assistants matches the application names of one assistant of an attempt, or of all if token is empty.
func Assistants(job, run string, attempt int64, token string) func(name string) bool {
	want := AssistantName(job, run, attempt, token)
	return func(name string) bool { return name == want || token == "" && strings.HasPrefix(name, want) }
}

// Newest returns the position of the set's newest write after a linearizable read, which a deposed primary cannot
// answer. ns is any namespace that the user may read, and need not exist. No reply within 10 s is an error of
// ClassRetry.
func (c *Cluster) Newest(ctx context.Context, ns string) (_ OpTime, err error) {
	const timeout = 10 * time.Second
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the newest position of %s: %w", c.Address(), err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return OpTime{}, err
	}
	defer conn.Release()
	db, coll := SplitNS(ns)
	_, err = conn.Run(ctx, db, bson.D{
		{Key: "find", Value: coll}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}},
		{Key: "maxTimeMS", Value: timeout.Milliseconds()},
	})
	if err != nil {
		return OpTime{}, err
	}
	h, err := helloOn(ctx, conn)
	return h.LastWrite.Last, err
}
