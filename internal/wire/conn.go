package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
)

var (
	errClosed = errors.New("connection was released")
	errBroken = errors.New("an earlier exchange failed half-way, and its reply may still come")
)

// Conn is one checked-out connection. It is not safe for concurrent use.
type Conn struct {
	pool        *Pool
	mc          *mnet.Connection
	processor   driver.ErrorProcessor
	secondaryOk bool
	broken      bool
	wait        *Wait
	router      string  // the address, if it is one of those that exchanges are spread over
	msg         Message // for Command; hot paths bring their own
	zbuf        []byte
	unpack      unpacker
}

// Addr is the server's host:port.
func (c *Conn) Addr() string { return c.mc.Address().String() }

// Release returns the connection to the pool, or closes it after an exchange that failed half-way. It may be
// called twice.
func (c *Conn) Release() {
	if c.mc == nil {
		return
	}
	if e, ok := c.mc.ReadWriteCloser.(driver.Expirable); c.broken && ok {
		_ = e.Expire()
	} else {
		_ = c.mc.Close()
	}
	c.mc = nil
	c.pool.waits.Forget(c.wait)
}

// Command sends cmd (without `$db`) to db and returns the reply's body, which the caller may keep. A reply with ok:0
// is a mongo.CommandError; write errors are in the body (ParseWriteResult).
func (c *Conn) Command(ctx context.Context, db string, cmd bsoncore.Document) (bsoncore.Document, error) {
	c.msg.Reset(db, cmd, c.secondaryOk)
	return c.RoundTrip(ctx, &c.msg)
}

// Run is Command, with cmd as bson.D instead of raw bytes.
func (c *Conn) Run(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return c.Command(ctx, db, raw)
}

// RunBoth sends two commands before the reply to the first, which must be a quick one. failed is the error of the
// first, of the kinds of Command.
func (c *Conn) RunBoth(ctx context.Context, db string, first bson.D, secondDB string,
	second bson.D) (replies [2]bsoncore.Document, failed, err error) {
	for i, cmd := range []bson.D{first, second} {
		raw, err := bson.Marshal(cmd)
		if err != nil {
			return replies, nil, fmt.Errorf("encode command: %w", err)
		}
		c.msg.Reset([]string{db, secondDB}[i], raw, c.secondaryOk)
		if err := c.send(ctx, &c.msg); err != nil {
			c.broken = true // an answer may be under way
			return replies, nil, err
		}
	}
	if replies[0], failed = c.receive(ctx); c.broken {
		return replies, nil, failed
	}
	c.wait.begin()
	replies[1], err = c.receive(ctx)
	return replies, failed, err
}

// RoundTrip sends a message and returns the reply's body, which the caller may keep. See Command.
func (c *Conn) RoundTrip(ctx context.Context, m *Message) (bsoncore.Document, error) {
	began := time.Now()
	if err := c.send(ctx, m); err != nil {
		return nil, err
	}
	body, err := c.receive(ctx)
	if !c.broken {
		c.pool.exchanged(m.Len()+len(body), began, time.Now())
	}
	return body, err
}

func (c *Conn) send(ctx context.Context, m *Message) error {
	if c.mc == nil {
		return errClosed
	}
	if c.broken {
		return networkError("write "+c.Addr(), errBroken)
	}
	if err := c.pool.Allowed(); err != nil {
		return err
	}
	wm, err := c.compress(m.finish(wiremessage.NextRequestID()))
	if err != nil {
		return err
	}
	if c.router != "" {
		c.pool.over.message(c.router, int64(len(wm)))
	}
	c.wait.begin()
	if err := c.mc.Write(ctx, wm); err != nil {
		return c.fail(ctx, "write", err)
	}
	return nil
}

func (c *Conn) receive(ctx context.Context) (bsoncore.Document, error) {
	reply, err := c.mc.Read(ctx)
	c.wait.end()
	if err != nil {
		return nil, c.fail(ctx, "read", err)
	}
	body, err := c.unpack.reply(reply)
	if err != nil {
		c.broken = true
		return nil, err
	}
	return body, c.commandError(body)
}

func (c *Conn) compress(wm []byte) ([]byte, error) {
	if c.mc.Compressor == nil || len(c.mc.Description().Compression) == 0 || c.pool.zip != nil && !c.pool.zip.on.Load() {
		return wm, nil
	}
	out, err := c.mc.CompressWireMessage(wm, c.zbuf[:0])
	if err != nil {
		return nil, fmt.Errorf("compress message: %w", err)
	}
	c.zbuf = out
	return out, nil
}

func (c *Conn) fail(ctx context.Context, op string, err error) error {
	c.broken = true
	c.wait.end()
	if c.processor != nil {
		c.processor.ProcessError(err, c.mc)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return networkError(op+" "+c.Addr(), err)
}

// networkError wraps a transport failure as the driver's public API does.
func networkError(op string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return mongo.CommandError{Message: op, Labels: []string{driver.NetworkError}, Wrapped: err}
}

func (c *Conn) commandError(body bsoncore.Document) error {
	okv, err := body.LookupErr("ok")
	if err != nil {
		return fmt.Errorf("reply without ok: %w", err)
	}
	if n, isNum := okv.AsInt64OK(); isNum && n == 1 {
		return nil
	}
	e, ok := errors.AsType[driver.Error](driver.ExtractErrorFromServerResponse(body))
	if !ok {
		return errors.New("reply is neither well nor an error")
	}
	if c.processor != nil {
		c.processor.ProcessError(e, c.mc)
	}
	return mongo.CommandError{Code: e.Code, Message: e.Message, Name: e.Name, Labels: e.Labels, Raw: bson.Raw(body)}
}
