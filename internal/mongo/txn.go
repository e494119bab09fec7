package mongo

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Transactions runs one transaction at a time, all in one session. So the next one ends a transaction that a cut
// left open on the server, and anyone who knows the session can end that of a killed process. Otherwise its
// documents stay locked for a minute or more (transactionLifetimeLimitSeconds). It is safe for concurrent use.
//
// Batch names more sessions, for transactions over package wire that can be ended in the same way.
type Transactions struct {
	turn   chan struct{}
	sess   *driver.Session
	c      *Cluster
	number atomic.Int64
}

// batchSessions is how many sessions there are beside a Transactions' own.
const batchSessions = 64

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

// Run runs fn in a transaction of DataConcern, and repeats it when the server asks for that. The context of fn
// carries the session. It asks the pool's guard before each attempt and before the commit: a process that slept
// must not commit what a new owner has ended.
func (t *Transactions) Run(ctx context.Context, fn func(context.Context) error) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t.turn }()
	concern := &writeconcern.WriteConcern{W: t.c.DataConcern()}
	o := options.Transaction().SetReadConcern(readconcern.Local()).SetWriteConcern(concern)
	_, err := t.sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if err := t.c.Pool.Allowed(); err != nil {
			return nil, err
		}
		if err := fn(ctx); err != nil {
			return nil, err
		}
		return nil, t.c.Pool.Allowed()
	}, o)
	return err
}

// Batch returns the n-th session beside its own, nil for none. It may run one transaction at a time.
func (t *Transactions) Batch(n int) bson.Raw { return batchSession(t.sess.ID(), n) }

// Number returns a txnNumber that none of the sessions has had.
func (t *Transactions) Number() int64 { return t.number.Add(1) }

// KillSession ends the open transactions of this session's Transactions and user at the primary.
func (c *Cluster) KillSession(ctx context.Context, id bson.Raw) error {
	all := bson.A{id}
	for n := range batchSessions {
		if b := batchSession(id, n); b != nil {
			all = append(all, b)
		}
	}
	if _, err := c.Command(ctx, "admin", bson.D{{Key: "killSessions", Value: all}}); err != nil {
		return fmt.Errorf("end the last owner's transactions: %w", err)
	}
	return nil
}

// batchSession derives a session id: it adds n+1 to the last byte of the UUID.
func batchSession(id bson.Raw, n int) bson.Raw {
	_, uuid, ok := id.Lookup("id").BinaryOK()
	if !ok || len(uuid) != 16 || n < 0 || n >= batchSessions {
		return nil
	}
	uuid = bytes.Clone(uuid)
	uuid[15] += byte(n + 1)
	raw, err := bson.Marshal(bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: uuid}}})
	if err != nil {
		return nil
	}
	return raw
}
