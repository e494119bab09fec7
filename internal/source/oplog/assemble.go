package oplog

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// maxNesting bounds applyOps inside applyOps.
const maxNesting = 10

// assembler turns entries into events and events into batches. It runs in one
// goroutine.
type assembler struct {
	o     *Source
	emit  func(context.Context, *stream.Batch) error
	ns    *namespaces
	txns  *txnTable
	fetch *fetcher

	pos     mongo.OpTime // what the consumer has applied
	from    mongo.OpTime // where reading began
	applied bool         // the entry at pos was passed
	seen    mongo.OpTime // the last entry read
	start   mongo.OpTime // End of the last batch
	end     mongo.OpTime // everything up to it is in a batch or in events

	byUser   bool                // the operations at hand are of a user's applyOps
	txn      *stream.Transaction // to which the operations at hand belong, nil for none
	events   []stream.Event
	capacity int // of the next events slice
	pending  int // bytes that events hold on to, and of entries skipped since the last batch
	bytes    int // of entries, for the batch
	entries  int
}

func newAssembler(o *Source, pos, from mongo.OpTime, emit func(context.Context, *stream.Batch) error) *assembler {
	return &assembler{
		o: o, emit: emit, pos: pos, from: from, start: pos, end: pos,
		applied: !exact(pos) || pos.Before(from),
		ns:      newNamespaces(o.opt.Keep),
		txns:    newTxnTable(o.opt.TxnBufferBytes),
		fetch:   &fetcher{cluster: o.cluster, spool: o.opt.Spool},
	}
}

// entry takes the next entry of the oplog.
func (a *assembler) entry(ctx context.Context, doc []byte) error {
	var e entry // large: not returned by value for every entry
	err := e.parse(doc)
	if err == nil && e.at.IsZero() {
		err = fmt.Errorf("%w: no timestamp", errMalformed)
	}
	if err == nil {
		err = a.order(e.at)
	}
	if err != nil {
		return fmt.Errorf("oplog entry after %s: %w", a.seen, err)
	}
	a.seen = e.at
	a.bytes += len(doc)
	a.pending += len(doc)
	a.entries++
	live := a.pos.Before(e.at)
	if err := a.dispatch(ctx, &e, live); err != nil {
		return fmt.Errorf("oplog entry %s, op %q on %s: %w", e.at, e.op, e.ns, err)
	}
	if live {
		a.end = e.at
	}
	if a.pending >= a.o.opt.BatchBytes {
		return a.flushFull(ctx)
	}
	return nil
}

// order checks that positions grow and that the history holds Applied.
func (a *assembler) order(at mongo.OpTime) error {
	if !a.seen.Before(at) {
		return fmt.Errorf("%w: position %s does not grow", errMalformed, at)
	}
	if a.applied || at.Before(a.pos) {
		return nil
	}
	if !same(at, a.pos) {
		return rolledBack("the entry applied last", a.pos, at)
	}
	a.applied = true
	return nil
}

// dispatch handles an entry by its kind. Entries that are not live are at or
// before Applied: only what they tell of transactions counts.
func (a *assembler) dispatch(ctx context.Context, e *entry, live bool) error {
	switch string(e.op) {
	case "n":
		return nil // keeps the position moving; also pre- and post-images of retryable writes
	case "c":
		return a.command(ctx, e, live)
	}
	if !live {
		return nil
	}
	return a.document(e, e.at)
}

// command handles an entry with op c that stands in the oplog itself.
func (a *assembler) command(ctx context.Context, e *entry, live bool) error {
	info := a.ns.lookup(e.ns)
	c, err := parseCommand(e.o)
	if err != nil {
		return err
	}
	switch string(c.name) {
	case "applyOps":
		if e.inTransaction() {
			return a.transaction(ctx, e, c, live)
		}
		if !live {
			return nil
		}
		a.byUser = a.usersOwn(e, c)
		err := a.applyOps(ctx, c.ops, e.at, 0)
		a.byUser = false
		return err
	case "commitTransaction":
		if e.prev.IsZero() {
			return fmt.Errorf("%w: a commit that names no prepared entry", errMalformed)
		}
		return a.commit(ctx, e, nil, live)
	case "abortTransaction":
		a.txns.drop(e.txn)
		return nil
	}
	if !live || info.kind != nsCommand {
		return nil
	}
	return a.schema(e, e.at)
}

// usersOwn tells a user's applyOps command, which is logged as it was sent, from
// what a server groups by itself. Before 7.0 none does, but for retryable
// inserts; there a nested command is logged without what tells where it came from.
func (a *assembler) usersOwn(e *entry, c command) bool {
	return c.sent || !e.separate && !a.o.cluster.Info.Version.AtLeast(7, 0)
}

// transaction handles an applyOps entry of a transaction.
func (a *assembler) transaction(ctx context.Context, e *entry, c command, live bool) error {
	if c.partial || c.prepared {
		a.txns.add(e, c.ops)
		return nil
	}
	return a.commit(ctx, e, c.ops, live)
}

// commit emits a transaction's operations: those of its earlier entries, then
// ops, which the committing entry brings itself.
func (a *assembler) commit(ctx context.Context, e *entry, ops []byte, live bool) error {
	t := a.txns.get(e.txn)
	a.txn = &stream.Transaction{Session: bytes.Clone(e.txn.lsid), Number: e.txn.number}
	defer func() { a.txn = nil }()
	if live {
		if err := a.earlier(ctx, e, t); err != nil {
			return err
		}
		if ops != nil {
			if err := a.applyOps(ctx, ops, e.at, 0); err != nil {
				return err
			}
		}
	}
	a.txns.drop(e.txn)
	return nil
}

// earlier emits the operations of a transaction's entries before the one that
// commits it, from memory or, failing that, from the oplog.
func (a *assembler) earlier(ctx context.Context, e *entry, t *openTxn) error {
	if e.prev.IsZero() {
		return nil
	}
	if t != nil && !t.spilled && !t.headless && same(t.last(), e.prev) {
		for _, ops := range t.ops {
			if err := a.applyOps(ctx, ops, e.at, 0); err != nil {
				return err
			}
		}
		return nil
	}
	var parts []mongo.OpTime
	var err error
	if t != nil && !t.headless && same(t.last(), e.prev) {
		parts = t.parts
	} else if parts, err = a.fetch.chain(ctx, e.txn, e.prev); err != nil {
		return err
	}
	a.o.log.Debug("reading a transaction from the oplog again", "entries", len(parts), "position", e.at)
	for _, at := range parts {
		if err := a.refetch(ctx, at, e.at); err != nil {
			return err
		}
	}
	return nil
}

// refetch reads one entry of a transaction again and emits its operations.
func (a *assembler) refetch(ctx context.Context, part, at mongo.OpTime) error {
	e, err := a.fetch.entry(ctx, part, false)
	if err != nil {
		return err
	}
	c, err := parseCommand(e.o)
	if err != nil {
		return err
	}
	if c.ops == nil {
		return fmt.Errorf("%w: the entry at %s is not one of a transaction", errMalformed, part)
	}
	return a.applyOps(ctx, c.ops, at, 0)
}

// applyOps emits the operations of an applyOps array as taking effect at at.
func (a *assembler) applyOps(ctx context.Context, ops []byte, at mongo.OpTime, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("%w: applyOps nested too deeply", errMalformed)
	}
	rest, ok := bsonraw.Body(ops)
	if !ok {
		return errMalformed
	}
	for len(rest) > 0 {
		var f element
		if f, rest, ok = next(rest); !ok || f.typ != bson.TypeEmbeddedDocument {
			return fmt.Errorf("%w: applyOps holds something else than operations", errMalformed)
		}
		if err := a.operation(ctx, f.val, at, depth); err != nil {
			return err
		}
		if a.pending >= a.o.opt.BatchBytes && len(a.events) > 0 {
			if err := a.flushPart(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// operation emits one operation of an applyOps.
func (a *assembler) operation(ctx context.Context, doc []byte, at mongo.OpTime, depth int) error {
	e, err := parseEntry(doc)
	if err != nil {
		return err
	}
	a.pending += len(doc)
	switch string(e.op) {
	case "n":
		return nil
	case "c":
		c, err := parseCommand(e.o)
		if err != nil {
			return err
		}
		if c.ops != nil {
			return a.applyOps(ctx, c.ops, at, depth+1)
		}
		if a.ns.lookup(e.ns).kind != nsCommand {
			return nil
		}
		err = a.schema(&e, at)
		if err != nil {
			return fmt.Errorf("inner command on %s: %w", e.ns, err)
		}
		return nil
	}
	if err := a.document(&e, at); err != nil {
		return fmt.Errorf("inner op %q on %s: %w", e.op, e.ns, err)
	}
	return nil
}

// document emits an insert, update or delete.
func (a *assembler) document(e *entry, at mongo.OpTime) error {
	info := a.ns.lookup(e.ns)
	if info.kind == nsViews {
		return a.view(e, info.db, at)
	}
	if info.kind != nsKeep || e.fromMigrate && a.o.opt.SkipMigrated {
		return nil
	}
	ev := stream.Event{NS: info.name, At: at, Txn: a.txn}
	if e.ui != nil {
		ev.UUID = (*[16]byte)(e.ui)
	}
	key := e.o
	if a.byUser {
		e.o = wholeDocument(e)
	}
	switch string(e.op) {
	case "i":
		ev.Kind, ev.Doc, ev.Key.Shard = stream.Insert, e.o, e.o2
	case "u":
		ev.Kind, ev.Doc, key = stream.Update, e.o, e.o2
		ev.Key.Shard = e.o2
	case "d":
		ev.Kind, ev.Key.Shard = stream.Delete, e.o
	default:
		return fmt.Errorf("%w: unknown kind of operation", errMalformed)
	}
	if key == nil || e.o == nil {
		return fmt.Errorf("%w: no document or no _id", errMalformed)
	}
	var ok bool
	if ev.Key.ID, ok = id(key); !ok || len(ev.Key.ID.Data) == 0 && ev.Key.ID.Type == 0 && ev.Kind != stream.Insert {
		return fmt.Errorf("%w: no _id", errMalformed)
	}
	if ev.Kind == stream.Update {
		switch ev.Form = delta.KindOf(ev.Doc); ev.Form {
		case delta.Replacement:
			ev.Kind = stream.Replace
		case delta.Invalid:
			return fmt.Errorf("%w: an update that is neither $v:1 nor $v:2", errMalformed)
		}
	}
	if a.byUser {
		ev.Kind = asApplied(ev.Kind)
	}
	if ev.Kind == stream.Upsert {
		ev.Doc = delta.Sorted(ev.Doc, a.o.cluster.Info.Version.AtLeast(5, 0))
	}
	a.add(ev)
	return nil
}

// asApplied is what a server makes of an operation of a user's applyOps (tried
// on 4.2 to 6.0): an insert replaces what has its _id, an update that finds
// nothing inserts, whatever the entry says of b and alwaysUpsert, for one that
// failed is not logged.
func asApplied(k stream.Kind) stream.Kind {
	switch k {
	case stream.Insert, stream.Replace:
		return stream.Put
	case stream.Update:
		return stream.Upsert
	}
	return k
}

// wholeDocument is the entry's o, as a replacement with its _id: servers before
// 6.0 take one without, and put it first.
func wholeDocument(e *entry) bson.Raw {
	if string(e.op) != "u" || e.o == nil || e.o2 == nil || delta.KindOf(e.o) != delta.Replacement {
		return e.o
	}
	if v, ok := id(e.o); !ok || v.Type != 0 {
		return e.o
	}
	v, ok := id(e.o2)
	body, whole := bsonraw.Body(e.o)
	if !ok || !whole || v.Type == 0 {
		return e.o
	}
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendValueElement(doc, "_id", v)
	doc = append(doc, body...)
	doc, err := bsoncore.AppendDocumentEnd(doc, i)
	if err != nil {
		return e.o
	}
	return doc
}

func (a *assembler) add(ev stream.Event) {
	if a.events == nil {
		a.events = make([]stream.Event, 0, a.capacity)
	}
	a.events = append(a.events, ev)
}

// schema emits a command of a user's database.
func (a *assembler) schema(e *entry, at mongo.OpTime) error {
	var ui *bson.Binary
	if e.ui != nil {
		ui = &bson.Binary{Subtype: bson.TypeBinaryUUID, Data: e.ui}
	}
	c, ok, err := a.o.opt.ParseChange(string(e.ns), ui, e.o)
	return a.change(c, ok, err, at)
}

// view emits a write to system.views.
func (a *assembler) view(e *entry, db string, at mongo.OpTime) error {
	if len(e.op) != 1 {
		return fmt.Errorf("%w: unknown kind of operation", errMalformed)
	}
	c, ok, err := a.o.opt.ParseViewWrite(e.op[0], db, e.o, e.o2)
	return a.change(c, ok, err, at)
}

func (a *assembler) change(c stream.Change, ok bool, err error, at mongo.OpTime) error {
	if err != nil {
		return fmt.Errorf("read schema change: %w", err)
	}
	if ok {
		a.add(stream.Event{Kind: stream.SchemaChange, NS: c.NS, Change: &c, At: at})
	}
	return nil
}

// unsent reports that the consumer does not know of everything read.
func (a *assembler) unsent() bool { return a.entries > 0 || a.start.Before(a.end) }

// flush hands everything read to the consumer.
func (a *assembler) flush(ctx context.Context) error { return a.send(ctx, stream.Batch{}) }

// flushFull hands over a full batch after which there is more.
func (a *assembler) flushFull(ctx context.Context) error {
	return a.send(ctx, stream.Batch{More: true})
}

// flushPart hands over what there is of an entry that goes on.
func (a *assembler) flushPart(ctx context.Context) error {
	return a.send(ctx, stream.Batch{More: true, Partial: true})
}

func (a *assembler) send(ctx context.Context, how stream.Batch) error {
	b := &stream.Batch{
		Events: a.events, Start: a.start, End: a.end, Partial: how.Partial, More: how.More,
		Mark: a.mark(), Bytes: a.bytes, Entries: a.entries,
	}
	a.capacity = min(len(a.events)+len(a.events)/8+1, 1<<16)
	a.start, a.events = a.end, nil
	a.bytes, a.pending, a.entries = 0, 0, 0
	a.o.count(b, a.seen, a.txns)
	return a.emit(ctx, b)
}

// mark is that of a batch. Until the position that the run began at is passed
// not all open transactions are known, and what the run was told holds.
func (a *assembler) mark() string {
	from := a.from
	if !a.seen.Before(a.pos) {
		if from = a.txns.first(); from.IsZero() || a.end.Before(from) {
			from = a.end // none is open, or it began after
		}
	}
	return Position(a.end, from).Mark
}
