package router

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxMessage is what a server tells clients as maxMessageSizeBytes.
const maxMessage = 48_000_000

// client is one connection of a client.
type client struct {
	r     *Router
	conn  net.Conn
	id    int32
	login *login // nil when the client has not begun to prove who it is
	known bool   // has proved who it is
	out   []byte

	// With Router.mu:
	app   string     // the application's name, as the client says it
	about bson.Raw   // all that it says of itself; nil when nothing
	op    *operation // what it runs; nil for nothing
}

func (c *client) close() {
	c.endLogin()
	_ = c.conn.Close()
}

// loop reads requests and writes replies, one after the other.
func (c *client) loop(ctx context.Context) error {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		msg, err := readMessage(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		reply, err := c.answer(ctx, msg)
		if err != nil {
			return err
		}
		if reply == nil {
			continue
		}
		if _, err := c.conn.Write(reply); err != nil {
			return fmt.Errorf("write reply: %w", err)
		}
	}
}

// answer gives the framed reply to a framed message, none when the client wants
// none. An error ends the connection.
func (c *client) answer(ctx context.Context, msg []byte) ([]byte, error) {
	id := int32(binary.LittleEndian.Uint32(msg[4:]))
	switch op := binary.LittleEndian.Uint32(msg[12:]); op {
	case opMsg:
		req, err := parseMsg(msg[headerSize:])
		if err != nil {
			return nil, err
		}
		body, err := c.reply(ctx, req)
		if err != nil || req.moreToCome {
			return nil, err
		}
		c.out = appendMsg(c.out[:0], id, body)
		return c.out, nil
	case opQuery:
		req, err := parseQuery(msg[headerSize:])
		if err != nil {
			return nil, err
		}
		body, err := c.reply(ctx, req)
		if err != nil {
			return nil, err
		}
		c.out = appendReply(c.out[:0], id, body)
		return c.out, nil
	default:
		return nil, fmt.Errorf("message with opcode %d is not taken", op)
	}
}

// readMessage reads one framed message.
func readMessage(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	n := int(int32(binary.LittleEndian.Uint32(head[:])))
	if n < headerSize || n > maxMessage {
		return nil, fmt.Errorf("message of %d bytes is not taken", n)
	}
	msg := make([]byte, n)
	copy(msg, head[:])
	if _, err := io.ReadFull(in, msg[4:]); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	return msg, nil
}
