package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/xoptions"

	"github.com/millrace/millrace/internal/pace"
)

// Pool selects servers of one deployment and hands out the driver's connections to them. It is safe for concurrent
// use.
type Pool struct {
	opts  *options.ClientOptions
	first *deployment // a driver's client may use it too
	now   atomic.Pointer[deployment]
	guard atomic.Pointer[func() error]
	away  atomic.Int64 // shortest exchange in nanoseconds, 0 before the first
	over  spread       // of what goes to routers
	zip   *chooser     // nil: the connection string decides whether messages are compressed
	waits Waits

	mu     sync.Mutex // of the following
	shared bool       // a client uses first and ends it
	most   int        // connections in use of each deployment; 0 is any number
}

// RoundTripTime is the time of the fastest exchange, zero before the first.
func (p *Pool) RoundTripTime() time.Duration { return time.Duration(p.away.Load()) }

// exchanged counts an exchange, by its bytes before compression.
func (p *Pool) exchanged(bytes int, began, ended time.Time) {
	took := max(int64(ended.Sub(began)), 1)
	for least := p.away.Load(); least == 0 || took < least; least = p.away.Load() {
		p.away.CompareAndSwap(least, took)
	}
	if p.zip != nil {
		p.zip.moved(bytes, began, ended)
	}
}

// SetGuard makes every exchange ask fn first, and fail with its error.
func (p *Pool) SetGuard(fn func() error) { p.guard.Store(&fn) }

// Allowed returns the guard's error.
func (p *Pool) Allowed() error {
	if guard := p.guard.Load(); guard != nil {
		return (*guard)()
	}
	return nil
}

// Open starts to monitor the deployment that opts names. It does not wait for a server.
func Open(opts *options.ClientOptions) (*Pool, error) {
	return open(opts, nil)
}

func open(opts *options.ClientOptions, zip *chooser) (*Pool, error) {
	d, err := connect(opts, 0, zip)
	if err != nil {
		return nil, err
	}
	p := &Pool{opts: opts, first: d, zip: zip}
	p.now.Store(d)
	return p, nil
}

// OpenChoosing is Open for a pool that compresses messages with zstd while that moves more. It calls changed, if not
// nil, which must not use the pool. Compressors that opts name are used always.
func OpenChoosing(opts *options.ClientOptions, changed func(Compression)) (*Pool, error) {
	if len(opts.Compressors) > 0 {
		return Open(opts)
	}
	own := *opts
	own.SetCompressors([]string{"zstd"}).SetZstdLevel(1) // the fastest: the link is what is slow
	zip := &chooser{changed: changed}
	p, err := open(&own, zip)
	if err == nil {
		zip.rtt = p.RoundTripTime
	}
	return p, err
}

func (p *Pool) Compression() Compression {
	if p.zip != nil {
		return p.zip.compression()
	}
	return Compression{On: len(p.opts.Compressors) > 0}
}

// Share makes a driver's client with opts use the pool's connections, and close them at its end. After Renew the
// client keeps the earlier ones.
func (p *Pool) Share(opts *options.ClientOptions) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shared = true
	return xoptions.SetInternalClientOptions(opts, "deployment", driver.Deployment(p.first))
}

// Limit bounds how many connections are in use at once, with those of a client that shares them; 0 is no bound. After
// Renew it bounds earlier and later ones each. While all are in use for seconds there is one more, so that no caller
// blocks an owner. Monitoring is not counted. Connections in use stay open until they are given back.
func (p *Pool) Limit(most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = most
	p.first.slots.bound(most)
	p.now.Load().slots.bound(most)
}

func (p *Pool) Limited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most > 0
}

// Renew gives later connections another application name, which a server lists. leave closes the earlier ones unless
// a client shares them: those still checked out when its ctx ends. members are more addresses of the deployment,
// which may have moved.
func (p *Pool) Renew(appName string, members []string) (leave func(context.Context) error, err error) {
	opts := *p.opts
	opts.AppName = &appName
	if opts.Direct == nil || !*opts.Direct {
		opts.Hosts = p.Addresses(members...)
	}
	opts.Monitor, opts.ServerMonitor, opts.PoolMonitor = nil, nil, nil // those are the client's
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := connect(&opts, p.most, p.zip)
	if err != nil {
		return nil, err
	}
	old := p.now.Swap(d)
	if p.shared && old == p.first {
		return func(context.Context) error { return nil }, nil
	}
	return func(ctx context.Context) error {
		if err := old.Disconnect(ctx); err != nil {
			return fmt.Errorf("wire: close connections: %w", err)
		}
		return nil
	}, nil
}

// Warm opens connections to the primary, as many as Limit allows at most, and waits for them. It ignores errors.
func (p *Pool) Warm(ctx context.Context, connections int) {
	p.mu.Lock()
	if p.most > 0 {
		connections = min(connections, p.most)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	taken := make(chan *Conn, connections)
	for range connections {
		wg.Go(func() {
			if c, err := p.Checkout(ctx, Primary()); err == nil {
				taken <- c
			}
		})
	}
	wg.Wait()
	close(taken)
	for c := range taken {
		c.Release()
	}
}

// Addresses are members and all known addresses of the deployment, the newest first.
func (p *Pool) Addresses(members ...string) []string {
	all := slices.Clone(members)
	for _, s := range p.now.Load().Description().Servers {
		all = append(all, s.Addr.String())
	}
	all = append(all, p.opts.Hosts...)
	var out []string
	for _, a := range all {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// Close ends monitoring and closes idle connections, others when they are released.
func (p *Pool) Close(ctx context.Context) error {
	err := p.CloseRenewed(ctx)
	if firstErr := p.first.Disconnect(ctx); !errors.Is(firstErr, topology.ErrTopologyClosed) {
		err = errors.Join(err, firstErr)
	}
	return err
}

// CloseRenewed closes the connections since the last Renew, as Close does.
func (p *Pool) CloseRenewed(ctx context.Context) error {
	if d := p.now.Load(); d != p.first {
		return d.Disconnect(ctx)
	}
	return nil
}

// Checkout selects a server by sel and takes a connection to it. It waits for a suitable server up to the server
// selection timeout, and a minute for the connection. An error names what was selected by.
func (p *Pool) Checkout(ctx context.Context, sel Selector) (*Conn, error) {
	primary := sel == Primary()
	if primary {
		sel.over = &p.over
	}
	w := p.waits.Add("to have " + sel.String())
	c, err := p.checkout(ctx, sel, w)
	if err != nil {
		p.waits.Forget(w)
		return nil, err
	}
	w.end()
	p.waits.name(w, "to answer on "+c.Addr())
	c.wait = w
	if primary && c.mc.Description().Kind == description.ServerKindMongos {
		c.router = c.Addr()
		p.over.add(c.router, checkoutBytes)
	}
	return c, nil
}

func (p *Pool) checkout(ctx context.Context, sel Selector, w *Wait) (*Conn, error) {
	selecting, cancel := context.WithTimeout(ctx, p.selectionTimeout())
	defer cancel()
	srv, err := p.now.Load().SelectServer(selecting, sel)
	if err != nil {
		return nil, networkError("select "+sel.String(), err)
	}
	if s, ok := srv.(*server); ok {
		s.urgent = sel.urgent
		p.waits.name(w, "to give a connection to "+s.Description().Addr.String())
	}
	connecting, stop := context.WithTimeout(ctx, time.Minute) // the driver dials for up to 30 s
	defer stop()
	mc, err := srv.Connection(connecting)
	if err != nil {
		return nil, networkError("open connection", err)
	}
	c := &Conn{pool: p, mc: mc, secondaryOk: sel.secondaryOk()}
	c.processor, _ = srv.(driver.ErrorProcessor)
	return c, nil
}

// selectionTimeout is that of the client's options, else the driver's default.
func (p *Pool) selectionTimeout() time.Duration {
	if t := p.opts.ServerSelectionTimeout; t != nil && *t > 0 {
		return *t
	}
	return 30 * time.Second
}

// slots bound how many connections are in use at once. It is safe for concurrent use.
type slots struct {
	queue  pace.Queue
	mu     sync.Mutex
	most   int // 0 is without a bound
	beyond int // how many more there are, until most would do
	used   int
	moved  time.Time // when a slot was taken or given back last
}

// standstill is the time without a slot taken or given back after which callers get one more: an owner may wait for
// another connection.
const standstill = 5 * time.Second

func newSlots(most int) *slots { return &slots{queue: pace.NewQueue(), most: most} }

// take waits for a slot. The only error is ctx's.
func (s *slots) take(ctx context.Context) error {
	const look = standstill / 4
	began := time.Now()
	return s.queue.Wait(ctx, look, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.room() && time.Since(began) >= look && time.Since(s.moved) >= standstill {
			s.beyond = s.used + 1 - s.most
		}
		room := s.room()
		if room {
			s.move(1)
		}
		return room
	})
}

func (s *slots) force() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.move(1)
}

func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.move(-1); s.used < s.most {
		s.beyond = 0
	}
	s.queue.Freed()
}

// spare reports more slots in use than allowed.
func (s *slots) spare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most > 0 && s.used > s.most+s.beyond
}

// bound changes how many slots there are. Those in use stay so.
func (s *slots) bound(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most, s.beyond = most, 0
	s.queue.Freed()
}

// The rest is called with mu locked.

func (s *slots) room() bool { return s.most <= 0 || s.used < s.most+s.beyond }

func (s *slots) move(by int) { s.used, s.moved = s.used+by, time.Now() }
