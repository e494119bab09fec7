package oplog

import (
	"fmt"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/ddl"
	"github.com/millrace/millrace/internal/stream"
)

// maxNesting bounds applyOps inside applyOps.
const maxNesting = 10

// interpreter turns operations into events. It is not safe for concurrent use.
type interpreter struct {
	ns           *namespaces
	version      mongo.Version
	skipMigrated bool
	namesAlone   bool  // also changes that cannot be followed become events, with their names
	byUser       bool  // the operations at hand are of a user's applyOps
	migrated     bool  // the operations at hand are of an entry with fromMigrate
	wall         int64 // when the server did by itself what an entry groups; 0 of what users do
	inner        entry // the operation at hand
	names        *identities
	log          *slog.Logger    // nil logs nothing
	reported     map[string]bool // namespaces of unknown commands that were logged
}

func newInterpreter(c *mongo.Cluster, o Options) interpreter {
	return interpreter{ns: newNamespaces(o.Keep), version: c.Info.Version, skipMigrated: o.SkipMigrated,
		names: &identities{cluster: c}, log: o.Log, reported: map[string]bool{}}
}

// event fills ev, which has only a position and transaction, from a single operation.
func (in *interpreter) event(ev *stream.Event, e *entry, info *nsInfo) (wanted bool, err error) {
	isCommand := string(e.op) == "c"
	if in.migrated && !e.fromMigrate {
		return false, unknown("origin of an operation without fromMigrate in an entry with it")
	}
	migrated := e.fromMigrate && in.skipMigrated && !resharded(e, info) && !rewritten(e, info)
	if migrated && !isCommand {
		return false, nil
	}
	var ch *stream.Change
	switch {
	case isCommand:
		if ch, err = in.command(e, info); isUnknown(err) {
			return false, err
		}
	case info.kind == nsViews:
		ch, err = parseViewWrite(string(e.op), info.db, e.o, e.o2)
	case info.kind == nsKeep:
		return true, in.document(ev, e, info)
	}
	if migrated {
		return false, nil
	}
	if err != nil {
		ch, err = ddl.Unfollowed(err, in.namesAlone, in.ns.keep)
	}
	if err != nil || ch == nil {
		return false, err
	}
	in.names.forget(ch)
	ev.Kind, ev.NS, ev.Change, ev.Txn = stream.SchemaChange, ch.NS, ch, nil
	return true, nil
}

// command parses a command. Those on the servers' databases change nothing that is replicated, if they are
// known: an unknown one on admin, as applyOps is one, may concern any database.
func (in *interpreter) command(e *entry, info *nsInfo) (*stream.Change, error) {
	if info.kind != nsCommand && info.kind != nsServers {
		return nil, unknown("command on a namespace without $cmd")
	}
	ch, err := parseChange(info.db, e.ui, e.o)
	if info.kind == nsCommand || info.db == "admin" && isUnknown(err) {
		return ch, err
	}
	if isUnknown(err) && in.log != nil && !in.reported[info.name] {
		in.reported[info.name] = true
		in.log.Warn("an unknown oplog entry of a database that is not replicated is skipped", "ns", info.name, "error", err)
	}
	return nil, nil
}

// resharded reports the rename that replaces a collection by its resharded copy.
func resharded(e *entry, info *nsInfo) bool {
	if info.kind != nsCommand || string(e.op) != "c" {
		return false
	}
	from, _ := e.o.Lookup("renameCollection").StringValueOK()
	c, _ := mongo.Staged(from)
	return c == mongo.CommandReshard
}

// rewritten reports writes to the staging collection of a conversion to capped or of a rename between
// databases. Servers mark them as migrations. A staging collection is on one shard, so no migration
// writes to it.
func rewritten(e *entry, info *nsInfo) bool {
	name := info.name
	if info.kind == nsCommand {
		if first, err := e.o.IndexErr(0); err == nil {
			coll, _ := first.Value().StringValueOK()
			name = info.db + "." + coll
		}
	}
	c, _ := mongo.Staged(name)
	return c == mongo.CommandMove || c == mongo.CommandCapped
}

func (in *interpreter) document(ev *stream.Event, e *entry, info *nsInfo) error {
	ev.NS = info.name
	if e.ui != nil {
		ev.UUID = (*[16]byte)(e.ui)
	}
	key := e.o
	if in.byUser {
		e.o = wholeDocument(e)
	}
	switch string(e.op) {
	case "i":
		ev.Kind, ev.Doc, ev.Key.Shard = stream.Insert, e.o, e.o2
	case "u":
		ev.Kind, ev.Doc, key, ev.Key.Shard = stream.Update, e.o, e.o2, e.o2
	case "d":
		ev.Kind, ev.Key.Shard = stream.Delete, e.o
		if ev.Wall = in.wall; e.txn.lsid == nil && ev.Wall == 0 { // nothing expires in a session
			ev.Wall = e.wall
		}
	default:
		return fmt.Errorf("%w: unknown kind of operation", errMalformed)
	}
	if key == nil || e.o == nil {
		return fmt.Errorf("%w: no document or no _id", errMalformed)
	}
	if ev.Key.ID = bsonraw.IDOf(key); ev.Key.ID.Type == 0 && ev.Kind != stream.Insert {
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
	if in.byUser {
		in.asApplied(ev)
	}
	return nil
}

// asApplied turns an operation into what a server makes of it in a user's applyOps (tried on 4.2 to
// 6.0). An insert replaces. An update without a match inserts, whatever b and alwaysUpsert say: a failed
// one is not logged.
func (in *interpreter) asApplied(ev *stream.Event) {
	switch ev.Kind {
	case stream.Insert, stream.Replace:
		ev.Kind = stream.Put
	case stream.Update:
		ev.Kind, ev.Doc = stream.Upsert, delta.Sorted(ev.Doc, in.version.AtLeast(5, 0))
	}
}

// wholeDocument returns the entry's o, as a replacement with its _id, which servers before 6.0 omit.
func wholeDocument(e *entry) bson.Raw {
	if string(e.op) != "u" || e.o == nil || e.o2 == nil || delta.KindOf(e.o) != delta.Replacement {
		return e.o
	}
	id := bsonraw.IDOf(e.o2)
	body, valid := bsonraw.Body(e.o)
	if !valid || id.Type == 0 || bsonraw.IDOf(e.o).Type != 0 {
		return e.o
	}
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = append(bsoncore.AppendValueElement(doc, "_id", id), body...)
	doc, err := bsoncore.AppendDocumentEnd(doc, i)
	if err != nil {
		return e.o
	}
	return doc
}

// usersOwn tells a user's applyOps, logged as it was sent, from operations that a server groups. Before
// 7.0 servers group only retryable inserts and, since 6.1, deletes, which are the same for both. There a
// nested command lacks the field that reports its origin.
func (in *interpreter) usersOwn(e *entry, c command) bool {
	return c.sent || !e.separate && !in.version.AtLeast(7, 0)
}

// operations calls fn for the operations of an applyOps array, nested ones included, and their sizes.
// The entry is reused for the next call.
func (in *interpreter) operations(ops []byte, depth int, fn func(e *entry, size int) error) error {
	if depth > maxNesting {
		return fmt.Errorf("%w: applyOps nested too deeply", errMalformed)
	}
	rest, ok := bsonraw.Body(ops)
	if !ok {
		return errMalformed
	}
	for len(rest) > 0 {
		var f bsonraw.Element
		if f, rest, ok = bsonraw.Next(rest); !ok || f.Type != bson.TypeEmbeddedDocument {
			return fmt.Errorf("%w: applyOps holds something else than operations", errMalformed)
		}
		e := &in.inner // large: not one in the heap for every operation
		if err := e.parse(f.Value); err != nil {
			return err
		}
		if err := in.operation(e, len(f.Value), depth, fn); err != nil {
			return err
		}
	}
	in.inner = entry{} // it would keep a reply in memory
	return nil
}

func (in *interpreter) operation(e *entry, size, depth int, fn func(e *entry, size int) error) error {
	switch string(e.op) {
	case "i", "u", "d":
	case "c":
		c, err := parseCommand(e.o)
		if err != nil {
			return err
		}
		if c.ops != nil {
			return in.operations(c.ops, depth+1, fn)
		}
	default:
		return withoutEffect(e.op)
	}
	return fn(e, size)
}

// withoutEffect returns nil for kinds of entries that change no document, collection or index, and an error for
// unknown ones. It is not called for i, u, d and c.
func withoutEffect(op []byte) error {
	switch string(op) {
	case "n": // keeps the position moving; also pre- and post-images of retryable writes
		return nil
	case "ci", "cd", "cu", "km":
		// Servers from 8.3 on replicate so what a primary writes to its own tables: index builds and multikey paths. The
		// index follows by commitIndexBuild or createIndexes (decision 42).
		return nil
	}
	return unknown("kind of operation")
}
