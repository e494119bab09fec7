package router

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/wire"
)

// Opcodes, sizes and flags are those of the MongoDB wire protocol.
const (
	headerSize = 16
	opReply    = 1
	opQuery    = 2004
	opMsg      = 2013

	flagChecksum   = 1 << 0
	flagMoreToCome = 1 << 1
)

// errMalformed is what a message gets that is not as the protocol wants it.
var errMalformed = errors.New("malformed message")

type request struct {
	db         string // named in the message by OP_QUERY, else ""
	body       bson.Raw
	sequences  []sequence
	moreToCome bool // no reply is wanted
}

// sequence is a document sequence: a section of kind 1.
type sequence struct {
	name string
	docs []bson.Raw
}

func parseMsg(b []byte) (*request, error) {
	if len(b) < 4 {
		return nil, errMalformed
	}
	flags := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if flags&flagChecksum != 0 { // not verified: the transport is the loopback
		if len(b) < 4 {
			return nil, errMalformed
		}
		b = b[:len(b)-4]
	}
	if unknown := flags & 0xffff &^ (flagChecksum | flagMoreToCome); unknown != 0 {
		return nil, fmt.Errorf("unsupported message flags %#x", flags)
	}
	r := &request{moreToCome: flags&flagMoreToCome != 0}
	for len(b) > 0 {
		var err error
		if b, err = r.section(b); err != nil {
			return nil, err
		}
	}
	if r.body == nil {
		return nil, errMalformed
	}
	return r, nil
}

// section reads the section that b begins with and returns what follows it.
func (r *request) section(b []byte) ([]byte, error) {
	kind, rest := b[0], b[1:]
	n, ok := size(rest)
	if !ok {
		return nil, errMalformed
	}
	switch kind {
	case 0:
		r.body = bson.Raw(rest[:n])
		if !bsonraw.Valid(r.body, bsonraw.MaxDepth) {
			return nil, errMalformed
		}
	case 1:
		s, err := parseSequence(rest[4:n])
		if err != nil {
			return nil, err
		}
		r.sequences = append(r.sequences, s)
	default:
		return nil, errMalformed
	}
	return rest[n:], nil
}

// size is the length that b begins with, false when b is shorter.
func size(b []byte) (int, bool) {
	if len(b) < 5 {
		return 0, false
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	return n, n >= 5 && n <= len(b)
}

// parseSequence reads a document sequence behind its length.
func parseSequence(b []byte) (sequence, error) {
	end := bytes.IndexByte(b, 0)
	if end < 0 {
		return sequence{}, errMalformed
	}
	s := sequence{name: string(b[:end])}
	b = b[end+1:]
	for len(b) > 0 {
		n, ok := size(b)
		if !ok || !bsonraw.Valid(b[:n], bsonraw.MaxDepth) {
			return sequence{}, errMalformed
		}
		s.docs = append(s.docs, bson.Raw(b[:n]))
		b = b[n:]
	}
	return s, nil
}

// parseQuery reads an OP_QUERY without its header; only commands are taken.
func parseQuery(b []byte) (*request, error) {
	if len(b) < 4 {
		return nil, errMalformed
	}
	b = b[4:] // flags
	end := bytes.IndexByte(b, 0)
	if end < 0 || len(b) < end+1+8 {
		return nil, errMalformed
	}
	db, ok := bytes.CutSuffix(b[:end], []byte(".$cmd"))
	if !ok {
		return nil, errors.New("OP_QUERY is supported for commands only")
	}
	b = b[end+1+8:] // numberToSkip, numberToReturn
	n, ok := size(b)
	if !ok || !bsonraw.Valid(b[:n], bsonraw.MaxDepth) {
		return nil, errMalformed
	}
	return &request{db: string(db), body: bson.Raw(b[:n])}, nil
}

// appendMsg appends an OP_MSG reply with one section.
func appendMsg(dst []byte, to int32, body bson.Raw) []byte {
	dst = appendHeader(dst, headerSize+5+len(body), to, opMsg)
	dst = append(dst, 0, 0, 0, 0, 0) // no flags, kind 0
	return append(dst, body...)
}

// appendReply appends an OP_REPLY, the answer to OP_QUERY, with one document.
func appendReply(dst []byte, to int32, body bson.Raw) []byte {
	dst = appendHeader(dst, headerSize+20+len(body), to, opReply)
	dst = append(dst, 8, 0, 0, 0)          // AwaitCapable
	dst = append(dst, make([]byte, 12)...) // cursorID, startingFrom
	dst = append(dst, 1, 0, 0, 0)          // numberReturned
	return append(dst, body...)
}

func appendHeader(dst []byte, total int, to int32, op uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(total))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(to))
	return binary.LittleEndian.AppendUint32(dst, op)
}

// login is a client's connection to the config servers, which check its proof and know its rights.
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

func connectionStatus(ctx context.Context, c *call) (bson.D, error) {
	if !c.client.known {
		return onConfig(ctx, c)
	}
	reply, err := c.client.login.exchange(append(without(c.cmd), bson.E{Key: "$db", Value: c.db}))
	return passed(bsoncore.Document(reply)), err
}

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
