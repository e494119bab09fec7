package transform

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// fit applies the mapping to an event. If the document cannot be mapped and that does not end the
// job, the target goes without it.
func (st *Stage) fit(ctx context.Context, d *destination, ev *stream.Event, op stream.Ops) (verdict, error) {
	missing := st.leaves != nil && st.leaves.IsUnmapped(ev.Route.Target, ev.Key.ID)
	switch ev.Kind {
	case stream.Insert, stream.Replace, stream.Put:
		err := d.mapDocument(ev, op, &st.made)
		if why, ok := Unmappable(err); ok && st.leaves != nil {
			d.mapped.failed.Add(1)
			return pass, st.leaveOut(ctx, ev, why, err)
		}
		if err != nil || st.leaves == nil || ev.Kind == stream.Insert && !missing {
			return pass, err
		}
		// after a crash the target may lack a document without a dead letter
		ev.Kind, ev.Form = stream.Put, 0
		return pass, st.leaves.SettleUnmapped(ctx, ev.Route.Target, ev.Key.ID, "it can be mapped now")
	case stream.Update:
		if missing { // the update may fix the document, which its dead letter has to record
			return undecided, nil
		}
		return d.mapUpdate(ev, op, &st.made), nil
	case stream.Upsert: // it may create the document
		return undecided, nil
	case stream.Delete:
		if missing {
			return pass, st.leaves.SettleUnmapped(ctx, ev.Route.Target, ev.Key.ID,
				"the document is gone from the source, or is none that is wanted")
		}
	}
	return pass, nil
}

func (d *destination) mapUpdate(ev *stream.Event, op stream.Ops, made *arena) verdict {
	change, err := ev.Update()
	if err != nil {
		return pass // the sink reports an unreadable update
	}
	out, v := d.maps.Update(made.room(len(ev.Doc)), change, metaOf(ev, op))
	switch v {
	case fields.State:
		return undecided
	case fields.Nothing:
		d.mapped.nothing.Add(1)
		return drop
	case fields.Translated:
		ev.Doc = made.take(out)
		d.mapped.translated.Add(1)
	default:
		d.mapped.passed.Add(1)
	}
	return pass
}

func (d *destination) mapDocument(ev *stream.Event, op stream.Ops, made *arena) error {
	out, err := d.maps.Apply(made.room(len(ev.Doc)), ev.Doc, metaOf(ev, op))
	if err != nil {
		return misfit(err, ev.NS, ev.Doc)
	}
	ev.Doc = made.take(out)
	return nil
}

func metaOf(ev *stream.Event, op stream.Ops) fields.Meta {
	first := stream.Ops(1) << bits.TrailingZeros16(uint16(op))
	return fields.Meta{Namespace: ev.NS, Operation: first.String(), ClusterTime: ev.At.TS}
}

type arena struct {
	free  []byte
	bytes int // taken so far
}

const arenaBlock = 64 << 10

func (a *arena) room(size int) []byte {
	if size += size/2 + 256; cap(a.free) < size {
		a.free = make([]byte, 0, max(size, arenaBlock))
	}
	return a.free[:0]
}

// take keeps what was appended to room.
func (a *arena) take(b []byte) []byte {
	a.bytes += len(b)
	if len(b) <= cap(a.free) && len(b) > 0 && &b[0] == &a.free[:1][0] {
		a.free = a.free[len(b):len(b):cap(a.free)]
	}
	return b[:len(b):len(b)]
}

// Unmapped is a document of the source that the rules cannot map.
type Unmapped struct {
	stream.Origin // its collection
	ID            bsonraw.ID
	Doc           bson.Raw
	// At is the position of Doc, which may include changes up to Until.
	At, Until mongo.OpTime
	Reason    string
	Err       error // ends a job that does not continue without the document
}

// LeftOut keeps documents that the rules cannot map, which the target then lacks. It is safe for
// concurrent use for different documents.
type LeftOut interface {
	// LeaveOut keeps a document and replaces an earlier one. An error ends the job.
	LeaveOut(ctx context.Context, u Unmapped) error
	// IsUnmapped reports a kept document, by its collection on the target.
	IsUnmapped(target string, id bsonraw.ID) bool
	// SettleUnmapped records that the target has the document now, or need not have it.
	SettleUnmapped(ctx context.Context, target string, id bsonraw.ID, reason string) error
}

func (st *Stage) leaveOut(ctx context.Context, ev *stream.Event, why string, err error) error {
	u := Unmapped{Origin: ev.Origin(), ID: ev.Key.ID, Doc: ev.Doc, At: ev.At, Until: mongo.MaxOpTime(ev.At, ev.Until),
		Reason: why, Err: err}
	become(ev, nil, nil)
	return st.leaves.LeaveOut(ctx, u)
}

// cut splits a batch after the first change to collections, if documents may be left out or renames
// skipped. The change settles what is kept of them, before later events are decided.
func (st *Stage) cut(b *stream.Batch) (some, rest *stream.Batch) {
	if st.leaves == nil && st.retainer.of == nil {
		return b, nil
	}
	i := 1 + slices.IndexFunc(b.Events, moves)
	if i == 0 || i == len(b.Events) {
		return b, nil
	}
	return b.Cut(i, st.mark)
}

func moves(ev stream.Event) bool {
	if ev.Kind != stream.SchemaChange {
		return false
	}
	switch ev.Change.Kind {
	case stream.ChangeCreate, stream.ChangeDrop, stream.ChangeRename, stream.ChangeDropDatabase:
		return true
	}
	return false
}

// mark turns a deletion into an update that sets a field to its time.
func mark(ev *stream.Event, field string, made *arena) {
	at := binary.LittleEndian.AppendUint64(nil, uint64(ev.At.TS.T)*1000)
	date := bsoncore.Value{Type: bsoncore.TypeDateTime, Data: at}
	change := bsoncore.NewDocumentBuilder().AppendInt32("$v", 2).
		AppendDocument("diff", bsoncore.NewDocumentBuilder().
			AppendDocument("i", bsoncore.NewDocumentBuilder().AppendValue(field, date).Build()).Build()).Build()
	ev.Kind, ev.Form, ev.Doc = stream.Update, delta.Diff, bson.Raw(made.take(append(made.room(len(change)), change...)))
}

func parseSoftDelete(field string) (string, string, error) {
	switch {
	case field == "":
		return "", "", errors.New("the field after the = is missing")
	case field == "_id" || strings.ContainsAny(field, ".$;\x00"):
		return "", "",
			fmt.Errorf("%q cannot be the field, which stands at the top level, is not _id, and has no dot, dollar or semicolon",
				field)
	}
	return field, field, nil
}
