package oplog

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// assembler turns entries into events and events into batches, in one goroutine.
type assembler struct {
	o    *Source
	emit func(context.Context, *stream.Batch) error
	interpreter
	txns  *txnTable
	fetch *fetcher

	pos     mongo.OpTime // what the consumer has applied
	from    mongo.OpTime // where reading began
	applied bool         // the entry at pos was passed
	seen    mongo.OpTime // the last entry read
	start   mongo.OpTime // End of the last batch
	end     mongo.OpTime // everything up to it is in a batch or in events

	moves  *moves  // renames between databases; nil emits them as they are logged
	filter *filter // nil reads everything

	txn      *stream.Transaction  // to which the operations at hand belong, nil for none
	named    []stream.Transaction // room for the next ones
	events   []stream.Event
	capacity int // of the next events slice
	pending  int // bytes that events keep in memory, and of entries skipped since the last batch
	bytes    int // of entries, for the batch
	entries  int
	contents int // bytes of operations, for the batch: within entries, where they have several
}

func newAssembler(o *Source, pos, from mongo.OpTime, emit func(context.Context, *stream.Batch) error) *assembler {
	a := &assembler{
		o: o, emit: emit, pos: pos, from: from, start: pos, end: pos,
		applied:     !exact(pos) || pos.Before(from),
		interpreter: newInterpreter(o.cluster, o.opt),
		txns:        newTxnTable(o.opt.TxnBufferBytes),
		fetch:       &fetcher{cluster: o.cluster, spool: o.opt.Spool},
	}
	if o.opt.JoinRenames {
		a.moves = &moves{}
	}
	return a
}

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
	if string(e.op) != "c" {
		a.contents += len(doc)
	}
	live := a.pos.Before(e.at)
	if err := a.dispatch(ctx, &e, live); err != nil {
		return fmt.Errorf("oplog entry %s, op %q on %s: %w", e.at, e.op, e.ns, err)
	}
	if live {
		a.end = e.at
	}
	if err := a.judge(&e, len(doc)); err != nil {
		return err
	}
	if a.pending >= a.o.opt.BatchBytes {
		return a.flush(ctx, true, false)
	}
	return nil
}

// order checks that positions grow and that the oplog has the entry at pos.
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

// dispatch handles an entry by its kind. Of entries up to pos (not live) only parts of transactions
// matter.
func (a *assembler) dispatch(ctx context.Context, e *entry, live bool) error {
	if a.moves != nil {
		if taken, err := a.move(e, live); taken || err != nil {
			return err
		}
	}
	switch string(e.op) {
	case "i", "u", "d":
		if !live {
			return nil
		}
		return a.add(e, e.at)
	case "c":
		return a.entryCommand(ctx, e, live)
	}
	if !live {
		return nil
	}
	return withoutEffect(e.op)
}

// judge decides about a filter. A rename between databases needs the entries of all collections.
func (a *assembler) judge(e *entry, bytes int) error {
	switch {
	case a.filter == nil || !a.applied:
	case !a.moves.idle():
		if a.filter.reset() {
			return errUnfiltered
		}
	default:
		if op := string(e.op); op != "c" && op != "n" {
			if info := a.ns.lookup(e.ns); info.kind == nsSkip {
				a.filter.skip(info, bytes)
			}
		}
		a.filter.judge(bytes)
	}
	return nil
}

func (a *assembler) entryCommand(ctx context.Context, e *entry, live bool) error {
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
		// Not limited to some versions: since 6.1 servers group expired documents, and an entry has no
		// version.
		if !c.sent && e.txn.lsid == nil {
			a.wall = e.wall
		}
		a.migrated = e.fromMigrate && a.skipMigrated
		err := a.applyOps(ctx, c.ops, e.at)
		a.byUser, a.wall, a.migrated = false, 0, false
		return err
	case "commitTransaction":
		if e.prev.IsZero() {
			return fmt.Errorf("%w: a commit that names no prepared entry", errMalformed)
		}
		return a.commitPrepared(ctx, e, live)
	case "abortTransaction":
		a.txns.drop(e.txn)
		return nil
	}
	if !live {
		return nil
	}
	return a.add(e, e.at)
}

func (a *assembler) transaction(ctx context.Context, e *entry, c command, live bool) error {
	if c.partial || c.prepared {
		t := a.txns.add(e, c.ops)
		if c.prepared {
			t.prepared = e.at
		}
		return nil
	}
	return a.commit(ctx, e, c.ops, live)
}

func (a *assembler) commitPrepared(ctx context.Context, e *entry, live bool) error {
	if t := a.txns.get(e.txn); t != nil {
		t.prepared = mongo.OpTime{}
	}
	if !a.o.opt.CommitTimes {
		return a.commit(ctx, e, nil, live)
	}
	at, err := commitTime(e.o)
	if err != nil {
		return err
	}
	committed := *e
	committed.at = at
	return a.commit(ctx, &committed, nil, live)
}

// commit emits a transaction's operations: those of earlier entries, then ops of the committing entry.
func (a *assembler) commit(ctx context.Context, e *entry, ops []byte, live bool) error {
	defer a.txns.drop(e.txn)
	if !live {
		return nil
	}
	a.txn = a.name(e.txn)
	defer func() { a.txn = nil }()
	if err := a.earlier(ctx, e, a.txns.get(e.txn)); err != nil || ops == nil {
		return err
	}
	return a.applyOps(ctx, ops, e.at)
}

// name returns a transaction for its events. It allocates them in blocks, as many have one operation.
func (a *assembler) name(id txnID) *stream.Transaction {
	const dozens = 64
	if len(a.named) == cap(a.named) {
		a.named = make([]stream.Transaction, 0, dozens)
	}
	a.named = append(a.named, stream.Transaction{Session: id.lsid, Number: id.number})
	return &a.named[len(a.named)-1]
}

// earlier emits the operations of a transaction's earlier entries, from memory or from the oplog.
func (a *assembler) earlier(ctx context.Context, e *entry, t *openTxn) error {
	if e.prev.IsZero() {
		return nil
	}
	if t != nil && !t.spilled && !t.headless && same(t.last(), e.prev) {
		for _, ops := range t.ops {
			if err := a.applyOps(ctx, ops, e.at); err != nil {
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

// refetch emits the operations of an entry that it reads from the oplog again.
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
	return a.applyOps(ctx, c.ops, at)
}

// applyOps emits the operations of an applyOps array with the position at.
func (a *assembler) applyOps(ctx context.Context, ops []byte, at mongo.OpTime) error {
	return a.operations(ops, 0, func(e *entry, size int) error {
		a.pending += size
		a.contents += size
		if a.byUser {
			if err := a.identify(ctx, e, at); err != nil {
				return fmt.Errorf("inner op %q on %s: %w", e.op, e.ns, err)
			}
		}
		if err := a.add(e, at); err != nil {
			return fmt.Errorf("inner op %q on %s: %w", e.op, e.ns, err)
		}
		if a.pending >= a.o.opt.BatchBytes && len(a.events) > 0 {
			return a.flush(ctx, true, true)
		}
		return nil
	})
}

func (a *assembler) add(e *entry, at mongo.OpTime) error {
	info := a.ns.lookup(e.ns)
	if info.kind == nsSkip && string(e.op) != "c" {
		return nil
	}
	ev := stream.Event{At: at, Txn: a.txn} // made here and copied at once: cheaper than field by field in the heap
	wanted, err := a.event(&ev, e, info)
	if !wanted || err != nil {
		return err
	}
	a.put(ev)
	return nil
}

func (a *assembler) put(ev stream.Event) {
	if a.events == nil {
		a.events = make([]stream.Event, 0, a.capacity)
	}
	a.events = append(a.events, ev)
}

// unsent reports that emit has not been given everything that was read.
func (a *assembler) unsent() bool { return a.entries > 0 || a.start.Before(a.end) }

// flush emits what was read. more: more entries are waiting; partial: the current entry goes on.
func (a *assembler) flush(ctx context.Context, more, partial bool) error {
	b := &stream.Batch{
		Events: a.events, Start: a.start, End: a.end, Partial: partial, More: more,
		Mark: a.mark(), Bytes: a.bytes, Entries: a.entries, EventBytes: a.contents,
	}
	if a.o.opt.CommitTimes {
		b.Undecided = a.txns.undecided()
	}
	a.capacity = min(len(a.events)+len(a.events)/8+1, 1<<16)
	a.start, a.events = a.end, nil
	a.bytes, a.pending, a.entries, a.contents = 0, 0, 0, 0
	a.o.count(b, a.seen, a.txns)
	return a.emit(ctx, b)
}

// mark returns the batch's resume token. Before a.pos open transactions may be unknown, so a.from
// counts.
func (a *assembler) mark() string {
	from := a.from
	if !a.seen.Before(a.pos) {
		if from = a.txns.first(); from.IsZero() || a.end.Before(from) {
			from = a.end // none is open, or it began after
		}
		if m := a.moves.first(); !m.IsZero() {
			from = mongo.MinOpTime(from, m)
		}
	}
	return Position(a.end, from).Mark
}
