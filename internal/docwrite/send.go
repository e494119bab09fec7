// Package docwrite writes documents exactly: it frames write commands, sends them, reads the answers,
// and classifies write errors. The copy and the sink for MongoDB share it. It decides neither when
// something is sent nor what happens to a refused document, and knows no job and no dead letter.
package docwrite

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Limits of one write command (MongoDB manual, "Limits and Thresholds"). A statement may exceed the 16
// MB of a document by 16 KB.
const (
	maxCommandOps   = 100_000
	maxCommandBytes = 30 << 20 // a statement of 16 MB may still follow
	maxMessageBytes = 48_000_000

	// MaxStatement is the size of the largest statement in bytes.
	MaxStatement = 16<<20 + 15<<10
)

// Line is the connection to the target, for one goroutine.
type Line interface {
	// RoundTrip sends a message with the command name, and returns the reply.
	RoundTrip(ctx context.Context, name string, m *wire.Message) (bsoncore.Document, error)
	// SameTerm takes the election term of an answer, -1 for an unknown one, and fails if it is not that
	// of the attempt.
	SameTerm(term int64) error
}

// Sender sends write commands over a line, for one goroutine.
type Sender struct {
	Line    Line
	Concern bsoncore.Document // of data; after {w: 1}, a checkpoint makes it durable
	Msg     wire.Message      // under construction, or the last one
	body    []byte
}

// Command is an insert, update or delete on a collection.
type Command struct {
	Name, DB, Coll string
	Ordered        bool
	Txn            []byte // fields of a transaction, nil for none
}

// Elements are the statements or documents of a command.
type Elements struct {
	N      int
	Size   func(i int) int // roughly, in bytes
	Append func(dst []byte, i int) []byte
}

// Fitting returns how many elements from one on, at least that one, are at most most and limit bytes
// together, and their approximate size.
func (e Elements) Fitting(from, most, limit int) (n, size int) {
	for i := from; i < min(e.N, from+most); i++ {
		s := e.Size(i)
		if n > 0 && size+s > limit {
			break
		}
		n, size = n+1, size+s
	}
	return n, size
}

// Begin puts a command without elements into the message.
func (s *Sender) Begin(c Command) {
	_, body := bsoncore.AppendDocumentStart(s.body[:0])
	body = bsoncore.AppendStringElement(body, c.Name, c.Coll)
	body = bsoncore.AppendBooleanElement(body, "ordered", c.Ordered)
	sequence := "deletes"
	switch c.Name {
	case "insert":
		sequence = "documents"
	case "update":
		sequence = "updates"
	}
	if c.Name != "delete" {
		// what the source accepted belongs on the target, whatever its validator says
		body = bsoncore.AppendBooleanElement(body, "bypassDocumentValidation", true)
	}
	if c.Txn == nil {
		body = bsoncore.AppendDocumentElement(body, "writeConcern", s.Concern)
	}
	s.begin(c.DB, append(body, c.Txn...))
	s.Msg.StartSequence(sequence)
}

func (s *Sender) begin(db string, body []byte) {
	s.body, _ = bsoncore.AppendDocumentEnd(body, 0)
	s.Msg.Reset(db, s.body, false)
}

// Frame puts a command with as many elements as fit, starting at from, into the message, and returns
// how many.
func (s *Sender) Frame(c Command, e Elements, from int) int {
	s.Begin(c)
	n, size := e.Fitting(from, maxCommandOps, maxCommandBytes)
	s.Msg.Grow(size)
	for i := from; i < from+n; i++ {
		before := s.Msg.Len()
		s.Msg.BuildDocument(func(dst []byte) []byte { return e.Append(dst, i) })
		if i > from && s.Msg.Len() > maxMessageBytes {
			s.Msg.Unbuild(before)
			return i - from
		}
	}
	return n
}

// Send sends a command in as many messages as necessary. An ordered one ends with its first error. The
// indexes of errors are those of the elements.
func (s *Sender) Send(ctx context.Context, c Command, e Elements) (total wire.WriteResult, err error) {
	total.Term = -1
	for from := 0; from < e.N && !(c.Ordered && len(total.Errors) > 0); {
		n := s.Frame(c, e, from)
		res, err := s.RoundTrip(ctx, c.Name)
		if err != nil {
			return total, err
		}
		for _, failed := range res.Errors {
			failed.Index += from
			total.Errors = append(total.Errors, failed)
		}
		total.N += res.N
		from += n
		s.Trim()
	}
	return total, nil
}

// Trim frees the memory of a large message. Each of many senders would keep it for one large document.
func (s *Sender) Trim() {
	const keep = 8 << 20
	if s.Msg.Len() > keep {
		s.Msg = wire.Message{}
	}
}

// RoundTrip sends the message and reads the answer. Interrupted writes are an error.
func (s *Sender) RoundTrip(ctx context.Context, name string) (wire.WriteResult, error) {
	res := wire.WriteResult{Term: -1}
	reply, err := s.Line.RoundTrip(ctx, name, &s.Msg)
	if err == nil {
		res = wire.ParseWriteResult(reply)
		err = mongo.Interrupted(res)
	}
	// Check the term first: the effects of a failed command need it, too.
	if err == nil || Answered(err) {
		err = cmp.Or(err, s.Line.SameTerm(res.Term))
	}
	for _, e := range res.Errors {
		if err == nil && (e.Index < 0 || e.Index >= s.Msg.Docs()) {
			err = fmt.Errorf("the server reports an error of write %d of %d: %s", e.Index, s.Msg.Docs(), e.Error())
		}
	}
	return res, err
}

// EndTransaction sends a commitTransaction or abortTransaction; txn are the fields of Command.
func (s *Sender) EndTransaction(ctx context.Context, how string, txn []byte) error {
	_, body := bsoncore.AppendDocumentStart(s.body[:0])
	body = append(bsoncore.AppendInt32Element(body, how, 1), txn...)
	s.begin("admin", bsoncore.AppendDocumentElement(body, "writeConcern", s.Concern))
	_, err := s.RoundTrip(ctx, how)
	return err
}

// Answered reports an error that comes from the server's answer, over a working connection.
func Answered(err error) bool {
	var own *mongo.Retryable
	var we wire.WriteError
	var ce driver.CommandError
	return errors.As(err, &own) || errors.As(err, &we) || errors.As(err, &ce) && !ce.HasErrorLabel("NetworkError")
}

// FindDuplicates turns Unclear errors of inserts into those of a duplicate _id where the target has
// it, which has returns for the index of an insert.
func FindDuplicates(failed []wire.WriteError, has func(i int) (bool, error)) error {
	for i, e := range failed {
		if !Unclear(e) {
			continue
		}
		if found, err := has(e.Index); err != nil {
			return err
		} else if found {
			failed[i] = AsDuplicateID(e)
		}
	}
	return nil
}
