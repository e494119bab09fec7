package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	defaultListen = "127.0.0.1:0"
	// startTimeout bounds Start when the caller's context has no deadline.
	startTimeout = 5 * time.Minute
	// reapEvery is how often cursors and transactions are looked at that nobody
	// uses any more.
	reapEvery = 10 * time.Second
)

// Options of a router.
type Options struct {
	// ConfigURI is the connection string of the config servers. Its credentials
	// and TLS settings are used for the shards too.
	ConfigURI string
	// Listen is the address to listen on; empty is a free port of the loopback
	// interface.
	Listen string
	// Logger receives what the router does; nil discards it.
	Logger *slog.Logger
}

// Router takes connections of clients until it is closed. Its methods may be
// called concurrently.
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

// Start connects to the config servers, finds the shards and listens. ctx bounds
// the start alone; the router runs until Close.
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

// connect makes a router that does not listen yet.
func connect(ctx context.Context, o Options) (*Router, error) {
	r := &Router{log: o.Logger, clock: &clock{}, cursors: newCursors(), sessions: newSessions(), clients: map[net.Conn]*client{}}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if r.upstream, err = openUpstream(o.ConfigURI, r.clock); err != nil {
		r.cancel()
		return nil, err
	}
	r.auth = r.upstream.opts.Auth != nil
	r.catalog = newCatalog(r.upstream)
	r.handlers = commands()
	if err := r.learn(ctx); err != nil {
		r.cancel()
		return nil, errors.Join(err, r.upstream.close())
	}
	return r, nil
}

// learn reads the servers' version and the list of shards.
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

// Close ends all connections and waits for all that the router does. Closing
// twice does no harm.
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

// accept takes connections until the listener is closed.
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

// serve answers one client until it hangs up.
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
