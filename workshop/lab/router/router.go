// Package router is a router for tests. It stands in front of a real sharded cluster and speaks the wire protocol to
// clients as a mongos does, which cannot be fetched as a package. Config server and shards are real, and so are shard
// versions, migrations, transactions over shards and the coordinators of schema changes. It was written from the public
// documentation, the driver specifications and what real servers answer.
//
// Commands to one shard, and reads of several, carry the shard's or the database's version, which servers check. They
// are retried with a newer table when a shard refuses them. Writes to several shards outside of a transaction go to all
// shards and are refused by none, as those of a mongos are.
//
// How it differs from a mongos:
//
//   - It acts with its own credentials. The config servers check clients' proofs (SCRAM), but nothing checks their
//     rights. connectionStatus is answered for the client's user.
//   - A command of a client that hangs up ends when it has its answer.
//   - No compression, no TLS towards clients, no exhaust cursors, no OP_QUERY but for the handshake.
//   - Change streams write to idle shards (see changes). They look documents up behind the client's stages, refuse
//     stages that read fullDocument then, and have no post-images.
//   - No tailable cursors, sharded time series, map-reduce or management of users; over several shards
//     no explain, $out and $merge.
//   - A server merges aggregations from the shards' results as literal documents, 12 MB at most. Shards compute $group
//     for $sum, $min, $max, $count, $push and $addToSet only; for others all documents are merged.
//   - A batch of writes whose command a shard refuses fails with that shard's error, not with one error a statement.
//   - Replies to writes have no opTime and no electionId.
//   - An update, or findAndModify, that gives a document to another shard runs in a transaction of the router's own
//     session. A retry of the client's statement does not find the document.
//   - Databases are made such that their collections can be sharded; a mongos before 6.0 wants enableSharding first.
//   - A shard that joined less than 250 ms ago may be left out of a write to several shards.
//   - A transaction that is open on other shards waits for a migration for two tries, others longer than a mongos.
//   - count on a view of a sharded collection reads the documents.
//   - A collection's routing table is always read completely; with many chunks that is slower than a mongos.
package router

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	defaultListen = "127.0.0.1:0"
	startTimeout  = 5 * time.Minute // startTimeout bounds Start when the caller's context has no deadline.
	// reapEvery is the interval at which unused cursors and transactions are removed.
	reapEvery = 10 * time.Second
)

// Options of a router.
type Options struct {
	// ConfigURI is the connection string of the config servers, whose credentials and TLS hold for shards too.
	ConfigURI string
	Listen    string       // Listen is the address to listen on; empty is a free port of the loopback interface.
	Logger    *slog.Logger // Logger receives what the router does; nil discards it.
}

// Router takes connections of clients until it is closed. Its methods may be called concurrently.
type Router struct {
	log      *slog.Logger
	listener net.Listener
	auth     bool
	upstream *upstream
	catalog  *catalog
	clock    *clock
	cursors  *cursors
	sessions *sessions
	features features
	handlers map[string]handler
	taken    taken

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	clients map[net.Conn]*client
	lastID  int32
	lastOp  int32
}

// Start connects to the config servers, finds the shards and listens. ctx bounds the start alone.
func Start(ctx context.Context, o Options) (*Router, error) {
	if o.Listen == "" {
		o.Listen = defaultListen
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r, err := connect(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("router: start: %w", err)
	}
	if r.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.Listen); err != nil {
		return nil, errors.Join(fmt.Errorf("router: listen on %s: %w", o.Listen, err), r.upstream.close())
	}
	r.wg.Go(r.accept)
	r.wg.Go(r.reap)
	r.log.Info("router is up", "address", r.Host())
	return r, nil
}

func connect(ctx context.Context, o Options) (*Router, error) {
	r := &Router{log: o.Logger, clock: &clock{}, cursors: &cursors{all: map[int64]*cursor{}, busy: map[int64]bool{}},
		sessions: &sessions{all: map[string]*transaction{}}, clients: map[net.Conn]*client{}}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if r.upstream, err = openUpstream(o.ConfigURI, r.clock); err != nil {
		r.cancel()
		return nil, err
	}
	r.auth = r.upstream.opts.Auth != nil
	r.catalog = &catalog{upstream: r.upstream, entries: map[string]*entry{}}
	r.handlers = commands()
	if err := r.learn(ctx); err != nil {
		r.cancel()
		return nil, errors.Join(err, r.upstream.close())
	}
	return r, nil
}

func (r *Router) learn(ctx context.Context) (err error) {
	if r.features, err = readFeatures(ctx, r.upstream.config); err != nil {
		return err
	}
	r.catalog.features = r.features
	return r.upstream.refresh(ctx)
}

// URI is a connection string of the router, without credentials.
func (r *Router) URI() string { return "mongodb://" + r.Host() + "/" }

// Host is the router's host:port.
func (r *Router) Host() string { return r.listener.Addr().String() }

// Close ends all connections and waits for all that the router does. Closing twice does no harm.
func (r *Router) Close() error {
	r.cancel()
	err := r.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	r.mu.Lock()
	for conn := range r.clients {
		_ = conn.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
	return errors.Join(err, r.upstream.close())
}

func (r *Router) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		if c := r.admit(conn); c != nil {
			r.wg.Go(func() { r.serve(c) })
		}
	}
}

// admit remembers a connection for Close; nil when that has begun.
func (r *Router) admit(conn net.Conn) *client {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		_ = conn.Close()
		return nil
	}
	r.lastID++
	c := &client{r: r, conn: conn, id: r.lastID}
	r.clients[conn] = c
	return c
}

func (r *Router) serve(c *client) {
	if err := c.loop(r.ctx); err != nil && r.ctx.Err() == nil {
		r.log.Debug("connection ended", "client", c.id, "err", err)
	}
	r.mu.Lock()
	delete(r.clients, c.conn)
	r.mu.Unlock()
	c.close()
}

// reap ends what clients have left behind.
func (r *Router) reap() {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case now := <-tick.C:
			for _, c := range r.cursors.idle(now) {
				c.kill(r.ctx, r.upstream)
			}
			r.sessions.forget(now)
		}
	}
}

// maxMessage is what a server tells clients as maxMessageSizeBytes.
const maxMessage = 48_000_000

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

// answer gives the framed reply to a framed message, none when the client wants none. An error ends the connection.
func (c *client) answer(ctx context.Context, msg []byte) ([]byte, error) {
	id, parse, write := int32(binary.LittleEndian.Uint32(msg[4:])), parseMsg, appendMsg
	switch op := binary.LittleEndian.Uint32(msg[12:]); op {
	case opMsg:
	case opQuery:
		parse, write = parseQuery, appendReply
	default:
		return nil, fmt.Errorf("unsupported opcode %d", op)
	}
	req, err := parse(msg[headerSize:])
	if err != nil {
		return nil, err
	}
	body, err := c.reply(ctx, req)
	if err != nil || req.moreToCome {
		return nil, err
	}
	c.out = write(c.out[:0], id, body)
	return c.out, nil
}

func readMessage(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	n := int(int32(binary.LittleEndian.Uint32(head[:])))
	if n < headerSize || n > maxMessage {
		return nil, fmt.Errorf("unsupported message of %d bytes", n)
	}
	msg := make([]byte, n)
	copy(msg, head[:])
	if _, err := io.ReadFull(in, msg[4:]); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	return msg, nil
}
