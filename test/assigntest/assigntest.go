// Package assigntest is the way between the owner of some work and its assistants, in tests: in
// place of NATS.
package assigntest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
)

// Version is the program's, as Counter has it.
const Version = "test"

// Counter is where assistants reach the owner.
type Counter struct {
	mu      sync.Mutex
	answer  func(context.Context, []byte) []byte
	ctx     context.Context // while the owner serves
	serving sync.WaitGroup
}

// Offer is what the owner is given.
func (c *Counter) Offer(lease time.Duration) *assign.Offer {
	return &assign.Offer{Version: Version, Lease: lease, Serve: func(ctx context.Context,
		answer func(context.Context, []byte) []byte) error {
		c.mu.Lock()
		c.answer, c.ctx = answer, ctx
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		c.answer = nil
		c.mu.Unlock()
		c.serving.Wait()
		return nil
	}}
}

// ErrNobody says that no owner answers.
var ErrNobody = errors.New("nobody answers")

// Ask is an assistant's way to the owner.
func (c *Counter) Ask(_ context.Context, request []byte) ([]byte, error) {
	return c.ask(request, false)
}

// AskAtEnd is the same, and the owner ceases to serve while it answers.
func (c *Counter) AskAtEnd(_ context.Context, request []byte) ([]byte, error) {
	return c.ask(request, true)
}

func (c *Counter) ask(request []byte, atEnd bool) ([]byte, error) {
	c.mu.Lock()
	answer, ctx := c.answer, c.ctx
	if answer != nil {
		c.serving.Add(1)
		defer c.serving.Done()
	}
	c.mu.Unlock()
	if answer == nil {
		return nil, ErrNobody
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if atEnd {
		cancel()
	}
	return answer(ctx, request), nil
}

// Of are the figures of a worker among those of all; none are zero.
func Of(worker string, list []assign.Figures) assign.Figures {
	if i := slices.IndexFunc(list, func(f assign.Figures) bool { return f.Worker == worker }); i >= 0 {
		return list[i]
	}
	return assign.Figures{}
}

// Deaf is a way to the owner on which, from some moment on, nothing is heard any more: the
// assistant hears that all is well, and at Over that nothing more is assigned.
type Deaf struct {
	Ask        assign.Ask // until From
	From, Over atomic.Bool
}

// Way is the assistant's.
func (d *Deaf) Way(ctx context.Context, request []byte) ([]byte, error) {
	if !d.From.Load() {
		return d.Ask(ctx, request)
	}
	if Kind(request) == "next" {
		return bson.Marshal(bson.D{{Key: "more", Value: !d.Over.Load()}})
	}
	return bson.Marshal(bson.D{})
}

// Late is an assistant that is assigned what another one was assigned, and reaches the target
// only once it may go on.
type Late struct {
	// Ask is the way to the owner.
	Ask assign.Ask
	// Void is the way of the late one, once it has its slice.
	Void *Deaf
	// Connecting is closed when the late one comes to the target, where it waits for Release.
	Connecting, Release chan struct{}

	mu    sync.Mutex
	part  []byte // what the other was assigned
	asked atomic.Bool
}

// NewLate makes one.
func NewLate(ask assign.Ask) *Late {
	return &Late{Ask: ask, Void: &Deaf{Ask: ask}, Connecting: make(chan struct{}), Release: make(chan struct{})}
}

// Early is the way of the other one, whose part is remembered.
func (l *Late) Early(ctx context.Context, request []byte) ([]byte, error) {
	reply, err := l.Ask(ctx, request)
	if _, some := bson.Raw(reply).Lookup("part").DocumentOK(); some {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.part = reply
	}
	return reply, err
}

// Way is the late one's.
func (l *Late) Way(ctx context.Context, request []byte) ([]byte, error) {
	if Kind(request) == "next" && l.asked.CompareAndSwap(false, true) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.part, nil
	}
	return l.Void.Way(ctx, request)
}

// Hold has the late one wait at the target.
func (l *Late) Hold(spec *job.Spec) {
	once := sync.OnceFunc(func() { close(l.Connecting) })
	spec.Connect = func(ctx context.Context, uri string, o mongo.Options) (*mongo.Cluster, error) {
		if strings.Contains(o.AppName, "/") {
			once()
			<-l.Release
		}
		return mongo.Connect(ctx, uri, o)
	}
}

// Name is that of the connections over which the one assistant of a job writes, by the
// job's document on the target.
func Name(id string, doc bson.Raw) (string, error) {
	var j struct {
		Owner     struct{ Run string }
		Fence     int64
		Borrowers []string
	}
	if err := bson.Unmarshal(doc, &j); err != nil {
		return "", err
	}
	if len(j.Borrowers) != 1 {
		return "", fmt.Errorf("%v may write", j.Borrowers)
	}
	return mongo.AssistantName(id, j.Owner.Run, j.Fence, j.Borrowers[0]), nil
}

// Kind is what an assistant asks; "grant" is of the reports that ask for leave to send something.
func Kind(request []byte) string {
	if _, err := bson.Raw(request).LookupErr("report", "grant"); err == nil {
		return "grant"
	}
	kind, _ := bson.Raw(request).Lookup("kind").StringValueOK()
	return kind
}
