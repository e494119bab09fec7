package ycsb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/wire"
)

// kind is what is done, and what is measured under its name.
type kind uint8

const (
	opRead kind = iota
	opUpdate
	opInsert
	opScan
	opModify // read, modify, write: a read and an update together
	opCleanup
	opVerify
	kinds
)

// String is the kind's name in the output.
func (k kind) String() string {
	return [...]string{"READ", "UPDATE", "INSERT", "SCAN", "READ-MODIFY-WRITE", "CLEANUP", "VERIFY"}[k]
}

type status uint8

const (
	statusOK status = iota
	statusNotFound
	statusError
	statusBatched    // waits in a batch
	statusUnexpected // other contents than were written
	statuses
)

// String is the status's name in the output.
func (s status) String() string {
	return [...]string{"OK", "NOT_FOUND", "ERROR", "BATCHED_OK", "UNEXPECTED_STATE"}[s]
}

// ok says that it counts as done.
func (s status) ok() bool { return s == statusOK || s == statusBatched }

// noiseSize exceeds a core's second-level cache, so that servers compress no repeated contents.
const noiseSize = 16 << 20

// NewNoise returns a fixed block of random bytes that contents are cut from: a value costs one copy.
func NewNoise() []byte {
	b := make([]byte, noiseSize)
	_, _ = rand.NewChaCha8([32]byte{20, 26}).Read(b) // never fails
	return b
}

// Scatter is a bijection of 64-bit numbers that looks random (splitmix64).
func Scatter(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

type records struct {
	noise  []byte
	fields []string
	length numbers
	fixed  bool // contents follow from key and field, so that they can be checked
}

func (s *records) appendField(dst []byte, r *rand.Rand, key []byte, field int) []byte {
	dst = append(dst, byte(bsoncore.TypeBinary))
	dst = append(dst, s.fields[field]...)
	dst = append(dst, 0)
	return bsoncore.AppendBinary(dst, 0, s.value(r, key, field, int(s.length.next(r))))
}

func (s *records) appendFields(dst []byte, r *rand.Rand, key []byte) []byte {
	for f := range s.fields {
		dst = s.appendField(dst, r, key, f)
	}
	return dst
}

// value is n bytes of a field.
func (s *records) value(r *rand.Rand, key []byte, field, n int) []byte {
	var at uint64
	if s.fixed {
		at = Scatter(xxhash.Sum64(key) + uint64(field)*0x9e3779b97f4a7c15)
	} else {
		at = r.Uint64()
	}
	off := int(at % uint64(len(s.noise)-n+1))
	return s.noise[off : off+n]
}

// verify reports that a document has its contents. A read may have left fields out.
func (s *records) verify(doc, key []byte) bool {
	seen := 0
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return false
		}
		if string(e.Name) == "_id" {
			continue
		}
		f := slices.Index(s.fields, string(e.Name))
		if f < 0 || len(e.Value) < 5 {
			return false
		}
		// length, subtype and the bytes
		if got := e.Value[5:]; !bytes.Equal(got, s.value(nil, key, f, int(s.length.next(nil)))) {
			return false
		}
		seen++
	}
	return seen > 0
}

// store is a thread's way to the collection. It is used by one goroutine.
type store struct {
	pool           *wire.Pool
	reader, writer link
	db, table      string
	readConcern    bsoncore.Document // nil: none
	insertCommand  bsoncore.Document
	updateCommand  bsoncore.Document
	records        *records
	rand           *rand.Rand
	cmd, doc       []byte
	msg, batch     wire.Message
	batchSize      int
	upsert         bool
	acknowledged   bool
}

// link is a connection to a member that suits.
type link struct {
	sel   wire.Selector
	conn  *wire.Conn
	since time.Time
}

// linkFor is how long a thread keeps a connection: a better member may have come up.
const linkFor = time.Second

func (s *store) take(ctx context.Context, l *link, now time.Time) (*wire.Conn, error) {
	if l.conn != nil && now.Sub(l.since) < linkFor {
		return l.conn, nil
	}
	l.drop()
	conn, err := s.pool.Checkout(ctx, l.sel)
	if err != nil {
		return nil, err
	}
	l.conn, l.since = conn, now
	return conn, nil
}

func (l *link) drop() {
	if l.conn != nil {
		l.conn.Release()
		l.conn = nil
	}
}

func newStore(pool *wire.Pool, c *config, rec *records, r *rand.Rand) (*store, error) {
	s := &store{pool: pool, db: c.database, table: c.table, records: rec, rand: r, batchSize: c.batch, upsert: c.upsert,
		acknowledged: true}
	s.writer.sel, s.reader.sel = wire.Primary(), wire.Primary()
	if c.read != nil {
		s.reader.sel = wire.ByReadPreference(c.read)
	}
	if c.readLevel != "" {
		s.readConcern = bsoncore.NewDocumentBuilder().AppendString("level", c.readLevel).Build()
	}
	concern := bson.D{}
	if c.concern != nil {
		if c.concern.W != nil {
			concern = append(concern, bson.E{Key: "w", Value: c.concern.W})
		}
		if c.concern.Journal != nil {
			concern = append(concern, bson.E{Key: "j", Value: *c.concern.Journal})
		}
		s.acknowledged = c.concern.Acknowledged()
	}
	insert := "insert"
	if c.upsert {
		insert = "update"
	}
	var err error
	if s.insertCommand, err = writeCommand(insert, c.table, c.batch == 1, concern); err != nil {
		return nil, err
	}
	s.updateCommand, err = writeCommand("update", c.table, true, concern)
	return s, err
}

func writeCommand(name, table string, ordered bool, concern bson.D) (bsoncore.Document, error) {
	d := bson.D{{Key: name, Value: table}, {Key: "ordered", Value: ordered}}
	if len(concern) > 0 {
		d = append(d, bson.E{Key: "writeConcern", Value: concern})
	}
	raw, err := bson.Marshal(d)
	return raw, err
}

func (s *store) close() {
	s.reader.drop()
	s.writer.drop()
}

// read reads a record, one field of it or all (field < 0), and returns its document.
func (s *store) read(ctx context.Context, now time.Time, key []byte, field int) (bsoncore.Document, status, error) {
	i, cmd := s.startFind(field)
	j, cmd := bsoncore.AppendDocumentElementStart(cmd, "filter")
	cmd = appendText(cmd, "_id", key)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, j)
	cmd = bsoncore.AppendInt32Element(cmd, "limit", 1)
	cmd = bsoncore.AppendBooleanElement(cmd, "singleBatch", true)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, i)
	s.cmd = cmd
	reply, err := s.ask(ctx, now, cmd)
	if err != nil {
		return nil, statusError, fmt.Errorf("read %s: %w", key, err)
	}
	docs, _, err := batchOf(reply, "firstBatch")
	if err != nil {
		return nil, statusError, fmt.Errorf("read %s: %w", key, err)
	}
	e, _, ok := bsonraw.Next(docs)
	if !ok {
		return nil, statusNotFound, nil
	}
	return e.Value, statusOK, nil
}

// scan reads n records from a key on, in order.
func (s *store) scan(ctx context.Context, now time.Time, key []byte, n, field int) (status, error) {
	i, cmd := s.startFind(field)
	j, cmd := bsoncore.AppendDocumentElementStart(cmd, "filter")
	k, cmd := bsoncore.AppendDocumentElementStart(cmd, "_id")
	cmd = appendText(cmd, "$gte", key)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, k)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, j)
	j, cmd = bsoncore.AppendDocumentElementStart(cmd, "sort")
	cmd = bsoncore.AppendInt32Element(cmd, "_id", 1)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, j)
	cmd = bsoncore.AppendInt32Element(cmd, "limit", int32(n))
	cmd = bsoncore.AppendInt32Element(cmd, "batchSize", int32(n))
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, i)
	s.cmd = cmd
	reply, err := s.ask(ctx, now, cmd)
	for name := "firstBatch"; err == nil; name = "nextBatch" {
		var docs []byte
		var cursor int64
		if docs, cursor, err = batchOf(reply, name); err != nil {
			break
		}
		if cursor == 0 {
			if name == "firstBatch" && len(docs) == 0 {
				return statusNotFound, nil
			}
			return statusOK, nil
		}
		// More than a reply holds. The connection is the cursor's member's.
		more := bsoncore.NewDocumentBuilder().AppendInt64("getMore", cursor).AppendString("collection", s.table).Build()
		if reply, err = s.reader.conn.Command(ctx, s.db, more); err != nil {
			s.reader.drop()
		}
	}
	return statusError, fmt.Errorf("scan %d from %s: %w", n, key, err)
}

// startFind begins a find command in the store's buffer.
func (s *store) startFind(field int) (int32, []byte) {
	i, cmd := bsoncore.AppendDocumentStart(s.cmd[:0])
	cmd = bsoncore.AppendStringElement(cmd, "find", s.table)
	if field >= 0 {
		var j int32
		j, cmd = bsoncore.AppendDocumentElementStart(cmd, "projection")
		cmd = bsoncore.AppendInt32Element(cmd, s.records.fields[field], 1)
		cmd, _ = bsoncore.AppendDocumentEnd(cmd, j)
	}
	if s.readConcern != nil {
		cmd = bsoncore.AppendDocumentElement(cmd, "readConcern", s.readConcern)
	}
	return i, cmd
}

func (s *store) ask(ctx context.Context, now time.Time, cmd bsoncore.Document) (bsoncore.Document, error) {
	conn, err := s.take(ctx, &s.reader, now)
	if err != nil {
		return nil, err
	}
	reply, err := conn.Command(ctx, s.db, cmd)
	if err != nil {
		s.reader.drop()
	}
	return reply, err
}

// batchOf returns the documents of a cursor's reply and the cursor's number.
func batchOf(reply bsoncore.Document, name string) (docs []byte, cursor int64, err error) {
	e, ok := bsonraw.Field(reply, "cursor")
	if ok {
		id, ok1 := bsonraw.Field(e.Value, "id")
		batch, ok2 := bsonraw.Field(e.Value, name)
		if docs, ok = bsonraw.Body(batch.Value); ok && ok1 && ok2 && len(id.Value) == 8 {
			v, _ := bsoncore.Value{Type: bsoncore.TypeInt64, Data: id.Value}.Int64OK()
			return docs, v, nil
		}
	}
	return nil, 0, errors.New("malformed reply: no cursor")
}

// update sets one field of a record, or all (field < 0).
func (s *store) update(ctx context.Context, now time.Time, key []byte, field int) (status, error) {
	s.msg.Reset(s.db, s.updateCommand, false)
	s.msg.StartSequence("updates")
	i, doc := bsoncore.AppendDocumentStart(s.doc[:0])
	doc = appendQuery(doc, key)
	j, doc := bsoncore.AppendDocumentElementStart(doc, "u")
	k, doc := bsoncore.AppendDocumentElementStart(doc, "$set")
	if field < 0 {
		doc = s.records.appendFields(doc, s.rand, key)
	} else {
		doc = s.records.appendField(doc, s.rand, key, field)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, k)
	doc, _ = bsoncore.AppendDocumentEnd(doc, j)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	s.doc = doc
	s.msg.AppendDocument(doc)
	n, err := s.send(ctx, now, &s.msg)
	switch {
	case err != nil:
		return statusError, fmt.Errorf("update %s: %w", key, err)
	case n == 0:
		return statusNotFound, nil
	}
	return statusOK, nil
}

// insert writes a record, or keeps it until a batch is full.
func (s *store) insert(ctx context.Context, now time.Time, key []byte) (status, error) {
	if s.batch.Docs() == 0 {
		s.batch.Reset(s.db, s.insertCommand, false)
		if s.upsert {
			s.batch.StartSequence("updates")
		} else {
			s.batch.StartSequence("documents")
		}
	}
	s.doc = s.insertDoc(s.doc[:0], key)
	s.batch.AppendDocument(s.doc)
	if s.batch.Docs() < s.batchSize && s.batch.Len() < maxBatchBytes {
		return statusBatched, nil
	}
	return s.flush(ctx, now)
}

// maxBatchBytes is where a batch is sent early: a server takes 48,000,000 bytes, a document 16 MB.
const maxBatchBytes = 24 << 20

func (s *store) insertDoc(dst, key []byte) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	if !s.upsert {
		dst = appendText(dst, "_id", key)
		dst = s.records.appendFields(dst, s.rand, key)
		dst, _ = bsoncore.AppendDocumentEnd(dst, i)
		return dst
	}
	dst = appendQuery(dst, key)
	j, dst := bsoncore.AppendDocumentElementStart(dst, "u")
	dst = appendText(dst, "_id", key)
	dst = s.records.appendFields(dst, s.rand, key)
	dst, _ = bsoncore.AppendDocumentEnd(dst, j)
	dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// flush sends the batch. It stays as it is when that fails, so that it can be sent again; discard forgets it.
func (s *store) flush(ctx context.Context, now time.Time) (status, error) {
	want := int64(s.batch.Docs())
	n, err := s.send(ctx, now, &s.batch)
	if err == nil && n != want {
		err = fmt.Errorf("the server did %d of %d", n, want)
	}
	if err != nil {
		return statusError, fmt.Errorf("insert: %w", err)
	}
	s.discard()
	return statusOK, nil
}

func (s *store) discard() { s.batch.Reset(s.db, s.insertCommand, false) }

// send sends a write command and returns the reply's n.
func (s *store) send(ctx context.Context, now time.Time, m *wire.Message) (int64, error) {
	conn, err := s.take(ctx, &s.writer, now)
	if err != nil {
		return 0, err
	}
	reply, err := conn.RoundTrip(ctx, m)
	if err != nil {
		s.writer.drop()
		return 0, err
	}
	if !s.acknowledged {
		return int64(m.Docs()), nil
	}
	rest, ok := bsonraw.Body(reply)
	n := int64(-1)
	for ok && len(rest) > 0 {
		var e bsonraw.Element
		if e, rest, ok = bsonraw.Next(rest); !ok {
			break
		}
		switch string(e.Name) {
		case "n":
			n, _ = bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value}.AsInt64OK()
		case "writeErrors", "writeConcernError":
			return 0, replyError(reply)
		}
	}
	return n, nil
}

// writeError is what a server says of a write that it refused.
type writeError struct {
	code    int32
	message string
	others  int
	onlyDup bool // nothing but duplicate keys
}

func (e *writeError) Error() string {
	text := fmt.Sprintf("%s (code %d)", e.message, e.code)
	if e.others > 0 {
		text += fmt.Sprintf(" and %d more", e.others)
	}
	return text
}

func replyError(reply bsoncore.Document) error {
	res := wire.ParseWriteResult(reply)
	if len(res.Errors) > 0 {
		e := &writeError{code: res.Errors[0].Code, message: res.Errors[0].Message, others: len(res.Errors) - 1, onlyDup: true}
		for _, one := range res.Errors {
			e.onlyDup = e.onlyDup && one.OnIDIndex()
		}
		return e
	}
	return fmt.Errorf("write concern: %s", res.ConcernError)
}

func appendQuery(dst, key []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = appendText(dst, "_id", key)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// appendText is bsoncore.AppendStringElement for bytes.
func appendText(dst []byte, name string, text []byte) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeString, name)
	n := len(text) + 1
	dst = append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	dst = append(dst, text...)
	return append(dst, 0)
}
