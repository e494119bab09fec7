// Package lendtest is the way between the lender of a job's copy and its borrowers, in
// tests: in place of NATS.
package lendtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
)

// Version is the program's, as Counter has it.
const Version = "test"

// Counter is where borrowers reach the lender of a job.
type Counter struct {
	mu      sync.Mutex
	answer  func(context.Context, []byte) []byte
	ctx     context.Context // while the lender serves
	serving sync.WaitGroup
}

// Lending is what the job is given.
func (c *Counter) Lending() *job.Lending {
	return &job.Lending{Version: Version, Lease: 2 * time.Second,
		Serve: func(ctx context.Context, answer func(context.Context, []byte) []byte) error {
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

// ErrNobody says that no lender answers.
var ErrNobody = errors.New("nobody answers")

// Ask is a borrower's way to the lender.
func (c *Counter) Ask(_ context.Context, request []byte) ([]byte, error) {
	return c.ask(request, false)
}

// AskAtEnd is the same, and the lender ceases to serve while it answers.
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

// Deaf is a way to the lender on which, from some moment on, nothing is heard any more:
// the borrower is told that all is well, and at Over that nothing more is lent.
type Deaf struct {
	Ask        job.Ask // until From
	From, Over atomic.Bool
}

// Way is the borrower's.
func (d *Deaf) Way(ctx context.Context, request []byte) ([]byte, error) {
	if !d.From.Load() {
		return d.Ask(ctx, request)
	}
	if Kind(request) == "next" {
		return bson.Marshal(bson.D{{Key: "more", Value: !d.Over.Load()}})
	}
	return bson.Marshal(bson.D{})
}

// Late is a borrower that is lent what another one was lent, and reaches the target only
// once it is let go on.
type Late struct {
	// Ask is the way to the lender.
	Ask job.Ask
	// Void is the way of the late one, once it has its slice.
	Void *Deaf
	// Connecting is closed when the late one comes to the target, where it waits for Release.
	Connecting, Release chan struct{}

	mu    sync.Mutex
	loan  []byte // what the other was lent
	asked atomic.Bool
}

// NewLate makes one.
func NewLate(ask job.Ask) *Late {
	return &Late{Ask: ask, Void: &Deaf{Ask: ask}, Connecting: make(chan struct{}), Release: make(chan struct{})}
}

// Early is the way of the other one, whose loan is remembered.
func (l *Late) Early(ctx context.Context, request []byte) ([]byte, error) {
	reply, err := l.Ask(ctx, request)
	if _, lent := bson.Raw(reply).Lookup("loan").DocumentOK(); lent {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.loan = reply
	}
	return reply, err
}

// Way is the late one's.
func (l *Late) Way(ctx context.Context, request []byte) ([]byte, error) {
	if Kind(request) == "next" && l.asked.CompareAndSwap(false, true) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.loan, nil
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

// Name is that of the connections over which the one borrower of a job writes, by the
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
	return mongo.BorrowerName(id, j.Owner.Run, j.Fence, j.Borrowers[0]), nil
}

// Kind is what a borrower asks.
func Kind(request []byte) string {
	kind, _ := bson.Raw(request).Lookup("kind").StringValueOK()
	return kind
}
