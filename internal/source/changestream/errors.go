package changestream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
)

// Errors of a Source that no retry fixes. They carry a hint.
var (
	// ErrLost reports that the source does not have the changes after the position.
	ErrLost = errors.New("the source does not have the changes from there on")
	// ErrTooLarge reports an event that exceeds 16 MB, on a server that cannot split it.
	ErrTooLarge = errors.New("a change event is too large")
	// ErrUnknown reports an event that millrace does not understand.
	ErrUnknown = errors.New("unknown change event")
)

// The server's error codes of change streams (MongoDB manual, "Error Codes").
const (
	codeHistoryLost   = 286
	codeFatal         = 280 // also where the token's event is not in the history
	codeNoTokenFound  = 40585
	codeOldNotFound   = 40576 // before 4.2
	codeTooLargeEvent = 10334
	codeNoSplit       = 7182500 // even a part of the event is too large
	codeNoMatch       = 50811   // the token's event is gone; older servers
	codeUnknownField  = 40415
	codeUnknownStage  = 40324
)

// tooLarge is the server's error of an event that exceeds its limit, and the token that the message quotes.
func tooLarge(err error) (t token, ok bool) {
	e, ok := errors.AsType[driver.CommandError](err)
	if !ok || e.Code != codeTooLargeEvent && e.Code != codeNoSplit &&
		(e.Code != codeFatal || !strings.Contains(e.Message, "BSONObjectTooLarge")) {
		return t, false
	}
	if _, quoted, found := strings.Cut(e.Message, `_data: "`); found {
		quoted, _, _ = strings.Cut(quoted, `"`)
		t.data = []byte(quoted)
	}
	return t, true
}

// explain is readError, which names the collection of an event that is too large.
func (r *reader) explain(ctx context.Context, err error) error {
	t, large := tooLarge(err)
	if !large {
		return readError(r.conn.Addr(), r.from.At, err)
	}
	what := fmt.Sprintf("after %s", r.from.At)
	if at, ok := t.time(); ok {
		what = fmt.Sprintf("at %d:%d", at.T, at.I)
	}
	if id := t.uuid(); id != nil {
		what += fmt.Sprintf(" of the collection with UUID %x", *id)
		if name := r.s.named(ctx, id); name != "" {
			what += ", now " + name
		}
	}
	const most = 300 // bytes of the message, which quotes the token
	err = fmt.Errorf("read change stream of %s: %w: the event %s: %.*s", r.conn.Addr(), ErrTooLarge, what, most,
		mongo.Brief(err))
	return mongo.WithHint(err, "an _id of more than 2 MB makes events larger than servers send: capture oplogs, or "+
		"exclude the collection")
}

// named returns the present name of a collection, "" if it cannot be found.
func (s *Source) named(ctx context.Context, id *[16]byte) string {
	dbs, err := s.cluster.Client.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return ""
	}
	uuid := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}
	for _, db := range dbs {
		found, err := s.cluster.Client.Database(db).ListCollectionSpecifications(ctx,
			bson.D{{Key: "info.uuid", Value: uuid}})
		if err == nil && len(found) > 0 {
			return db + "." + found[0].Name
		}
	}
	return ""
}

// Lost reports an error of a history that is gone. Its hint says what to do.
func Lost(err error) bool { return errors.Is(err, ErrLost) }

func lostCode(err error) bool {
	codes := []int32{codeHistoryLost, codeFatal, codeOldNotFound, codeNoTokenFound, codeNoMatch,
		mongo.CodeCappedPositionLost}
	return slices.ContainsFunc(codes, func(code int32) bool { return mongo.IsCode(err, code) })
}

// readError explains an error of the stream after a position. A lost history does not wrap the server's
// error, which may count as temporary.
func readError(addr string, last mongo.OpTime, err error) error {
	const what = "read change stream of %s after %s"
	switch {
	case err == nil:
		return nil
	case lostCode(err):
		when := last.Time().Format("2006-01-02 15:04:05Z")
		return mongo.WithHint(fmt.Errorf(what+" (%s): %w: %s", addr, last, when, ErrLost, mongo.Brief(err)),
			"restart with a fresh copy (--restart), and give the source a larger oplog (replSetResizeOplog) so that it "+
				"does not happen again; check the address if the source should have these changes")
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return mongo.WithHint(fmt.Errorf(what+": %w", addr, last, err),
			grantHint)
	}
	return fmt.Errorf(what+": %w", addr, last, err)
}
