package mongo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/tag"
)

// ParseWriteConcern reads the w of a write concern: majority, the default, or a number of members.
func ParseWriteConcern(s string) (any, error) {
	if s == "" || s == "majority" {
		return "majority", nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 50 {
		return nil, fmt.Errorf("%q is not a write concern: want majority or a number of members from 1 to 50", s)
	}
	return n, nil
}

// TakesCommitQuorum reports servers whose index builds accept a commit quorum.
func (c *Cluster) TakesCommitQuorum() bool {
	fcv, err := ParseVersion(c.Info.FCV)
	return c.Info.Kind != KindStandalone && c.Info.Version.AtLeast(4, 4) && (err != nil || fcv.AtLeast(4, 4))
}

// DataConcern is the w of data writes: 1, which a later proof in the same election term makes durable. A router
// reports no term, so there each write waits for a majority.
func (c *Cluster) DataConcern() any {
	if c.Info.Kind == KindSharded {
		return "majority"
	}
	return 1
}

// DataConcernDocument is the writeConcern of a command with DataConcern.
func (c *Cluster) DataConcernDocument() bson.Raw {
	raw, _ := bson.Marshal(bson.D{{Key: "w", Value: c.DataConcern()}}) // a string or a number
	return raw
}

// ParseReadPreference reads a mode and tag sets such as "dc:east,rack:1;dc:west", which are tried in order.
func ParseReadPreference(mode, tags string) (*readpref.ReadPref, error) {
	m, err := readpref.ModeFromString(cmp.Or(mode, "primary"))
	if err != nil {
		return nil, fmt.Errorf("%q is not a read preference: want primary, primaryPreferred, secondary, secondaryPreferred "+
			"or nearest", mode)
	}
	if tags == "" {
		return readpref.New(m)
	}
	if m == readpref.PrimaryMode {
		return nil, fmt.Errorf("the tags %q choose among members, but the primary is read", tags)
	}
	var sets []tag.Set
	for part := range strings.SplitSeq(tags, ";") {
		if strings.TrimSpace(part) == "" {
			sets = append(sets, tag.Set{}) // any member has it
			continue
		}
		var set tag.Set
		for kv := range strings.SplitSeq(part, ",") {
			k, v, ok := strings.Cut(strings.TrimSpace(kv), ":")
			if !ok || k == "" || v == "" {
				return nil, fmt.Errorf("the tags %q have no name:value in %q", tags, kv)
			}
			set = append(set, tag.Tag{Name: k, Value: v})
		}
		sets = append(sets, set)
	}
	return readpref.New(m, readpref.WithTagSets(sets...))
}

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
