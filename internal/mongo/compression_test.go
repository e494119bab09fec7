package mongo_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// TestCompressionIsChosen: over a slow link, what compresses well is compressed after
// a while, and what the server gets is the same.
func TestCompressionIsChosen(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Proxy: true})
	proxy := l.Members()[0].Proxy()
	proxy.Latency(10*time.Millisecond, 0)
	proxy.Link(4000) // so little that no busy processor is slower
	var reported []wire.Compression
	c := dial.Cluster(t, l.URI(), mongo.Options{ChooseCompression: true,
		Chosen: func(now wire.Compression) { reported = append(reported, now) }})
	const size = 64 << 10
	text := strings.Repeat("compressible ", size/13)
	insert := func(conn *wire.Conn, id int) error {
		_, err := conn.Run(t.Context(), "d", bson.D{{Key: "insert", Value: "c"},
			{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "text", Value: text}}}}})
		return err
	}
	// Changed is told by the connection that finds it: one writes after another.
	g, ctx := errgroup.WithContext(t.Context())
	for n := range 4 {
		g.Go(func() error {
			conn, err := c.Pool.Checkout(ctx, wire.Primary())
			if err != nil {
				return err
			}
			defer conn.Release()
			for id := n; !c.Pool.Compression().On && ctx.Err() == nil; id += 4 {
				if err := insert(conn, id); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := c.Pool.Compression(); !got.Measured || got.Gain <= 1 || len(reported) != 1 || reported[0] != got {
		t.Errorf("%+v, reported %+v", got, reported)
	}
	conn, err := c.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := insert(conn, -1); err != nil {
		t.Fatal(err)
	}
	back, err := conn.Run(t.Context(), "d", bson.D{{Key: "find", Value: "c"},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: -1}}}})
	if err != nil || !bytes.Contains(back, []byte(text)) {
		t.Errorf("what was written is not what is read: %d bytes, %v", len(back), err)
	}
}

// TestNothingIsCompressedNearby: neither what goes over connections, nor what a driver's client sends over them.
func TestNothingIsCompressedNearby(t *testing.T) {
	c := dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{ChooseCompression: true})
	unpacked := func() int64 {
		status, err := c.Command(t.Context(), "admin", bson.D{{Key: "serverStatus", Value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		n, ok := status.Lookup("network", "compression", "zstd", "decompressor", "bytesIn").AsInt64OK()
		if !ok {
			t.Fatalf("the server does not count what it unpacks: %s", status.Lookup("network"))
		}
		return n
	}
	before := unpacked()
	for range 10 {
		if _, err := c.Command(t.Context(), "d", bson.D{{Key: "find", Value: "c"}}); err != nil {
			t.Fatal(err)
		}
	}
	if after := unpacked(); after != before {
		t.Errorf("the server has unpacked %d bytes", after-before)
	}
}
