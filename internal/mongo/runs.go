package mongo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/wire"
)

// Write runs a command that changes something, at the primary and over the
// pool: its guard is asked after the connection is there, and the connection
// carries the pool's application name (see EndConnections). A write error in
// the reply is an error.
func (c *Cluster) Write(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	return write(ctx, conn, db, cmd)
}

// Change is Write for commands whose reply does not say the election term, as
// those that change the schema: the server is asked for it over the same
// connection. A set that has none tells -1.
func (c *Cluster) Change(ctx context.Context, db string, cmd bson.D) (term int64, err error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return -1, err
	}
	defer conn.Release()
	if _, err := write(ctx, conn, db, cmd); err != nil {
		return -1, err
	}
	reply, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return -1, fmt.Errorf("read the term of %s: %w", conn.Addr(), err)
	}
	if t, ok := reply.Lookup("lastWrite", "opTime", "t").AsInt64OK(); ok {
		return t, nil
	}
	return -1, nil
}

func write(ctx context.Context, conn *wire.Conn, db string, cmd bson.D) (bson.Raw, error) {
	body, err := conn.Run(ctx, db, cmd)
	if err != nil {
		return nil, err
	}
	res := wire.ParseWriteResult(body)
	if err := Interrupted(res); err != nil {
		return nil, err
	}
	if len(res.Errors) > 0 {
		return nil, fmt.Errorf("%s (code %d)", res.Errors[0].Message, res.Errors[0].Code)
	}
	return bson.Raw(body), nil
}

// RenewConnections closes the pool's connections and has later ones carry
// another application name. See wire.Pool.Renew.
func (c *Cluster) RenewConnections(ctx context.Context, name string) error {
	var members []string
	if h, err := c.hello(ctx); err == nil { // else the pool knows some
		members = h.Hosts
	}
	return c.Pool.Renew(ctx, name, members)
}

// Connection is one that a client has to a server.
type Connection struct {
	App    string // the application name of its handshake
	Client string // address of the client, as the server sees it
	opid   any    // of the operation that runs on it; nil for none
}

// EndConnections kills what runs on the connections whose application names
// match, at the primary that the pool reaches and the other members, and waits
// until none of these connections exists. A message can only arrive over a connection, so nothing
// that was sent over them has any effect on that server afterwards. waiting is
// called now and then with those that are left. Then it runs a command over the
// connection with which it looked, and returns the reply: by its term the
// caller knows that it was the primary's list.
//
// Without the privilege inprog only connections of the same user are seen.
func (c *Cluster) EndConnections(ctx context.Context, match func(name string) bool, waiting func([]Connection), then bson.D) (bson.Raw, error) {
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	// A message to a member that is no primary now has an effect if it becomes
	// one again: none of them may have such a connection.
	for _, host := range c.others(ctx, conn) {
		if err := c.endAt(ctx, host, match, waiting); err != nil {
			return nil, err
		}
	}
	if err := endOn(ctx, conn, match, waiting); err != nil {
		return nil, err
	}
	reply, err := conn.Run(ctx, StateDB, then)
	return bson.Raw(reply), err
}

// others are the members that the primary names, but itself.
func (c *Cluster) others(ctx context.Context, primary *wire.Conn) []string {
	reply, err := primary.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	var h hello
	if err != nil || bson.Unmarshal(reply, &h) != nil {
		return nil
	}
	return slices.DeleteFunc(h.Hosts, func(host string) bool { return host == primary.Addr() })
}

// endAt is endOn for another member. One that cannot be reached now is left out:
// whoever finds it as the primary looks again.
func (c *Cluster) endAt(ctx context.Context, host string, match func(string) bool, waiting func([]Connection)) error {
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	conn, err := c.Pool.Checkout(short, wire.ByAddress(host))
	if err != nil {
		return ctx.Err()
	}
	defer conn.Release()
	err = endOn(ctx, conn, match, waiting)
	if err != nil && ctx.Err() == nil && Classify(err) == ClassRetry {
		return nil
	}
	return err
}

// endOn kills what runs on the connections of one server, and waits until they
// are gone.
func endOn(ctx context.Context, conn *wire.Conn, match func(string) bool, waiting func([]Connection)) error {
	const tell = time.Second
	pause, told := 5*time.Millisecond, time.Now()
	for {
		left, err := connections(ctx, conn, match)
		if err != nil {
			return fmt.Errorf("list the connections of %s: %w", conn.Addr(), err)
		}
		if len(left) == 0 {
			return nil
		}
		if err := killOps(ctx, conn, left); err != nil {
			return fmt.Errorf("kill operations of %s: %w", conn.Addr(), err)
		}
		if time.Since(told) > tell {
			told = time.Now()
			waiting(left)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, 200*time.Millisecond)
	}
}

// killOps kills what runs on connections. What is over by now, or may not be
// killed, the next list tells.
func killOps(ctx context.Context, conn *wire.Conn, list []Connection) error {
	for _, l := range list {
		if l.opid == nil {
			continue
		}
		_, err := conn.Run(ctx, "admin", bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: l.opid}})
		if err != nil && Classify(err) == ClassRetry {
			return err
		}
	}
	return nil
}

// connections lists those of a server whose application names match.
func connections(ctx context.Context, conn *wire.Conn, match func(string) bool) ([]Connection, error) {
	list, err := currentOp(ctx, conn, true)
	if IsCode(err, CodeUnauthorized) {
		list, err = currentOp(ctx, conn, false)
	}
	if err != nil {
		return nil, err
	}
	var out []Connection
	for _, raw := range list {
		app, _ := raw.Lookup("appName").StringValueOK()
		if !match(app) {
			continue
		}
		l := Connection{App: app}
		l.Client, _ = raw.Lookup("client").StringValueOK()
		if id, err := raw.LookupErr("opid"); err == nil && raw.Lookup("active").Boolean() {
			l.opid = id
		}
		out = append(out, l)
	}
	return out, nil
}

func currentOp(ctx context.Context, conn *wire.Conn, all bool) ([]bson.Raw, error) {
	cur, err := conn.OpenCursor(ctx, "admin", bson.D{
		{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: all}, {Key: "idleConnections", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: bson.D{{Key: "$regex", Value: "^" + TargetApp}}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "appName", Value: 1}, {Key: "client", Value: 1}, {Key: "opid", Value: 1}, {Key: "active", Value: 1}}}},
		}},
	}, wire.CursorOptions{})
	if err != nil {
		return nil, err
	}
	var out []bson.Raw
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.Each(func(doc []byte) error { out = append(out, bson.Raw(doc)); return nil }); err != nil {
			return nil, err
		}
		if b.Done {
			return out, nil
		}
	}
}

// TargetApp is the application name of connections to a target that change no
// data; the names of those that do begin with it.
const TargetApp = "millrace-target"

// RunName is the application name of the connections over which an attempt of a
// job's run writes. It fits into the 128 bytes that a name may have (MongoDB
// handshake specification).
func RunName(job, run string, attempt int64) string {
	return fmt.Sprintf("%s%s.%d", runPrefix(job), run, attempt)
}

func runPrefix(job string) string {
	h := sha256.Sum256([]byte(job))
	return TargetApp + " " + hex.EncodeToString(h[:8]) + "/"
}

// OtherRuns matches the application names of all attempts of all runs of a job
// but one.
func OtherRuns(job, run string, attempt int64) func(name string) bool {
	prefix, present := runPrefix(job), RunName(job, run, attempt)
	return func(name string) bool { return strings.HasPrefix(name, prefix) && name != present }
}

// Newest is the position of the newest write of the set, as its primary knows
// it after a linearizable read: a primary that was deposed and has not learned
// of it cannot answer. ns is any namespace that the user may read; it need not
// exist. No answer within some seconds is an error of ClassRetry.
func (c *Cluster) Newest(ctx context.Context, ns string) (OpTime, error) {
	const patience = 10 * time.Second
	fail := func(err error) (OpTime, error) {
		return OpTime{}, fmt.Errorf("read the newest position of %s: %w", c.Address(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience+time.Second)
	defer cancel()
	conn, err := c.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return fail(err)
	}
	defer conn.Release()
	db, coll := SplitNS(ns)
	_, err = conn.Run(ctx, db, bson.D{
		{Key: "find", Value: coll}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}}, {Key: "maxTimeMS", Value: patience.Milliseconds()},
	})
	if err != nil {
		return fail(err)
	}
	reply, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return fail(err)
	}
	var h hello
	if err := bson.Unmarshal(reply, &h); err != nil {
		return fail(err)
	}
	return h.LastWrite.OpTime, nil
}
