package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Transactions runs one transaction at a time, all in one session. So the next
// one ends another that a cut left open on the server, and who knows the
// session can end what a killed process left open: else the documents in it
// stay locked for a minute or more (the server's
// transactionLifetimeLimitSeconds). It is safe for concurrent use.
type Transactions struct {
	turn chan struct{}
	sess *driver.Session
	c    *Cluster
}

// NewTransactions starts a session; End gives it back.
func (c *Cluster) NewTransactions() (*Transactions, error) {
	sess, err := c.Client.StartSession()
	if err != nil {
		return nil, fmt.Errorf("start session: %w", err)
	}
	return &Transactions{turn: make(chan struct{}, 1), sess: sess, c: c}, nil
}

// End ends the session. No transaction may be running.
func (t *Transactions) End(ctx context.Context) { t.sess.EndSession(ctx) }

// SessionID is what KillSession takes.
func (t *Transactions) SessionID() bson.Raw { return t.sess.ID() }

// Run runs fn in a transaction of write concern 1, again when the server asks
// for that. fn's context carries the session. The pool's guard is asked before
// each attempt.
func (t *Transactions) Run(ctx context.Context, fn func(context.Context) error) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t.turn }()
	o := options.Transaction().SetReadConcern(readconcern.Local()).SetWriteConcern(writeconcern.W1())
	_, err := t.sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if err := t.c.Pool.Allowed(); err != nil {
			return nil, err
		}
		return nil, fn(ctx)
	}, o)
	return err
}

// KillSession ends what a session of the same user has open at the primary.
func (c *Cluster) KillSession(ctx context.Context, id bson.Raw) error {
	if _, err := c.Command(ctx, "admin", bson.D{{Key: "killSessions", Value: bson.A{id}}}); err != nil {
		return fmt.Errorf("end the last owner's transaction: %w", err)
	}
	return nil
}
