package copy

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// BenchmarkCopy copies documents of the YCSB shape (1.1 KB, ten fields, random
// string _ids) from one server to another and reports documents a second, CPU
// seconds and the process's peak resident memory. -benchtime 1000000x copies a
// million.
func BenchmarkCopy(b *testing.B) {
	src, dst := server(b, "6.0"), server(b, "6.0.5")
	load(b, src, "bench", "c", b.N)
	t := taskOf(source(b, src, "bench", "c"), "bench_t.c")
	pos, err := src.Positions(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.SetBytes(t.Source.Bytes / max(t.Source.Count, 1))
	b.ResetTimer()
	start := time.Now()
	e := New(src, dst, newStore(), Options{AfterClusterTime: pos.Majority})
	if err := e.Run(b.Context(), []Task{t}); err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	b.StopTimer()
	runtime.ReadMemStats(&after)
	if st := e.Stats(); st.Docs != int64(b.N) || st.Replaced != 0 {
		b.Fatalf("%+v", st)
	}
	b.ReportMetric(float64(b.N)/took.Seconds(), "docs/s")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "mallocs/doc")
	b.ReportMetric(peakMB(), "peak-MB")
	must(b, dst, "bench_t", bson.D{{Key: "dropDatabase", Value: 1}})
	must(b, src, "bench", bson.D{{Key: "dropDatabase", Value: 1}})
}

// peakMB is the process's highest resident memory, where the system tells.
func peakMB() float64 {
	raw, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(raw), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			return kb / 1024
		}
	}
	return 0
}

func load(b *testing.B, c *mongo.Cluster, db, coll string, n int) {
	b.Helper()
	conn, err := c.Pool.Checkout(b.Context(), wire.Primary())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte('!' + rnd.IntN(90))
	}
	var m wire.Message
	cmd := bsoncore.NewDocumentBuilder().AppendString("insert", coll).AppendBoolean("ordered", false).Build()
	for n > 0 {
		m.Reset(db, cmd, false)
		m.StartSequence("documents")
		for ; n > 0 && m.Len() < 2<<20; n-- {
			doc := bsoncore.NewDocumentBuilder().AppendString("_id", fmt.Sprintf("user%019d", rnd.Int64()))
			for f := range 10 {
				at := rnd.IntN(3900)
				doc.AppendString(fmt.Sprint("field", f), string(noise[at:at+100]))
			}
			m.AppendDocument(doc.Build())
		}
		body, err := conn.RoundTrip(b.Context(), &m)
		if err != nil {
			b.Fatal(err)
		}
		if res := wire.ParseWriteResult(body); len(res.Errors) > 0 {
			b.Fatal(res.Errors[0].Message)
		}
	}
}

// BenchmarkInspect is the walk over a document before it is written.
func BenchmarkInspect(b *testing.B) {
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: "user123456789"},
		{Key: "f0", Value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, {Key: "f1", Value: 1}, {Key: "f2", Value: 2.5},
		{Key: "f3", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "f4", Value: bson.A{1, 2, 3}}, {Key: "f5",
			Value: true}, {Key: "f6", Value: bson.DateTime(5)}, {Key: "f7", Value: nil}, {Key: "f8", Value: bson.NewObjectID()}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		if _, err := docwrite.Inspect(doc); err != nil {
			b.Fatal(err)
		}
	}
}
