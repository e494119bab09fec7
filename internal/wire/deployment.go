package wire

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/session"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// deployment is a driver's topology, whose connections take slots. A driver's client can use it too.
type deployment struct {
	*topology.Topology
	slots *slots
	zip   *chooser // as that of Pool
}

// connect starts to monitor the servers. most bounds the connections in use; 0 is no bound.
func connect(opts *options.ClientOptions, most int, zip *chooser) (*deployment, error) {
	cfg, err := topology.NewConfig(opts, &session.ClusterClock{})
	if err != nil {
		return nil, fmt.Errorf("wire: client options: %w", err)
	}
	topo, err := topology.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("wire: topology: %w", err)
	}
	if err := topo.Connect(); err != nil {
		return nil, fmt.Errorf("wire: connect: %w", err)
	}
	return &deployment{Topology: topo, slots: newSlots(most), zip: zip}, nil
}

// Connect does nothing: clients call it, but the topology is connected.
func (d *deployment) Connect() error { return nil }

func (d *deployment) SelectServer(ctx context.Context, sel description.ServerSelector) (driver.Server, error) {
	srv, err := d.Topology.SelectServer(ctx, sel)
	if selected, ok := srv.(*topology.SelectedServer); err == nil && ok {
		return &server{SelectedServer: selected, slots: d.slots, zip: d.zip}, nil
	}
	return srv, err
}

type server struct {
	*topology.SelectedServer
	slots  *slots
	zip    *chooser
	urgent bool // there need be no slot
}

func (s *server) Connection(ctx context.Context) (*mnet.Connection, error) {
	if s.urgent {
		s.slots.force()
	} else if err := s.slots.take(ctx); err != nil {
		return nil, err
	}
	conn, err := s.SelectedServer.Connection(ctx)
	if err != nil {
		s.slots.give()
		return nil, err
	}
	conn.ReadWriteCloser = &slotted{ReadWriteCloser: conn.ReadWriteCloser, slots: s.slots}
	if s.zip != nil && conn.Compressor != nil {
		conn.Compressor = &choosing{conn.Compressor, s.zip}
	}
	return conn, nil
}

// choosing compresses messages while that moves more. A server compresses its reply when the question was.
type choosing struct {
	mnet.Compressor
	zip *chooser
}

func (c *choosing) CompressWireMessage(src, dst []byte) ([]byte, error) {
	if !c.zip.on.Load() {
		return append(dst, src...), nil
	}
	return c.Compressor.CompressWireMessage(src, dst)
}

type slotted struct {
	mnet.ReadWriteCloser
	slots  *slots
	closed atomic.Bool
}

// Close gives the connection back to the driver's pool, or closes it above the bound.
func (s *slotted) Close() error {
	if s.slots.spare() {
		return s.Expire()
	}
	return s.end(s.ReadWriteCloser.Close)
}

func (s *slotted) Expire() error {
	if e, ok := s.ReadWriteCloser.(driver.Expirable); ok {
		return s.end(e.Expire)
	}
	return s.end(s.ReadWriteCloser.Close)
}

// end gives the slot back after the connection: the next owner of the slot finds it.
func (s *slotted) end(how func() error) error {
	err := how()
	if s.closed.CompareAndSwap(false, true) {
		s.slots.give()
	}
	return err
}

func (s *slotted) Alive() bool {
	e, ok := s.ReadWriteCloser.(driver.Expirable)
	return !ok || e.Alive()
}

// Waits are operations that wait for servers. The zero value is ready. It is safe for concurrent use.
type Waits struct {
	mu  sync.Mutex
	all map[*Wait]struct{}
}

// Wait is one of Waits. Of a pool it is a checkout, or a connection in use.
type Wait struct {
	what  string       // guarded by Waits.mu
	since atomic.Int64 // when it began, in nanoseconds; 0 while nothing is asked
}

// Add begins a wait, such as "to have a primary".
func (w *Waits) Add(what string) *Wait {
	one := &Wait{what: what}
	one.begin()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*Wait]struct{}{}
	}
	w.all[one] = struct{}{}
	return one
}

func (w *Waits) name(one *Wait, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.what = what
}

// Forget ends a wait; nil is none.
func (w *Waits) Forget(one *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
}

// begin and end enclose an exchange.
func (w *Wait) begin() { w.since.Store(time.Now().UnixNano()) }
func (w *Wait) end()   { w.since.Store(0) }

// Waits returns what the oldest operation under way waits for, such as "to answer on 127.0.0.1:27017", and since
// when: zero for none.
func (p *Pool) Waits() (what string, since time.Time) { return p.waits.Oldest() }

// Oldest returns the oldest wait, and since when it lasts: zero for none.
func (w *Waits) Oldest() (what string, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldest := int64(0)
	for one := range w.all {
		if began := one.since.Load(); began != 0 && (oldest == 0 || began < oldest) {
			what, oldest = one.what, began
		}
	}
	if oldest == 0 {
		return "", time.Time{}
	}
	return what, time.Unix(0, oldest)
}
