package router

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/wire"
)

// login is a client's connection of its own to the config servers. They check its
// proof there, and after that know what it may do.
type login struct{ conn net.Conn }

// startLogin opens a connection to the primary of the config servers.
func (r *Router) startLogin(ctx context.Context) (*login, error) {
	c, err := r.upstream.config.pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, fmt.Errorf("reach the config servers: %w", err)
	}
	addr := c.Addr()
	c.Release()
	if cfg := r.upstream.opts.TLSConfig; cfg != nil {
		conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
		return &login{conn}, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	return &login{conn}, err
}

// exchange sends a command and reads the reply.
func (l *login) exchange(cmd bson.D) (bson.Raw, error) {
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	if _, err := l.conn.Write(appendMsg(nil, 0, raw)); err != nil {
		return nil, fmt.Errorf("write to the config servers: %w", err)
	}
	msg, err := readMessage(l.conn)
	if err != nil {
		return nil, err
	}
	reply, err := parseMsg(msg[headerSize:])
	if err != nil {
		return nil, err
	}
	return reply.body, nil
}

func (c *client) endLogin() {
	c.known = false
	if c.login != nil {
		_ = c.login.conn.Close()
		c.login = nil
	}
}

// logout ends what saslStart began.
func logout(_ context.Context, c *call) (bson.D, error) {
	c.client.endLogin()
	return bson.D{}, nil
}

// connectionStatus says who the client is, and what it may do.
func connectionStatus(ctx context.Context, c *call) (bson.D, error) {
	if !c.client.known {
		return onConfig(ctx, c)
	}
	reply, err := c.client.login.exchange(append(without(c.cmd), bson.E{Key: "$db", Value: c.db}))
	return passed(bsoncore.Document(reply)), err
}

// saslStart begins an authentication.
func saslStart(ctx context.Context, c *call) (bson.D, error) {
	c.client.endLogin()
	var err error
	if c.client.login, err = c.r.startLogin(ctx); err != nil {
		c.client.login = nil
		return nil, err
	}
	return saslContinue(ctx, c)
}

// saslContinue passes a step of an authentication on.
func saslContinue(_ context.Context, c *call) (bson.D, error) {
	if c.client.login == nil {
		return nil, fail(17, "ProtocolError", "No SASL session state found")
	}
	reply, err := c.client.login.exchange(append(without(c.cmd), bson.E{Key: "$db", Value: c.db}))
	if err != nil {
		c.client.endLogin()
		return nil, err
	}
	if truth(reply.Lookup("done")) {
		c.client.known = true
	}
	return passed(bsoncore.Document(reply)), nil
}
