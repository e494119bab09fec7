package scan

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// Reader reads over one connection. It belongs to one goroutine.
type Reader struct {
	Conn    *wire.Conn
	Gate    *pace.Gate        // bounds the exchanges under way; nil is none
	Concern bson.D            // read concern of documents; nil is none
	Owned   *ownership.Filter // the collection in work is one of a shard; nil is none
	Routers *Routers          // the connection is to one of these; nil is to a member
	// Fresh, if not nil, returns the Concern of each further cursor of a walk in _id order. Those of
	// snapshots are at one time each, which servers do not keep for long.
	Fresh func(context.Context) (bson.D, error)
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

// Find returns a find command, by UUID if that is known, so that renames do not disturb. Through
// routers it is by the name found last.
func (r *Reader) Find(c *schema.Collection, more ...bson.E) bson.D {
	return r.Owned.Mark(r.WithConcern(append(bson.D{{Key: "find", Value: r.what(c)}}, more...)))
}

func (r *Reader) what(c *schema.Collection) any {
	switch {
	case r.Routers != nil:
		return r.Routers.known(c).name
	case len(c.UUID.Data) > 0:
		return c.UUID // in whose place a shard's command has the name of now
	}
	_, name := mongo.SplitNS(c.DataNS())
	return name
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
	defer cur.Close(ctx)
	for {
		if err := b.Each(fn); err != nil || b.Done {
			return err
		}
		if b, err = r.next(ctx, cur); err != nil {
			return err
		}
	}
}

// CodeInvalidOptions refuses a position that the member has not heard of.
const CodeInvalidOptions = 72

const (
	codeCursorNotFound = 43
	codeKeyNotFound    = 211 // $_resumeAfter names a record that was deleted

	// codeNothingBetween refuses index bounds of which the lower one is not below the upper one. Two
	// shards may have _ids that are equal, but not their bytes. Slices hold every document between
	// bounds of any order, if those are the same for neighbours.
	codeNothingBetween = 51175
)

// CursorLost reports that the server ended a cursor, but not the reading: after a rename or a
// time-out.
func CursorLost(err error) bool {
	return mongo.IsCode(err, mongo.CodeQueryPlanKilled) || mongo.IsCode(err, codeCursorNotFound) ||
		errors.Is(err, errRenamed)
}

// Forgotten reports that servers cannot read as of a time, as that is too long ago: they have no such
// documents any more, or do not know who owned chunks.
func Forgotten(err error) bool {
	const staleChunkHistory = 250
	return mongo.Forgotten(err) || mongo.IsCode(err, staleChunkHistory)
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

// Member is one member in one life of it. Record ids differ between members. After a kill or a
// rollback a member gives others to what its files did not hold.
type Member struct {
	Node string `bson:"node,omitempty"` // address
	Life string `bson:"life,omitempty"` // process and rollbacks, "" before 4.4
}

// MemberOf identifies the member behind a connection, its process, and the time since a rollback.
// For that, 4.4 and newer add a count of rollbacks on request, without any privilege (tried on 4.4,
// 5.0 and 6.0). Servers before 4.4 do not name their process, so they are not read in record order.
func MemberOf(ctx context.Context, conn *wire.Conn) (Member, error) {
	m := Member{Node: conn.Addr()}
	hello, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}, {Key: "$oplogQueryData", Value: 1}})
	if err != nil && mongo.Classify(err) == mongo.ClassFatal && ctx.Err() == nil {
		hello, err = conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	}
	if err != nil {
		return Member{}, fmt.Errorf("ask member %s who it is: %w", m.Node, err)
	}
	if process, ok := bson.Raw(hello).Lookup("topologyVersion", "processId").ObjectIDOK(); ok {
		rollbacks, _ := bson.Raw(hello).Lookup("$oplogQueryData", "rbid").AsInt64OK()
		m.Life = fmt.Sprintf("%s/%d", process.Hex(), rollbacks)
	}
	return m, nil
}

// Lives returns a temporary error if the member behind a connection has begun another life.
func (m Member) Lives(ctx context.Context, conn *wire.Conn) error {
	now, err := MemberOf(ctx, conn)
	if err == nil && now != m {
		err = mongo.Retry("member "+m.Node+" was restarted, or has rolled back", nil, "")
	}
	return err
}

// CanResume reports whether a member can continue stored slices. It must be the same one in the
// same life. Record ids are checked against the documents seen at them: a member rebuilt under the
// same address has others.
func (r *Reader) CanResume(ctx context.Context, c *schema.Collection, plan []Slice, m Member) (bool, error) {
	if plan[0].Strategy != ByRecord {
		return true, nil
	}
	if plan[0].Member != m {
		return false, nil
	}
	want, ids := anchors(plan)
	if len(want) == 0 {
		return true, nil
	}
	marks, err := r.locate(ctx, c, ids)
	if err != nil {
		return false, err
	}
	for _, at := range marks {
		if rid, ok := want[idKey(markID(at))]; ok && rid != Record(at) {
			return false, nil
		}
	}
	return len(marks) > 0, nil
}

func anchors(plan []Slice) (want map[string]int64, ids []bson.RawValue) {
	const enough = 200
	want = map[string]int64{}
	for _, s := range plan {
		if s.Done || len(ids) > enough {
			continue
		}
		for _, m := range []bson.Raw{s.Lower, s.Upper, s.Position} {
			if len(m) > 0 {
				id := markID(m)
				want[idKey(id)] = Record(m)
				ids = append(ids, bsonraw.RawValue(id))
			}
		}
	}
	return want, ids
}

// A capped collection goes on while it is read, and its order is content. To insert again what the
// copy has would put it behind newer documents, and could push others out of a full collection. So
// the copy ends at an edge, the newest document at a known position, and the replay begins there.
// The target then has nothing that the replay inserts, and never more than the source had. What the
// copy misses was deleted since.

// Edge is the newest document of a capped collection at a position.
type Edge struct {
	record int64 // its record id; later documents have larger ones
	At     mongo.OpTime
}

const noRecord = -1 << 63

type newest struct {
	record int64
	id     bson.RawValue
	at     mongo.OpTime // a position at or after that of the read
}

const edgeTries = 200

// FindEdge reads the newest document until it knows a position, first or later, at which it is the
// newest. That is so if nothing was inserted between two reads, or if inserted, which may be nil,
// finds its insertion. The edge is nil if record ids are no numbers.
func (r *Reader) FindEdge(ctx context.Context, c *schema.Collection, first mongo.OpTime,
	inserted stream.FindInsertion) (*Edge, error) {
	was, ok, err := r.newest(ctx, c, first)
	if err != nil || !ok {
		return nil, err
	}
	for range edgeTries {
		is, ok, err := r.newest(ctx, c, was.at)
		if err != nil || !ok {
			return nil, err
		}
		if is.record <= was.record {
			return &Edge{is.record, was.at}, nil
		}
		if inserted != nil {
			at, found, err := inserted(ctx, r.Command, stream.Insertion{UUID: c.UUID, ID: is.id, After: first, Until: is.at})
			if err != nil {
				return nil, err
			}
			if found {
				return &Edge{is.record, at}, nil
			}
		}
		first, was = was.at, is
	}
	return nil, fmt.Errorf("find the newest document of %s: it changes with each of %d reads", c.NS, edgeTries)
}

func (r *Reader) newest(ctx context.Context, c *schema.Collection, after mongo.OpTime) (n newest, ok bool, err error) {
	db, _ := mongo.SplitNS(c.DataNS())
	name, err := r.named(ctx, c)
	if err != nil {
		return n, false, err
	}
	body, err := r.Command(ctx, db, bson.D{
		{Key: "find", Value: r.what(c)}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: -1}}}, {Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true}, {Key: "showRecordId", Value: true},
		{Key: "readConcern", Value: Majority(after.TS)},
	})
	if err == nil {
		err = r.stillNamed(ctx, c, name)
	}
	if err != nil {
		return n, false, err
	}
	raw := bson.Raw(body)
	t, i, ok := raw.Lookup("operationTime").TimestampOK()
	if !ok {
		return n, false, nil
	}
	n.at, n.record = mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}, noRecord
	docs, err := raw.Lookup("cursor", "firstBatch").Array().Values()
	if err != nil || len(docs) == 0 {
		return n, err == nil, err
	}
	n.record, ok = docs[0].Document().Lookup("$recordId").AsInt64OK()
	n.id = docs[0].Document().Lookup("_id")
	return n, ok, nil
}
