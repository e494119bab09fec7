package router_test

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// BenchmarkWrite is what writers get through with batches of 1000 statements: on
// one shard past the router, and through it on two. Servers take most of the time:
// what counts is the processor time of this process, writers included.
func BenchmarkWrite(b *testing.B) {
	each(b, func(b *testing.B, pool *wire.Pool, coll string) {
		b.Run("insert", func(b *testing.B) { writeBatches(b, pool, "insert", coll) })
		b.Run("update", func(b *testing.B) { writeBatches(b, pool, "update", coll) })
	})
}

// BenchmarkChanges reads inserts from a change stream: of one shard past the router, and of two through it.
func BenchmarkChanges(b *testing.B) {
	each(b, func(b *testing.B, pool *wire.Pool, coll string) {
		b.Run("read", func(b *testing.B) { readChanges(b, pool, coll) })
	})
}

// each runs benchmarks on a plain collection of a shard, and on a sharded one through a router.
func each(b *testing.B, do func(b *testing.B, pool *wire.Pool, coll string)) {
	lab.NeedServers(b)
	c := sharded.ForTest(b, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1})
	if err := c.CreateDatabase(b.Context(), "bench", c.ShardNames()[0]); err != nil {
		b.Fatal(err)
	}
	key := bson.D{{Key: "_id", Value: "hashed"}}
	if err := c.ShardCollection(b.Context(), "bench.sharded", sharded.Sharding{Key: key}); err != nil {
		b.Fatal(err)
	}
	for _, to := range []struct{ name, uri, coll string }{
		{"shard", c.Shards()[0].DirectURI(0), "plain"}, {"router", c.URI(), "sharded"},
	} {
		pool := open(b, to.uri)
		b.Run(to.name, func(b *testing.B) { do(b, pool, to.coll) })
	}
}

// readChanges reads b.N inserts that were made before.
func readChanges(b *testing.B, pool *wire.Pool, coll string) {
	conn, err := pool.Checkout(b.Context(), wire.Primary())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	reply, err := conn.Run(b.Context(), "admin", bson.D{{Key: "ping", Value: 1}})
	if err != nil {
		b.Fatal(err)
	}
	t, i := reply.Lookup("operationTime").Timestamp()
	b.StopTimer()
	writeBatches(b, pool, "insert", coll)
	b.StartTimer()
	before := ownCPU()
	start := bson.D{{Key: "startAtOperationTime", Value: bson.Timestamp{T: t, I: i + 1}}}
	cur, err := conn.OpenCursor(b.Context(), "bench", bson.D{{Key: "aggregate", Value: coll},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: start}}}}, {Key: "cursor", Value: bson.D{}}},
		wire.CursorOptions{})
	for n := 0; err == nil && n < b.N; {
		var batch *wire.Batch
		if batch, err = cur.Next(b.Context()); err == nil {
			err = batch.Each(func([]byte) error {
				n++
				return nil
			})
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	cur.Close(b.Context())
	b.ReportMetric((ownCPU()-before)*1e9/float64(b.N), "cpu-ns/op")
}

func open(b *testing.B, uri string) *wire.Pool {
	b.Helper()
	pool, err := wire.Open(options.Client().ApplyURI(uri))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = pool.Close(b.Context()) })
	return pool
}

// inserted is the number of the newest document.
var inserted atomic.Int64

// writeBatches has four writers do b.N statements.
func writeBatches(b *testing.B, pool *wire.Pool, kind, coll string) {
	const batch, writers = 1000, 4
	batches := atomic.Int64{}
	batches.Store(int64(b.N+batch-1) / batch)
	before := ownCPU()
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			conn, err := pool.Checkout(b.Context(), wire.Primary())
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Release()
			var msg wire.Message
			for batches.Add(-1) >= 0 {
				fill(&msg, kind, coll, inserted.Add(batch), batch)
				reply, err := conn.RoundTrip(b.Context(), &msg)
				if err != nil {
					b.Error(err)
					return
				}
				if r := wire.ParseWriteResult(reply); len(r.Errors) > 0 || kind == "insert" && r.N != batch {
					b.Errorf("%d done, %+v", r.N, r.Errors)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric((ownCPU()-before)*1e9/float64(b.N), "cpu-ns/op")
}

// fill makes a command of n documents from a number on, or updates of them.
func fill(msg *wire.Message, kind, coll string, from, n int64) {
	body, err := bson.Marshal(bson.D{{Key: kind, Value: coll}, {Key: "ordered", Value: false}})
	if err != nil {
		panic(err)
	}
	msg.Reset("bench", body, false)
	msg.StartSequence(map[string]string{"insert": "documents", "update": "updates"}[kind])
	for i := from; i < from+n; i++ {
		msg.BuildDocument(func(dst []byte) []byte {
			at, dst := bsoncore.AppendDocumentStart(dst)
			if kind == "insert" {
				dst = appendUser(dst, i)
				for _, name := range []string{"f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"} {
					dst = bsoncore.AppendBinaryElement(dst, name, 0, hundred)
				}
			} else {
				q, d := bsoncore.AppendDocumentElementStart(dst, "q")
				d, _ = bsoncore.AppendDocumentEnd(appendUser(d, i), q)
				u, d := bsoncore.AppendDocumentElementStart(d, "u")
				set, d := bsoncore.AppendDocumentElementStart(d, "$set")
				d, _ = bsoncore.AppendDocumentEnd(bsoncore.AppendBinaryElement(d, "f3", 0, hundred), set)
				dst, _ = bsoncore.AppendDocumentEnd(d, u)
			}
			dst, _ = bsoncore.AppendDocumentEnd(dst, at)
			return dst
		})
	}
}

var hundred = bytes.Repeat([]byte{7}, 100)

func appendUser(dst []byte, i int64) []byte {
	id := binary.BigEndian.AppendUint64([]byte("user"), uint64(i))
	return bsoncore.AppendBinaryElement(dst, "_id", 0, id)
}
