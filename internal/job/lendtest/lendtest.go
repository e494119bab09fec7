// Package lendtest is the way between the lender of a job's copy and its borrowers, in
// tests: in place of NATS.
package lendtest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
)

// Version is the program's, as Counter has it.
const Version = "test"

// Counter is where borrowers reach the lender of a job.
type Counter struct {
	mu      sync.Mutex
	answer  func(context.Context, []byte) []byte
	serving sync.WaitGroup
}

// Lending is what the job is given.
func (c *Counter) Lending() *job.Lending {
	return &job.Lending{Version: Version, Lease: 2 * time.Second, Serve: func(ctx context.Context, answer func(context.Context, []byte) []byte) error {
		c.mu.Lock()
		c.answer = answer
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
func (c *Counter) Ask(ctx context.Context, request []byte) ([]byte, error) {
	c.mu.Lock()
	answer := c.answer
	if answer != nil {
		c.serving.Add(1)
		defer c.serving.Done()
	}
	c.mu.Unlock()
	if answer == nil {
		return nil, ErrNobody
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

// Kind is what a borrower asks.
func Kind(request []byte) string {
	kind, _ := bson.Raw(request).Lookup("kind").StringValueOK()
	return kind
}
