package changestream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/stream"
)

// BenchmarkRead reads 100,000 inserts of 1 KB: by a source, its replies alone, and by the driver's change stream,
// which only counts.
func BenchmarkRead(b *testing.B) {
	const total = 100_000
	w := start(b, "6.0")
	before := w.position()
	for lo := 0; lo < total; lo += 10_000 {
		docs := make([]any, 10_000)
		for i := range docs {
			docs[i] = d("_id", fmt.Sprintf("user%016d", lo+i), "pad", strings.Repeat("x", 1000))
		}
		_, err := w.c.Client.Database("bench").Collection("c").InsertMany(b.Context(), docs)
		w.ok(err)
	}
	end := w.position()
	measure := func(name string, read func() int) {
		b.Run(name, func(b *testing.B) {
			began, used := time.Now(), procstat.Read().CPUSeconds
			events := 0
			for range b.N {
				events += read()
			}
			b.ReportMetric(float64(events)/time.Since(began).Seconds(), "events/s")
			b.ReportMetric((procstat.Read().CPUSeconds-used)*1e6/float64(events), "cpu-µs/event")
		})
	}
	measure("source", func() (n int) {
		o := w.options("bench")
		o.Await = 0
		err := New(w.c, o).Run(b.Context(), from(before), func(_ context.Context, batch *stream.Batch) error {
			if n += len(batch.Events); !batch.End.Before(end) {
				return errReached
			}
			return nil
		})
		if !errors.Is(err, errReached) || n <= total {
			b.Fatalf("%d events: %v", n, err)
		}
		return n
	})
	measure("replies", func() (n int) {
		o := w.options("bench")
		o.Await = 0
		r := &reader{s: New(w.c, o), from: from(before)}
		w.ok(r.open(b.Context()))
		defer r.close(b.Context())
		for {
			rep, err := r.next(b.Context())
			w.ok(err)
			w.ok(rep.Each(func([]byte) error { n++; return nil }))
			if rep.Empty() || !rep.token.at().Before(end) {
				return n
			}
		}
	})
	measure("driver", func() int { return w.bare(before, end) })
	measure("driver, no options", func() int {
		plain := w
		plain.s = Support{}
		return plain.bare(before, end)
	})
}

// bare reads the same with the driver.
func (w world) bare(from, end mongo.OpTime) (n int) {
	o := options.ChangeStream().SetStartAtOperationTime(&from.TS).SetShowExpandedEvents(w.s.Expanded)
	o.SetCustomPipeline(bson.M{})
	if w.s.Raw {
		o.SetCustomPipeline(bson.M{"showRawUpdateDescription": true})
	}
	cs, err := w.c.Client.Watch(w.Context(), driver.Pipeline{}, o)
	w.ok(err)
	defer func() { _ = cs.Close(w.Context()) }()
	for cs.Next(w.Context()) {
		n++
		if t, i := cs.Current.Lookup("clusterTime").Timestamp(); !(bson.Timestamp{T: t, I: i}).Before(end.TS) {
			break
		}
	}
	w.ok(cs.Err())
	return n
}
