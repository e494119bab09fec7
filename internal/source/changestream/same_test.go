package changestream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestSame: of the same history, the change stream and the oplog give the same events. Users' applyOps commands
// are left out, as change streams do not report them.
func TestSame(t *testing.T) {
	for _, version := range lab.Versions("4.4", "5.0", "6.0.27") {
		t.Run(version, func(t *testing.T) {
			w := start(t, version)
			seed := testseed.Of(t)
			for round := range testseed.Rounds(t, 3) {
				w.same(seed+uint64(round), fmt.Sprintf("same%d", round))
			}
		})
	}
}

func (w world) same(seed uint64, base string) {
	w.Helper()
	w.Logf("seed %d", seed)
	before := w.position()
	w.play(seed, base, 1500)
	end := w.position()
	var dbs []string
	for _, db := range history.Databases() {
		dbs = append(dbs, history.Name(base, db))
	}
	ours, theirs := w.both(before, end, dbs...)
	kinds := map[stream.Kind]int{}
	for _, ev := range theirs {
		kinds[ev.Kind]++
	}
	w.Logf("%d events: %v", len(theirs), kinds)
	if !w.s.Expanded {
		theirs = slices.DeleteFunc(theirs, func(ev stream.Event) bool { return unreported(ev) })
	}
	theirs = slices.DeleteFunc(theirs, func(ev stream.Event) bool {
		return ev.Change != nil && ev.Change.Kind == stream.ChangeDropAllViews // dropDatabase follows
	})
	if !w.s.Expanded {
		w.reread(ours, theirs)
		w.converge(ours, theirs, dbs...)
		return
	}
	for i := range min(len(ours), len(theirs)) {
		if wall := theirs[i].Wall; wall != 0 && wall != ours[i].Wall {
			w.Errorf("%s at %d, want %d", describe(ours[i]), ours[i].Wall, wall)
		}
	}
	kit.SameLines(w, lines(ours), lines(theirs))
	plain := w
	plain.s.Raw = false
	ours = of(w.read(New(w.c, plain.options(dbs...)), from(before), end), dbs...)
	w.reread(ours, theirs)
	w.converge(ours, theirs, dbs...)
}

// play runs a random history.
func (w world) play(seed uint64, base string, steps int) {
	w.Helper()
	r := &history.Runner{Client: w.c.Client, Database: base}
	v := w.c.Info.Version
	h := history.Generate(history.Options{Seed: seed, Writers: 3, Parts: []int{steps}, NoFreeOrder: true,
		Since: v.AtLeast})
	h.Steps = slices.DeleteFunc(h.Steps, func(s history.Step) bool {
		first, err := s.Cmd.IndexErr(0)
		return err == nil && first.Key() == "applyOps"
	})
	w.ok(r.Ordered(w.Context(), h.Steps))
	w.ok(r.Close(w.Context()))
	w.Logf("%d steps, refused %v", r.Stats().Done, r.Stats().Refused)
}

// reread compares what a source before 6.0 reports. Where documents were read, later events of the same documents
// are left out.
func (w world) reread(ours, theirs []stream.Event) {
	w.Helper()
	read := slices.ContainsFunc(ours, func(ev stream.Event) bool { return ev.Kind == stream.Put })
	if got, want := names(ours), names(theirs); !read {
		kit.SameLines(w, got, want)
		return
	}
	there := map[string]bool{}
	for _, one := range names(theirs) {
		there[one] = true
	}
	for i, one := range names(ours) {
		if !there[one] && ours[i].Until.IsZero() { // one that was read may have become two
			w.Errorf("only in the change stream: %s", one)
		}
	}
	isChange := func(ev stream.Event) bool { return ev.Change == nil }
	kit.SameLines(w, names(slices.DeleteFunc(slices.Clone(ours), isChange)),
		names(slices.DeleteFunc(slices.Clone(theirs), isChange)))
}

// unreported are events that change streams have only since 6.0.
func unreported(ev stream.Event) bool {
	_, coll := mongo.SplitNS(ev.NS)
	if ch := ev.Change; ch != nil {
		return ch.Buckets || ch.Kind != stream.ChangeDrop && ch.Kind != stream.ChangeRename &&
			ch.Kind != stream.ChangeDropDatabase
	}
	return mongo.IsBuckets(ev.NS) || coll == "system.js"
}

// names describes events but for their documents, and for what renames do not say before 6.0.
func names(events []stream.Event) (out []string) {
	for _, ev := range events {
		if ev.Change != nil {
			ch := *ev.Change
			ch.DropTarget = false
			ev.Change = &ch
		}
		if ev.Kind == stream.Put {
			ev.Kind = stream.Update
		}
		out = append(out, describe(ev))
	}
	return out
}

// converge checks that both lead to the same documents of the collections that are there.
func (w world) converge(ours, theirs []stream.Event, dbs ...string) {
	w.Helper()
	uuids, err := schema.UUIDs(w.Context(), w.c, dbs)
	w.ok(err)
	there := map[string]bool{}
	for _, one := range uuids {
		there[string(one.Data)] = true
	}
	a, b := w.applied(ours), w.applied(theirs)
	for _, docs := range []map[string]bson.Raw{a, b} {
		maps.DeleteFunc(docs, func(key string, _ bson.Raw) bool { return !there[key[:uuidSize]] })
	}
	for key, doc := range b {
		if string(a[key]) != string(doc) {
			for i, list := range [][]stream.Event{ours, theirs} {
				for _, ev := range list {
					if ev.Change == nil && string(delta.AppendKey(slices.Clone(ev.UUID[:]), ev.Key.ID)) == key {
						w.Logf("%d: %s until %s: %s", i, describe(ev), ev.Until, ev.Doc)
					}
				}
			}
			w.Fatalf("%q:\n\t%s\nwant\n\t%s", key, a[key], doc)
		}
	}
	if len(a) != len(b) {
		w.Fatalf("%d documents, want %d", len(a), len(b))
	}
}

// applied applies events to nothing.
func (w world) applied(events []stream.Event) map[string]bson.Raw {
	w.Helper()
	docs := map[string]bson.Raw{}
	for _, ev := range events {
		if ev.Change != nil {
			continue
		}
		key := string(delta.AppendKey(slices.Clone(ev.UUID[:]), ev.Key.ID))
		switch ev.Kind {
		case stream.Insert, stream.Replace, stream.Put:
			doc := ev.Doc
			if bsonraw.IDOf(doc).Type == 0 { // servers before 6.0 omit it
				doc = append(bson.Raw{}, doc[:4]...)
				doc = append(bsonraw.AppendHeader(doc, bson.Type(ev.Key.ID.Type), "_id"), ev.Key.ID.Data...)
				doc = bsonraw.CloseDocument(append(doc, ev.Doc[4:len(ev.Doc)-1]...), 0)
			}
			docs[key] = doc
		case stream.Delete:
			delete(docs, key)
		case stream.Update:
			u, err := ev.Update()
			w.ok(err)
			if docs[key] == nil {
				continue
			}
			doc, _, err := delta.ApplyAhead(nil, docs[key], u)
			w.ok(err)
			docs[key] = doc
		}
	}
	return docs
}

// TestLive: what comes while it is written is the same as what is read later, in complete batches.
func TestLive(t *testing.T) {
	for _, version := range lab.Versions("4.4", "6.0.27") {
		t.Run(version, func(t *testing.T) {
			w := start(t, version)
			seed := testseed.Of(t)
			before := w.position()
			o := w.options("live", "live-x", "live-to", "live-y")
			o.Await = time.Millisecond
			var end atomic.Pointer[mongo.OpTime]
			var bs []*stream.Batch
			var g errgroup.Group
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			g.Go(func() error {
				return New(w.c, o).Run(ctx, from(before), func(_ context.Context, b *stream.Batch) error {
					bs = append(bs, b)
					if end := end.Load(); end != nil && !b.End.Before(*end) {
						return errReached
					}
					return nil
				})
			})
			w.play(seed, "live", 800)
			w.interleaved("live", 20)
			w.run("admin", d("appendOplogNote", 1, "data", d("n", 1)))
			at := w.position()
			end.Store(&at)
			if err := g.Wait(); !errors.Is(err, errReached) {
				t.Fatal(err)
			}
			w.check(bs, from(before))
			later := w.read(New(w.c, o), from(before), at)
			dbs := []string{"live", "live-x", "live-to", "live-y"}
			kit.SameLines(t, lines(of(bs, dbs...)), lines(of(later, dbs...)))
		})
	}
}
