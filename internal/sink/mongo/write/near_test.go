package write

import (
	"errors"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
)

// testNear: transactions stop only where all answers in a row are slow, for some
// batches. A target that is busy answers slowly now and then; to make a connection,
// or to wait for one, is no distance.
func testNear(b *bed) {
	c := dial.Cluster(b, b.uri, mongo.Options{MaxPoolSize: 1})
	fast, slow := 0, 0 // answers to come at once, and after them those that take long
	all := NewWriters(Options{Target: c, Transactions: b.w.o.Transactions, TransactionOps: 3, SameTerm: func(int64) error {
		if fast > 0 {
			fast--
		} else if slow > 0 {
			slow--
			time.Sleep(transactionNear + transactionNear/2)
		}
		return nil
	}})
	w := all.NewBatched(2)
	defer w.Release()
	near := func(slowFirst int) bool {
		b.Helper()
		slow = slowFirst
		ok, err := w.near(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		return ok
	}
	// A machine under load may be slow by itself: what is near is so sooner or later.
	sooner := func(try func() bool) bool {
		for range 100 {
			if try() {
				return true
			}
		}
		return false
	}
	for n := range nearTries {
		if !sooner(func() bool { return near(n) }) {
			b.Errorf("after %d slow answers the target is far away", n)
		}
	}
	if near(nearTries) || slow != 0 {
		b.Errorf("after %d slow answers the target is near, %d are not waited for", nearTries, slow)
	}
	waited := func() bool {
		w.Release()
		only, err := c.Pool.Checkout(b.Context(), wire.Primary())
		if err != nil {
			b.Fatal(err)
		}
		time.AfterFunc(2*transactionNear, only.Release)
		fast = 1
		return near(nearTries)
	}
	if !sooner(waited) {
		b.Error("the wait for a connection counts as an answer")
	}
	fast = 0

	var ops, updates []fold.Op
	for i := range 3 {
		ops, updates = append(ops, b.op(stream.Insert, i, field("a", 0))), append(updates, updateOp(b, i, set("a", 1)))
	}
	b.applied(ops...)
	batched := func() int64 {
		b.Helper()
		before := all.Stats.Batched.Load()
		if results, err := w.Write(b.Context(), b.to, updates); err != nil || len(results) > 0 {
			b.Fatal(results, err)
		}
		return all.Stats.Batched.Load() - before
	}
	slow = nearTries
	for i := range 1 + transactionPause { // the first one finds out
		if n := batched(); n != 0 {
			b.Fatalf("batch %d went in a transaction, the target being far away", i)
		}
	}
	again := func() bool {
		w.pause = 0
		return batched() == 3
	}
	if w.pause != 0 || !sooner(again) {
		b.Errorf("no transaction after the pause, of which %d are left", w.pause)
	}
	broken := errors.New("no answer")
	fails := NewWriters(Options{Target: c, Transactions: b.w.o.Transactions, TransactionOps: 3,
		SameTerm: func(int64) error { return broken }}).NewBatched(3)
	w.Release()
	defer fails.Release()
	if _, err := fails.Write(b.Context(), b.to, updates); !errors.Is(err, broken) {
		b.Errorf("%v", err)
	}
}
