package scan

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
)

// Reader reads over one connection. It belongs to one goroutine.
type Reader struct {
	Conn    *wire.Conn
	Gate    *pace.Gate        // bounds the exchanges under way; nil is none
	Concern bson.D            // read concern of documents; nil is none
	Owned   *ownership.Filter // the collection in work is one of a shard; nil is none
	// Reopened, if not nil, gets the reason when a cursor is opened again.
	Reopened func(cause error)
}

// Majority is the read concern majority, at a position or later; zero is any.
func Majority(after bson.Timestamp) bson.D {
	concern := bson.D{{Key: "level", Value: "majority"}}
	if !after.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: after})
	}
	return concern
}

// Find returns a find command, by UUID if that is known, so that renames do not disturb.
func (r *Reader) Find(c *schema.Collection, more ...bson.E) bson.D {
	_, name := mongo.SplitNS(c.DataNS())
	cmd := bson.D{{Key: "find", Value: name}}
	if len(c.UUID.Data) > 0 {
		cmd[0].Value = c.UUID // in whose place a shard's command has the name of now
	}
	return r.Owned.Mark(r.WithConcern(append(cmd, more...)))
}

// WithConcern adds the reader's concern to a command.
func (r *Reader) WithConcern(cmd bson.D) bson.D {
	if r.Concern != nil {
		cmd = append(cmd, bson.E{Key: "readConcern", Value: r.Concern})
	}
	return cmd
}

// Command runs one command.
func (r *Reader) Command(ctx context.Context, db string, cmd bson.D) (body bsoncore.Document, err error) {
	err = r.Owned.Run(ctx, cmd, func(cmd bson.D) error {
		return r.Gate.Do(ctx, func() (int, error) {
			body, err = r.Conn.Run(ctx, db, cmd)
			return len(body), err
		})
	})
	return body, err
}

func (r *Reader) open(ctx context.Context, db string, cmd bson.D,
	batch int) (cur *wire.Cursor, b *wire.Batch, err error) {
	err = r.Owned.Run(ctx, cmd, func(cmd bson.D) error {
		return r.Gate.Do(ctx, func() (int, error) {
			if cur, err = r.Conn.OpenCursor(ctx, db, cmd, wire.CursorOptions{BatchSize: batch}); err != nil {
				return 0, err
			}
			if b, err = cur.Next(ctx); err != nil { // came with the reply
				return 0, err
			}
			return b.Size, nil
		})
	})
	if mongo.IsCode(err, CodeInvalidOptions) {
		err = mongo.Retry("it has not heard of the position yet", err, "")
	}
	return cur, b, err
}

func (r *Reader) next(ctx context.Context, cur *wire.Cursor) (b *wire.Batch, err error) {
	err = r.Gate.Do(ctx, func() (int, error) {
		if b, err = cur.Next(ctx); err != nil {
			return 0, err
		}
		return b.Size, nil
	})
	return b, err
}

// Each runs a command that returns documents, so many in each further reply (0: as many as fit),
// and calls fn with them.
func (r *Reader) Each(ctx context.Context, db string, cmd bson.D, batch int, fn func(doc []byte) error) error {
	cur, b, err := r.open(ctx, db, cmd, batch)
	if err != nil {
		return err
	}
	defer closeCursor(ctx, cur)
	for {
		if err := b.Each(fn); err != nil || b.Done {
			return err
		}
		if b, err = r.next(ctx, cur); err != nil {
			return err
		}
	}
}

func closeCursor(ctx context.Context, cur *wire.Cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	cur.Close(ctx)
}

// CodeInvalidOptions refuses a position that the member has not heard of.
const CodeInvalidOptions = 72

const (
	codeCursorNotFound = 43
	codeKeyNotFound    = 211 // $_resumeAfter names a record that was deleted
)

// CursorLost reports that the server ended a cursor, but not the reading: after a rename or a
// time-out.
func CursorLost(err error) bool {
	return mongo.IsCode(err, mongo.CodeQueryPlanKilled) || mongo.IsCode(err, codeCursorNotFound)
}

// Refused reports a command whose form the server does not take.
func Refused(err error) bool {
	// FailedToParse, CommandNotFound, CommandNotSupported, unknown field
	for _, code := range []int32{mongo.CodeBadValue, 9, 59, 115, 40415} {
		if mongo.IsCode(err, code) {
			return true
		}
	}
	return false
}
