package changestream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// world is a replica set with what its change streams report.
type world struct {
	testing.TB
	c *mongo.Cluster
	s Support
}

func start(t testing.TB, version string) world {
	t.Helper()
	l := lab.ForTest(t, lab.Options{Version: version, TestCommands: true})
	w := world{t, dial.Cluster(t, l.URI(), mongo.Options{AppName: t.Name()}), Support{}}
	var err error
	w.s, err = Probe(t.Context(), w.c)
	w.ok(err)
	return w
}

func (w world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%v (hint: %s)", err, mongo.HintOf(err))
	}
}

func (w world) run(db string, cmd any) {
	w.Helper()
	w.ok(w.c.Client.Database(db).RunCommand(w.Context(), cmd).Err())
}

// position waits until everything written is majority-committed, and returns its position.
func (w world) position() mongo.OpTime {
	w.Helper()
	at, err := w.c.Committed(w.Context())
	w.ok(err)
	return at
}

func (w world) options(dbs ...string) Options {
	return Options{Support: w.s, Keep: only(dbs...), Await: 20 * time.Millisecond}
}

// only keeps the namespaces of some databases.
func only(dbs ...string) func(string) bool {
	return func(ns string) bool {
		db, _ := mongo.SplitNS(ns)
		return slices.Contains(dbs, db)
	}
}

// errReached ends a run.
var errReached = errors.New("reached")

// read runs a source until a batch ends at or after until, checks what must hold of every run's batches, and
// returns them.
func (w world) read(s stream.Source, pos stream.Position, until mongo.OpTime) []*stream.Batch {
	w.Helper()
	bs, err := w.readOr(s, pos, until)
	w.ok(err)
	return bs
}

func (w world) readOr(s stream.Source, pos stream.Position, until mongo.OpTime) (bs []*stream.Batch, err error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	_, ours := s.(*Source)
	err = s.Run(ctx, pos, func(_ context.Context, b *stream.Batch) error {
		bs = append(bs, b)
		for _, ev := range b.Events {
			if ours && ev.Change != nil && b.End.Before(ev.At) {
				w.Errorf("%s is beyond the end of its batch, %s", describe(ev), b.End)
			}
		}
		if b.End.Before(until) || b.Partial {
			return nil
		}
		return errReached
	})
	w.check(bs, pos)
	if errors.Is(err, errReached) {
		err = nil
	}
	return bs, err
}

// check checks contiguity, order and the ends of partial batches.
func (w world) check(bs []*stream.Batch, pos stream.Position) {
	w.Helper()
	end, at := pos.At, pos.At
	for i, b := range bs {
		if b.Start != end || b.End.Before(b.Start) {
			w.Fatalf("batch %d is from %s to %s, the one before ended at %s", i, b.Start, b.End, end)
		}
		for _, ev := range b.Events {
			if ev.At.Before(at) || !pos.At.Before(ev.At) || !end.Before(ev.At) {
				w.Fatalf("batch %d: event at %s after one at %s; complete %s, applied %s", i, ev.At, at, end, pos.At)
			}
			if at = ev.At; b.End.Before(at) && !b.Partial {
				w.Fatalf("batch %d: event at %s beyond its end %s", i, at, b.End)
			}
		}
		if !b.Partial && b.End.Before(at) {
			w.Fatalf("batch %d is not partial, and ends at %s before %s", i, b.End, at)
		}
		end = b.End
	}
}

// of returns the events of batches, with schema changes of some databases only, as rules leave them.
func of(bs []*stream.Batch, dbs ...string) (out []stream.Event) {
	for _, b := range bs {
		for _, ev := range b.Events {
			db, _ := mongo.SplitNS(ev.NS)
			if slices.Contains(dbs, db) {
				out = append(out, ev)
			}
		}
	}
	return out
}

// text describes all that two captures must report alike of an event.
func describe(ev stream.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", ev.At, ev.Kind, ev.NS)
	if ch := ev.Change; ch != nil {
		uuid := ch.UUID.Data
		if ch.Kind == stream.ChangeView || ch.Kind == stream.ChangeDropView || ch.Kind == stream.ChangeDropDatabase {
			uuid = nil
		}
		fmt.Fprintf(&b, " %s %s to %q drop %v buckets %v command %d %x %s", ch.Kind, ch.NS, ch.To, ch.DropTarget, ch.Buckets,
			ch.Command, uuid, ch.Options)
		for _, ix := range ch.Indexes {
			fmt.Fprintf(&b, " [%s %s]", ix.Name, ix.Spec)
		}
		return b.String()
	}
	if ev.UUID != nil {
		fmt.Fprintf(&b, " %x", *ev.UUID)
	}
	fmt.Fprintf(&b, " %s", bsonraw.IDText(ev.Key.ID))
	if ev.Txn != nil {
		fmt.Fprintf(&b, " txn %s %d", ev.Txn.Session, ev.Txn.Number)
	}
	return b.String()
}

func lines(events []stream.Event) (out []string) {
	for _, ev := range events {
		s := describe(ev)
		if ev.Change == nil {
			s += fmt.Sprintf(" %s %s", ev.Form, ev.Doc)
		}
		out = append(out, s)
	}
	return out
}

func from(at mongo.OpTime) stream.Position { return stream.Position{At: at} }

// both reads a span with both captures.
func (w world) both(start, end mongo.OpTime, dbs ...string) (ours, theirs []stream.Event) {
	w.Helper()
	ours = of(w.read(New(w.c, w.options(dbs...)), from(start), end), dbs...)
	theirs = of(w.read(oplog.New(w.c, oplog.Options{Keep: only(dbs...), Await: 20 * time.Millisecond}),
		oplog.Position(start, start), end), dbs...)
	return ours, theirs
}

func d(pairs ...any) bson.D {
	out := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return out
}

func oplogSpan(after, until mongo.OpTime) oplog.Span { return oplog.Span{After: after, Until: until} }
