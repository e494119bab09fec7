package follow

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/versions"
)

// Bounds of documents compared at once.
const (
	mostCompared      = 1000
	mostComparedBytes = 8 << 20
)

// pass sends a batch through the rules to the sink. $out and mapReduce replace the documents of a
// collection: under rules, pass emits an insert, replace or delete for each document that differs,
// before the end of the command.
func (f *follower) pass(ctx context.Context, b *stream.Batch) error {
	for from := 0; ; {
		i := slices.IndexFunc(b.Events[from:], f.rewrites)
		if i < 0 {
			break
		}
		first, rest := b.Cut(from+i, f.mark)
		if len(first.Events) > 0 {
			if err := f.stage.Pass(ctx, first, f.Source.Read, f.feed); err != nil {
				return err
			}
		}
		if err := f.sink.Drain(ctx); err != nil {
			return err
		}
		if err := f.rewrite(ctx, rest); err != nil {
			ev := &rest.Events[0]
			return fmt.Errorf("replace the documents of %s at %s: %w", ev.Change.To, ev.At, err)
		}
		b, from = rest, 1
	}
	if err := f.stage.Pass(ctx, b, f.Source.Read, f.feed); err != nil {
		return err
	}
	if !b.Partial {
		f.mark = b.Mark
	}
	return nil
}

// rewrites reports whether an event ends a command before which documents may have to be compared.
func (f *follower) rewrites(ev stream.Event) bool {
	if ev.Kind != stream.SchemaChange || ev.Change.To == "" || !f.Rules.Commands() || !f.Rules.Match(ev.Change.To) {
		return false
	}
	switch ch := ev.Change; ch.Kind {
	case stream.ChangeRename:
		return (ch.Command == mongo.CommandOut || ch.Command == mongo.CommandCapped) && f.Rules.Route(ch.To).Ruled
	case stream.ChangeDrop: // end of a rename between databases, which servers do by a copy
		return true
	}
	return false
}

// reads reports whether documents of a collection are read for rules. After a rename between
// databases they cannot be read under the old name.
func reads(r *transform.Route) bool {
	return r.Reads() && !r.Skips.Has(stream.OpUpdate|stream.OpReplace)
}

// rewriting compares the collection that a server filled for a command with the target's copy of
// the collection that the command replaces.
type rewriting struct {
	*follower
	on    targetVersions   // reads the target
	b     *stream.Batch    // begins with the end of the command
	ev    *stream.Event    // end of the command
	from  string           // filled collection on the target
	route *transform.Route // of the replaced collection
	uuid  *[16]byte
	exact bool // no rule changes the documents
}

func (f *follower) rewrite(ctx context.Context, b *stream.Batch) error {
	ev := &b.Events[0]
	staged, known := f.Source.Names.Source(ev.Change.NS)
	capped := ev.Change.Command == mongo.CommandCapped
	moved := ev.Change.Kind == stream.ChangeDrop
	route := f.Rules.Route(ev.Change.To)
	switch {
	case (capped || moved) && !f.mayBeCut(ev) && !(moved && reads(route)):
		return nil
	case !known || !capped && f.Source.Names.LeftOut(*ev.Change, f.Rules) != 0:
		return nil
	}
	to, there := f.Source.Names.Source(ev.Change.To)
	there = there && !to.Gone
	r := &rewriting{follower: f, on: targetVersions{f.Target, f.sink}, b: b, ev: ev, from: staged.Target, route: route}
	if data := ev.Change.UUID.Data; len(data) == len(r.uuid) {
		r.uuid = (*[16]byte)(data)
	}
	has, err := f.Schema.Catalog.Has(ctx, r.from)
	switch {
	case err != nil:
		return err
	case !has && f.intent == ev.At: // done before the restart
		if moved && f.job.Before.NS == ev.Change.NS {
			r.takePlace(staged)
		}
		return nil
	case !has:
		return mongo.WithHint(fmt.Errorf("%s does not exist on the target", r.from),
			"something else drops collections of the target; start the job again with --restart")
	case moved && to.Left:
		// The rename is skipped: documents that the copy did not read belong under the old name.
		r.route = f.Rules.Route(ev.Change.From)
		return r.fill(ctx)
	case (capped || moved) && to.Gone:
		return nil
	case moved:
		takes, err := r.takesPlace(ctx)
		if err != nil {
			return err
		}
		if takes {
			r.takePlace(staged)
			return nil
		}
		return r.fill(ctx)
	case capped:
		return r.fill(ctx)
	}
	if !there {
		made := stream.Change{Kind: stream.ChangeCreate, NS: ev.Change.To, UUID: ev.Change.UUID,
			Options: bson.Raw{5, 0, 0, 0, 0}, Shard: ev.Change.Shard, Mark: ev.Change.Mark}
		create := stream.Event{Kind: stream.SchemaChange, NS: made.NS, Change: &made, At: ev.At}
		if err := r.emitAll(ctx, []stream.Event{create}); err != nil {
			return err
		}
	}
	r.exact = r.route.Fields == nil
	f.Log.Info("comparing the documents that a command wrote", "ns", ev.Change.To, "at", ev.At)
	if err := r.chunks(ctx, r.from, bson.D{}, r.write); err != nil {
		return err
	}
	switch {
	case !there:
		return nil
	case f.Rules.Others():
		f.Log.Warn("a command replaced the documents of a collection; documents that only the target has stay",
			"ns", r.route.Target, "at", ev.At)
		return nil
	case r.route.History:
		return r.ended(ctx)
	}
	return r.chunks(ctx, r.route.Target, r.ids(), r.remove)
}

// takesPlace reports whether the filled collection replaces the target's copy of a collection that was
// renamed between databases. A capped one does: documents added to the copy would come last.
func (r *rewriting) takesPlace(ctx context.Context) (bool, error) {
	ch := r.ev.Change
	if r.Rules.Others() || (r.Rules.Route(ch.From).Skips | r.Rules.Route(ch.To).Skips).Has(stream.OpDrop|stream.OpRename) {
		return false, nil
	}
	return r.ordered(ctx)
}

func (r *rewriting) ordered(ctx context.Context) (bool, error) {
	if one, _ := r.Source.Names.Source(r.route.Source); !one.Copied.Before(r.ev.At) {
		return false, nil
	}
	return r.Schema.Catalog.HasCapped(ctx, r.route.Target)
}

// takePlace turns the drop of the filled collection into a rename over the replaced one.
func (r *rewriting) takePlace(staged schema.Name) {
	ch := r.ev.Change
	r.ev.Change = &stream.Change{Kind: stream.ChangeRename, NS: ch.NS, To: ch.To, DropTarget: true, UUID: staged.UUID}
}

func (r *rewriting) ids() bson.D {
	fields := bson.D{{Key: "_id", Value: 1}}
	if r.route.SoftDelete != "" {
		fields = append(fields, bson.E{Key: r.route.SoftDelete, Value: 1})
	}
	return fields
}

func (r *rewriting) emitAll(ctx context.Context, events []stream.Event) error {
	if len(events) == 0 {
		return nil
	}
	return r.stage.Pass(ctx, r.part(events), r.Source.Read, r.feed)
}

// part is a batch that does not advance the position.
func (r *rewriting) part(events []stream.Event) *stream.Batch {
	b := &stream.Batch{Events: events, Start: r.b.Start, End: r.b.Start, Mark: r.mark, Partial: true, More: true}
	for i := range events {
		b.EventBytes += len(events[i].Doc) + len(events[i].Key.ID.Data)
	}
	return b
}

type chunk struct {
	docs []bson.Raw
	size int
	next func(context.Context, []bson.Raw) error
}

func (c *chunk) add(ctx context.Context, doc bson.Raw) error {
	c.docs = append(c.docs, doc)
	if c.size += len(doc); len(c.docs) < mostCompared && c.size < mostComparedBytes {
		return nil
	}
	return c.end(ctx)
}

func (c *chunk) end(ctx context.Context) error {
	docs := c.docs
	if c.docs, c.size = nil, 0; len(docs) == 0 {
		return nil
	}
	return c.next(ctx, docs)
}

func (r *rewriting) chunks(
	ctx context.Context, ns string, fields bson.D, fn func(context.Context, []bson.Raw) error,
) error {
	c := chunk{next: fn}
	all := bson.D{{Key: "noCursorTimeout", Value: true}, {Key: "projection", Value: fields}}
	err := r.find(ctx, ns, all, func(doc []byte) error { return c.add(ctx, bytes.Clone(doc)) })
	if err != nil {
		return err
	}
	return c.end(ctx)
}

func (r *rewriting) write(ctx context.Context, docs []bson.Raw) error {
	have, err := r.current(ctx, docs)
	if err != nil {
		return err
	}
	keep := r.route.Keep(nil)
	var events []stream.Event
	for _, doc := range docs {
		id := bsonraw.IDOf(doc)
		was := have[delta.KeyOf(id)]
		kept := keep == nil || keep(doc)
		switch _, marked := bsonraw.Field(was, r.route.SoftDelete); {
		case was == nil && !kept, kept && r.exact && bytes.Equal(was, doc):
		case was == nil || marked && r.route.SoftDelete != "":
			events = append(events, r.event(stream.Insert, id, doc))
		case !bsonraw.IDOf(was).Equal(id): // a number of another type
			events = append(events, r.event(stream.Delete, bsonraw.IDOf(was), nil), r.event(stream.Insert, id, doc))
		default:
			events = append(events, r.event(stream.Replace, id, doc))
		}
	}
	return r.emitAll(ctx, events)
}

func (r *rewriting) event(kind stream.Kind, id bsoncore.Value, doc bson.Raw) stream.Event {
	return stream.Event{Kind: kind, NS: r.route.Source, Route: &r.route.Route, UUID: r.uuid, Key: stream.Key{ID: id},
		Doc: doc, At: r.ev.At}
}

func (r *rewriting) current(ctx context.Context, docs []bson.Raw) (map[string]bson.Raw, error) {
	have := map[string]bson.Raw{}
	if !r.route.History {
		return have, r.find(ctx, r.route.Target, alike(docs), func(doc []byte) error {
			have[delta.KeyOf(bsonraw.IDOf(doc))] = bytes.Clone(doc)
			return nil
		})
	}
	var asked []versions.Asked
	for _, doc := range docs {
		asked = append(asked, versions.Asked{Key: bsonraw.IDOf(doc), Before: r.end()})
	}
	found, err := r.on.Before(ctx, r.route.Target, asked, math.MaxInt)
	for i, version := range found {
		if doc := versions.Unwrap(version); doc != nil {
			have[delta.KeyOf(asked[i].Key)] = doc
		}
	}
	return have, err
}

// end lies after all versions of the command's time.
func (r *rewriting) end() versions.Position {
	return versions.Position{T: r.ev.At.TS, N: math.MaxInt32}
}

func (r *rewriting) find(ctx context.Context, ns string, chosen bson.D, fn func(doc []byte) error) error {
	return r.on.read(ctx, ns, func(coll string) bson.D {
		return append(bson.D{{Key: "find", Value: coll}}, chosen...)
	}, fn)
}

func alike(docs []bson.Raw) bson.D {
	ids := make([]bson.RawValue, len(docs))
	for i, doc := range docs {
		ids[i] = bsonraw.RawValue(bsonraw.IDOf(doc))
	}
	return bson.D{{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}}
}

func (r *rewriting) remove(ctx context.Context, docs []bson.Raw) error {
	docs = slices.DeleteFunc(docs, func(doc bson.Raw) bool {
		_, marked := bsonraw.Field(doc, r.route.SoftDelete)
		return r.route.SoftDelete != "" && marked
	})
	written := map[string]bool{}
	chosen := append(alike(docs), bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}})
	err := r.find(ctx, r.from, chosen, func(doc []byte) error {
		written[delta.KeyOf(bsonraw.IDOf(doc))] = true
		return nil
	})
	if err != nil {
		return err
	}
	var events []stream.Event
	for _, doc := range docs {
		if id := bsonraw.IDOf(doc); !written[delta.KeyOf(id)] {
			events = append(events, r.event(stream.Delete, id, nil))
		}
	}
	return r.emitAll(ctx, events)
}

func (r *rewriting) ended(ctx context.Context) error {
	c := chunk{next: r.remove}
	err := r.on.Last(ctx, r.route.Target, r.end(), func(version bson.Raw) error {
		last, err := versions.Parse(version)
		if err != nil || last.Doc == nil {
			return err
		}
		return c.add(ctx, bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", bsonraw.Clone(last.Key)).Build()))
	})
	if err != nil {
		return err
	}
	return c.end(ctx)
}

// fill writes the documents that the target lacks of a collection that was renamed between databases or
// converted. Its copy was cut off, or documents could not be read under the old UUID.
func (r *rewriting) fill(ctx context.Context) error {
	keep, to, reads := r.route.Keep(nil), r.route.Mapper(r.job.Start.TS, nil), reads(r.route)
	ordered, err := r.ordered(ctx)
	if err != nil {
		return err
	}
	late := false // in a capped collection, later documents belong behind a missing one
	return r.chunks(ctx, r.from, bson.D{}, func(ctx context.Context, docs []bson.Raw) error {
		have, err := r.current(ctx, docs)
		if err != nil {
			return err
		}
		var events []stream.Event
		for _, doc := range docs {
			was := have[delta.KeyOf(bsonraw.IDOf(doc))]
			late = late || was == nil && ordered
			switch {
			case was != nil && late:
				events = append(events, r.event(stream.Delete, bsonraw.IDOf(doc), nil))
				doc, was = was, nil
			case was != nil && !reads:
				continue
			}
			ev := r.event(stream.Put, bsonraw.IDOf(doc), doc)
			switch kept := keep == nil || keep(doc); {
			case !kept && was == nil:
				continue
			case !kept:
				ev.Kind, ev.Doc = stream.Delete, nil
			case to != nil:
				out, err := to(nil, doc)
				if _, unmapped := transform.Unmappable(err); unmapped && r.Source.Leaves != nil {
					continue
				}
				if err != nil {
					return err
				}
				ev.Doc = out
			}
			if ev.Doc != nil && bytes.Equal(ev.Doc, was) {
				continue
			}
			events = append(events, ev)
		}
		if len(events) == 0 {
			return nil
		}
		return r.feed(ctx, r.part(events))
	})
}
