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

// errClosed is what a released Conn answers.
var errClosed = errors.New("connection was released")

// Conn is one checked-out connection. It is not safe for concurrent use.
type Conn struct {
	pool        *Pool
	mc          *mnet.Connection
	processor   driver.ErrorProcessor
	secondaryOk bool
	broken      bool
	msg         Message // for Command; hot paths bring their own
	zbuf        []byte
	unpack      unpacker
}

// Addr is the server's host:port.
func (c *Conn) Addr() string { return c.mc.Address().String() }

// Release returns the connection to the pool, or closes it when an exchange on
// it failed half-way. Calling it twice is harmless.
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
}

// Command sends cmd (without `$db`) to db and returns the reply's body, which
// is the caller's to keep. A reply with ok:0 is a mongo.CommandError; write
// errors are left in the body for the caller (WriteErrors).
func (c *Conn) Command(ctx context.Context, db string, cmd bsoncore.Document) (bsoncore.Document, error) {
	c.msg.Reset(db, cmd, c.secondaryOk)
	return c.RoundTrip(ctx, &c.msg)
}

// Run is Command for a command given as bson.D.
func (c *Conn) Run(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return c.Command(ctx, db, raw)
}

// RoundTrip sends a message and returns the reply's body, which is the
// caller's to keep. Errors are as those of Command.
func (c *Conn) RoundTrip(ctx context.Context, m *Message) (bsoncore.Document, error) {
	if c.mc == nil {
		return nil, errClosed
	}
	if err := c.pool.Allowed(); err != nil {
		return nil, err
	}
	wm, err := c.compress(m.finish(wiremessage.NextRequestID()))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := c.mc.Write(ctx, wm); err != nil {
		return nil, c.fail(ctx, "write", err)
	}
	reply, err := c.mc.Read(ctx)
	if err != nil {
		return nil, c.fail(ctx, "read", err)
	}
	c.pool.took(time.Since(began))
	body, err := c.unpack.reply(reply)
	if err != nil {
		c.broken = true
		return nil, err
	}
	return body, c.commandError(body)
}

func (c *Conn) compress(wm []byte) ([]byte, error) {
	if c.mc.Compressor == nil || len(c.mc.Description().Compression) == 0 {
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
	if c.processor != nil {
		c.processor.ProcessError(err, c.mc)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return networkError(op+" "+c.Addr(), err)
}

// networkError wraps a transport failure the way the driver's public API does,
// so that one classification serves both.
func networkError(op string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return mongo.CommandError{Message: op + ": " + err.Error(), Labels: []string{driver.NetworkError}, Wrapped: err}
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
