package ycsb

import (
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/wire"
)

// BenchmarkClient is what a client costs beside the server: the load of this
// package, and bare loops of inserts (one document, 1.1 KB, w:1) over
// internal/wire, over a plain socket and through the driver. Figures: processor
// time of this process an operation, and operations a second.
func BenchmarkClient(b *testing.B) {
	bed := newBed(b)
	noise := shared.noise
	var serial atomic.Int64
	c, err := parse(bed.props, Load)
	if err != nil {
		b.Fatal(err)
	}
	w := newWorkload(c, noise)
	s, err := newStore(nil, c, w.content, rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		b.Fatal(err)
	}
	doc := func(n int64) bson.Raw { return s.insertDoc(nil, w.keys.append(nil, n)) }
	for _, threads := range []int{1, 8} {
		bare := func(name string, start func() (insert func(bson.Raw) error)) {
			b.Run(name+"/"+strconv.Itoa(threads), func(b *testing.B) {
				first := serial.Add(int64(b.N)) - int64(b.N)
				var next atomic.Int64
				docs := make([]bson.Raw, b.N)
				for i := range docs {
					docs[i] = doc(first + int64(i))
				}
				b.ResetTimer()
				before := CPUTime()
				var g errgroup.Group
				for range threads {
					insert := start()
					g.Go(func() error {
						for {
							i := next.Add(1) - 1
							if i >= int64(b.N) {
								return nil
							}
							if err := insert(docs[i]); err != nil {
								return err
							}
						}
					})
				}
				if err := g.Wait(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64((CPUTime()-before).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
			})
		}
		command, _ := writeCommand("insert", bed.coll.Name(), true, bson.D{{Key: "w", Value: 1}})
		bare("wire", func() func(bson.Raw) error {
			conn, err := shared.cluster.Pool.Checkout(b.Context(), wire.Primary())
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(conn.Release)
			var m wire.Message
			return func(d bson.Raw) error {
				m.Reset(bed.coll.Database().Name(), command, false)
				m.StartSequence("documents")
				m.AppendDocument(d)
				_, err := conn.RoundTrip(b.Context(), &m)
				return err
			}
		})
		bare("driver", func() func(bson.Raw) error {
			coll := bed.coll.Clone(options.Collection().SetWriteConcern(writeconcern.W1()))
			return func(d bson.Raw) error {
				_, err := coll.InsertOne(b.Context(), d)
				return err
			}
		})
		bare("socket", func() func(bson.Raw) error {
			addr := strings.TrimPrefix(shared.cluster.Address(), "mongodb://")
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = conn.Close() })
			var buf, reply []byte
			return func(d bson.Raw) error {
				body, _ := bson.Marshal(bson.D{{Key: "insert", Value: bed.coll.Name()}, {Key: "documents", Value: bson.A{d}},
					{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}, {Key: "$db", Value: bed.coll.Database().Name()}})
				n := 21 + len(body)
				buf = append(buf[:0], byte(n), byte(n>>8), byte(n>>16), 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0x07, 0, 0, 0, 0, 0, 0, 0)
				buf = append(buf, body...)
				if _, err := conn.Write(buf); err != nil {
					return err
				}
				if cap(reply) < 4096 {
					reply = make([]byte, 4096)
				}
				if _, err := io.ReadFull(conn, reply[:4]); err != nil {
					return err
				}
				size := int(reply[0]) | int(reply[1])<<8
				_, err := io.ReadFull(conn, reply[4:size])
				return err
			}
		})
		b.Run("ycsb/"+strconv.Itoa(threads), func(b *testing.B) {
			first := serial.Add(int64(b.N)) - int64(b.N)
			r, err := Execute(b.Context(), Options{Phase: Load, Noise: noise,
				Properties: bed.props.With("recordcount", strconv.FormatInt(first+int64(b.N), 10),
					"insertstart", strconv.FormatInt(first, 10), "threadcount", strconv.Itoa(threads))})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(r.Client.CPUEach, "cpu-µs/op")
			b.ReportMetric(r.Throughput, "op/s")
			b.ReportMetric(float64(r.Client.AllocBytes)/float64(b.N), "B/op")
		})
	}
}
