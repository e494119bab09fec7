package transform

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

func line(ev stream.Event) string {
	if ev.Kind == stream.SchemaChange {
		return fmt.Sprintf("%s %s %s", ev.Change.Kind, ev.Change.NS, ev.Change.To)
	}
	return ev.NS + " > " + ev.Route.Target
}

// TestStage: what passes, in order, and where it goes.
func TestStage(t *testing.T) {
	at := mongo.OpTime{Term: 1}
	change := func(kind stream.ChangeKind, ns, to string) stream.Event {
		return stream.Event{Kind: stream.SchemaChange, NS: ns, Change: &stream.Change{Kind: kind, NS: ns, To: to}}
	}
	write := func(ns string) stream.Event { return stream.Event{Kind: stream.Insert, NS: ns} }
	st := NewStage(mustNew(t, Config{Include: []string{"a.*", "b.in"}, Exclude: []string{"a.no"},
		Rename: []string{"a=x", "b.in=y.out"}}), stream.Position{}, nil, nil)
	for range 2 { // the second time the names are known
		b := &stream.Batch{End: at, Events: []stream.Event{
			write("a.c"), write("a.no"), write("a.c"), write("b.in"), write("b.other"), write("c.c"),
			write("a.system.buckets.m"),
			change(stream.ChangeDrop, "c.c", ""), change(stream.ChangeDrop, "b.other", ""),
			change(stream.ChangeRename, "c.c", "a.c"), change(stream.ChangeRename, "a.c", "c.d"),
			change(stream.ChangeRename, "c.d", "d.d"), change(stream.ChangeDropDatabase, "a", ""), write("b.in"),
		}}
		st.Batch(t.Context(), b)
		var got []string
		for _, ev := range b.Events {
			got = append(got, strings.TrimSpace(line(ev)))
		}
		want := []string{"a.c > x.c", "a.c > x.c", "b.in > y.out", "a.system.buckets.m > x.system.buckets.m", "drop b.other",
			"renameCollection c.c a.c", "renameCollection a.c c.d", "dropDatabase a", "b.in > y.out"}
		if !slices.Equal(got, want) || b.End != at {
			t.Errorf("passed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for name, st := range map[string]*Stage{"no rules": NewStage(nil, stream.Position{}, nil, nil),
		"empty rules": NewStage(mustNew(t, Config{}), stream.Position{}, nil, nil)} {
		b := &stream.Batch{Events: []stream.Event{write("a.c"), write("admin.x"), change(stream.ChangeCreate, "a.c", "")}}
		if st.Batch(t.Context(), b); len(b.Events) != 2 || b.Events[0].Route.Target != "a.c" {
			t.Errorf("%s: %+v", name, b.Events)
		}
	}
}

// stageBatch is a batch of runs of events of a few namespaces.
func stageBatch(n int) *stream.Batch {
	names := []string{"a.one", "a.two", "a.three"}
	b := &stream.Batch{}
	for i := range n {
		b.Events = append(b.Events, stream.Event{Kind: stream.Insert, NS: names[i/10%3]})
	}
	return b
}

func TestStageAllocations(t *testing.T) {
	st, b := NewStage(mustNew(t, Config{Rename: []string{"a=b"}}), stream.Position{}, nil, nil), stageBatch(1000)
	if n := testing.AllocsPerRun(10, func() { st.Batch(t.Context(), b) }); n > 0 {
		t.Errorf("%.0f allocations a batch", n)
	}
}

func BenchmarkStage(b *testing.B) {
	st, batch := NewStage(nil, stream.Position{}, nil, nil), stageBatch(1000)
	b.ReportAllocs()
	for b.Loop() {
		st.Batch(b.Context(), batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*1000), "ns/event")
}
