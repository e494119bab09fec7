package transform

import (
	"context"
	"math/bits"

	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/stream"
)

// fit has an event do to the mapped document what it does to the source's. Where it
// cannot be mapped, and that does not end the job, the target goes without it.
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
		// After a crash the target may lack a document of which no letter tells.
		ev.Kind, ev.Form = stream.Put, 0
		return pass, st.leaves.SettleUnmapped(ctx, ev.Route.Target, ev.Key.ID, "it can be mapped now")
	case stream.Update:
		if missing { // the update may fix it, and its dead letter has to record that
			return undecided, nil
		}
		return d.mapUpdate(ev, op, &st.made), nil
	case stream.Upsert: // it may make the document
		return undecided, nil
	case stream.Delete:
		if missing {
			return pass, st.leaves.SettleUnmapped(ctx, ev.Route.Target, ev.Key.ID,
				"the document is gone from the source, or is none that is wanted")
		}
	}
	return pass, nil
}

// mapUpdate translates an update where it says all that is needed.
func (d *destination) mapUpdate(ev *stream.Event, op stream.Ops, made *arena) verdict {
	change, err := ev.Update()
	if err != nil {
		return pass // the sink tells of an update that cannot be read
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

// mapDocument maps the document that an event writes whole.
func (d *destination) mapDocument(ev *stream.Event, op stream.Ops, made *arena) error {
	out, err := d.maps.Apply(made.room(len(ev.Doc)), ev.Doc, metaOf(ev, op))
	if err != nil {
		return misfit(err, ev.NS, ev.Doc)
	}
	ev.Doc = made.take(out)
	return nil
}

// metaOf is what the rules may take from an event that did an operation.
func metaOf(ev *stream.Event, op stream.Ops) fields.Meta {
	first := stream.Ops(1) << bits.TrailingZeros16(uint16(op))
	return fields.Meta{Namespace: ev.NS, Operation: first.String(), ClusterTime: ev.At.TS}
}

// arena is room for what is made of events. Nothing in it is written twice.
type arena struct {
	free  []byte
	bytes int // taken so far
}

// arenaBlock is how much is asked for at once.
const arenaBlock = 64 << 10

// room is where something of about a size may be appended.
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
