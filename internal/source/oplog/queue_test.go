package oplog

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/wire"
)

// TestQueueHolds: replies that are as large as was asked for never come to more
// than the limit, and a larger one passes by itself.
func TestQueueHolds(t *testing.T) {
	for _, c := range []struct{ limit, size int64 }{{100, 50}, {100, 7}, {100, 1000}, {1, 1}, {1, 1000},
		{64 << 20, 16 << 20}} {
		q := newQueue(c.limit)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 50 {
				if ready, err := q.waitRoom(t.Context(), 0); !ready || err != nil {
					t.Error(ready, err)
					return
				}
				ok(t, q.put(chunk{batch: &wire.Batch{Size: int(c.size)}}))
			}
		})
		most := int64(0)
		for range 50 {
			x, there, err := q.take(t.Context(), time.Minute)
			if !there || err != nil {
				t.Fatal(there, err)
			}
			q.mu.Lock()
			most = max(most, q.used)
			q.mu.Unlock()
			q.done(x)
		}
		wg.Wait()
		// A reply larger than was asked for may come on top of what is there.
		if c.size <= q.reply && most > c.limit || most > c.limit+c.size {
			t.Errorf("%d bytes are held of replies of %d, with a limit of %d", most, c.size, c.limit)
		}
	}
}

// sizes is a sink that notes the bytes of replies and throws them away.
type sizes struct {
	all  []int
	want int
	stop context.CancelFunc
}

func (s *sizes) waitRoom(ctx context.Context, _ time.Duration) (bool, error) { return true, ctx.Err() }

func (s *sizes) put(c chunk) error {
	s.all = append(s.all, c.batch.Size)
	return c.batch.Each(func(doc []byte) error {
		if e, err := parseEntry(doc); err != nil || string(e.op) != "i" {
			return err
		}
		if s.want--; s.want == 0 {
			s.stop()
		}
		return nil
	})
}

// TestSmallReplies: a server fills replies as far as was asked for, once the size
// of its entries is known, and a document larger than that comes alone.
func TestSmallReplies(t *testing.T) {
	c := connect(t, sharedURI)
	const db, small, large = "replies", 5000, 3
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	start := position(t, c)
	coll := c.Client.Database(db).Collection("c")
	var docs []any
	for i := range small {
		docs = append(docs, doc(i, "x", strings.Repeat("x", 1000)))
	}
	_, err := coll.InsertMany(t.Context(), docs)
	ok(t, err)
	for i := range large {
		_, err := coll.InsertOne(t.Context(), doc(small+i, "x", filler(15)))
		ok(t, err)
	}
	position(t, c)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const most = 250_000
	s := &sizes{want: small + large, stop: stop}
	r := New(c, Options{Keep: only(db)}).reader(s, start)
	r.size = wire.ReplySize{Bytes: most, Docs: wire.FirstReply}
	if err := r.run(ctx); s.want > 0 {
		t.Fatal(s.want, err)
	}
	for i, n := range s.all {
		if n > most*11/10 && n < 15<<20 {
			t.Errorf("reply %d of %d has %d bytes", i, len(s.all), n)
		}
	}
	if n := len(s.all); n < 5*small*1000/most/6 || n > 100 {
		t.Errorf("%d replies: %d", n, s.all)
	}
	t.Log(s.all)
}

// TestEventBytes: what a transaction's entries brought before its commit counts for
// the batches in which it comes, from memory as from the oplog again.
func TestEventBytes(t *testing.T) {
	c := connect(t, sharedURI)
	const db, docs = "event_bytes", 40
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	start := position(t, c)
	x := begin(t, c)
	for i := range docs {
		x.insert(db, "c", doc(i, "x", filler(1)))
	}
	x.commit()
	_, err := c.Client.Database(db).Collection("c").InsertOne(t.Context(), doc("plain", "x", filler(1)))
	ok(t, err)
	end := position(t, c)
	for name, buffer := range map[string]int64{"memory": 1 << 30, "oplog": 1} {
		n := 0
		for _, b := range read(t, c, Options{Keep: only(db), TxnBufferBytes: buffer}, from(start), end) {
			sum := int64(0)
			for _, ev := range b.Events {
				sum += int64(len(ev.Doc))
			}
			n += len(b.Events)
			if held := b.Held(); held < sum || len(b.Events) > 0 && held > sum+maxReply+1<<20 {
				t.Errorf("%s: a batch of %d bytes holds %d", name, sum, held)
			}
		}
		if n != docs+1 {
			t.Errorf("%s: %d events", name, n)
		}
	}
}
