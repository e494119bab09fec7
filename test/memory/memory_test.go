// Package memory holds the test that memory does not grow with the data.
package memory

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

const (
	documents = 330_000
	backlog   = 400_000
	limit     = 300 << 20 // less than either holds
)

// TestMemoryStaysBounded copies 330,000 documents of 1.1 KB and then applies
// a backlog of 400,000 operations.
func TestMemoryStaysBounded(t *testing.T) {
	lab.Nightly(t)
	if testing.Short() {
		t.Skip("long")
	}
	src := lab.ForTest(t, lab.Options{OplogMB: 3000, CacheGB: 4})
	dst := lab.ForTest(t, lab.Options{OplogMB: 990, CacheGB: 4})
	bin := test.BuildMillrace(t)
	seed := testseed.Of(t)
	pool := openPool(t, src.URI())

	began := time.Now()
	operations{"insert", seed, documents, appendDocument}.write(t, pool)
	t.Logf("loaded %d documents in %s", documents, time.Since(began).Round(time.Millisecond))

	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--job", "m", "--until"}
	target := kit.Client(t, dst.URI())
	began = time.Now()
	p := test.Start(t, bin, append(args, "never")...)
	p.AwaitPhase(target, "m", "following")
	copied := time.Since(began)
	p.Interrupt()
	check(t, p, "the copy", copied, documents)

	operations{"insert", seed + 1, backlog * 7 / 10, func(dst []byte, n int, r *rand.Rand) []byte {
		return appendDocument(dst, documents+n, r)
	}}.write(t, pool)
	operations{"update", seed + 2, backlog * 3 / 10, appendUpdate}.write(t, pool)
	began = time.Now()
	p = test.Start(t, bin, append(args, "caught-up")...)
	if err := p.Wait(10 * time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	check(t, p, "the backlog", time.Since(began), backlog)

	v := test.Start(t, bin, "verify", "--source", src.URI(), "--target", dst.URI())
	if err := v.Wait(10 * time.Minute); err != nil {
		t.Fatalf("verify: %v\n%s", err, v.Output())
	}
	check(t, v, "verify", 0, 0)
}

func check(t *testing.T, p *test.Process, what string, took time.Duration, n int) {
	t.Helper()
	t.Logf("%s: %s, %.0f/s, %s of CPU, peak memory %s", what, took.Round(time.Millisecond),
		float64(n)/max(took.Seconds(), 1e-9), p.CPU(), test.Megabytes(p.Peak()))
	if p.Peak() == 0 || p.Peak() > limit {
		t.Errorf("%s: peak memory %s, want at most %s", what, test.Megabytes(p.Peak()), test.Megabytes(limit))
	}
}

func openPool(t *testing.T, uri string) *wire.Pool {
	t.Helper()
	pool, err := wire.Open(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close(t.Context()) })
	return pool
}

// operations are n statements of one command.
type operations struct {
	command string
	seed    uint64
	n       int
	one     func(dst []byte, n int, r *rand.Rand) []byte
}

// write sends them over four connections.
func (o operations) write(t *testing.T, pool *wire.Pool) {
	t.Helper()
	const batch = 2000
	var mu sync.Mutex
	next := 0
	g, ctx := errgroup.WithContext(t.Context())
	for worker := range 4 {
		g.Go(func() error {
			conn, err := pool.Checkout(ctx, wire.Primary())
			if err != nil {
				return err
			}
			defer conn.Release()
			body, err := bson.Marshal(bson.D{{Key: o.command, Value: "usertable"}, {Key: "ordered", Value: false}})
			if err != nil {
				return err
			}
			r := rand.New(rand.NewPCG(o.seed, uint64(worker)))
			var m wire.Message
			for {
				mu.Lock()
				from := next
				next += batch
				mu.Unlock()
				if from >= o.n {
					return nil
				}
				m.Reset("ycsb", body, false)
				m.StartSequence(map[string]string{"insert": "documents", "update": "updates"}[o.command])
				for i := from; i < min(from+batch, o.n); i++ {
					m.BuildDocument(func(dst []byte) []byte { return o.one(dst, i, r) })
				}
				reply, err := conn.RoundTrip(ctx, &m)
				if err != nil {
					return err
				}
				if res := wire.ParseWriteResult(reply); len(res.Errors) > 0 {
					return fmt.Errorf("%s", res.Errors[0].Message)
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// key scatters the numbers, as hashed keys do.
func key(n int) string {
	h := uint64(n) * 0x9E3779B97F4A7C15
	return "user" + strconv.FormatUint(h, 10)
}

func appendDocument(dst []byte, n int, r *rand.Rand) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendStringElement(dst, "_id", key(n))
	var value [100]byte
	for f := range 10 {
		for k := 0; k+8 <= len(value); k += 8 {
			binary.LittleEndian.PutUint64(value[k:], r.Uint64())
		}
		dst = bsoncore.AppendBinaryElement(dst, "field"+strconv.Itoa(f), 0, value[:])
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func appendUpdate(dst []byte, _ int, r *rand.Rand) []byte {
	u, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsoncore.AppendStringElement(dst, "_id", key(r.IntN(documents)))
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	m, dst := bsoncore.AppendDocumentElementStart(dst, "u")
	s, dst := bsoncore.AppendDocumentElementStart(dst, "$set")
	dst = bsoncore.AppendBinaryElement(dst, "field"+strconv.Itoa(r.IntN(10)), 0, make([]byte, 100))
	dst, _ = bsoncore.AppendDocumentEnd(dst, s)
	dst, _ = bsoncore.AppendDocumentEnd(dst, m)
	dst, _ = bsoncore.AppendDocumentEnd(dst, u)
	return dst
}
