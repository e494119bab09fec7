package verify

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/scan"
)

// order compares the natural order of two capped collections. Documents that
// only one side holds (they differ anyway, or have rolled off, or have not
// arrived yet) are passed over. As the order of documents in a capped
// collection never changes, two that stand the other way round are a
// difference; while writes go on it has to show again for a while.
func (w *worker) order(ctx context.Context, c *collection) error {
	begin := time.Now()
	for {
		d, err := w.orderOnce(ctx, c)
		if err != nil || d == nil {
			return err
		}
		if !w.e.o.Online || time.Since(begin) >= min(w.e.o.Recheck.Quiet, w.e.o.Recheck.For) {
			w.f.addOrder(w.e, c, d.id, d.detail)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.e.o.Recheck.Every):
		}
	}
}

// disorder is the first place where natural orders differ.
type disorder struct {
	id     bson.RawValue
	detail string
}

func (w *worker) orderOnce(ctx context.Context, c *collection) (d *disorder, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	open := func(s *side) *stream {
		st := newStream(w.e)
		want := scan.Want{Batch: max(w.e.limits.batch/64, 2), IDsOnly: true}
		g.Go(func() error { return st.fill(gctx, s, scan.Slice{Strategy: scan.Serial}, want) })
		return st
	}
	a, b := open(&c.src), open(&c.dst)
	found := false
	g.Go(func() error {
		defer a.drop()
		defer b.drop()
		var err error
		d, err = w.walk(gctx, c, a, b)
		if found = err == nil; found {
			cancel() // the readers may have more
		}
		return err
	})
	err = g.Wait()
	if found {
		return d, nil
	}
	return nil, err
}

func (w *worker) walk(ctx context.Context, c *collection, left, right *stream) (*disorder, error) {
	var ka, kb []byte
	for {
		a, err := left.peek(ctx)
		if err != nil {
			return nil, err
		}
		b, err := right.peek(ctx)
		if err != nil || a == nil || b == nil {
			return nil, err
		}
		if bytes.Equal(a, b) {
			left.advance()
			right.advance()
			continue
		}
		var ok1, ok2 bool
		ka, ok1 = appendID(ka[:0], a)
		kb, ok2 = appendID(kb[:0], b)
		if !ok1 || !ok2 {
			return nil, errMalformed(c.pair.SourceNS)
		}
		ida, err := w.idOn(ctx, &c.dst, string(ka))
		if err != nil {
			return nil, err
		}
		idb, err := w.idOn(ctx, &c.src, string(kb))
		if err != nil {
			return nil, err
		}
		switch {
		case ida == string(kb): // the same _id in another type
			left.advance()
			right.advance()
		case ida == "":
			left.advance()
		case idb == "":
			right.advance()
		default:
			return &disorder{idValue(string(ka)), fmt.Sprintf("natural order differs at document %d of the source: the target has _id %s here",
				left.docs+1, idValue(string(kb)))}, nil
		}
	}
}

// idOn is the _id, in the bytes of side s, of the document that the key finds
// there; "" when there is none.
func (w *worker) idOn(ctx context.Context, s *side, key string) (string, error) {
	p := newProbe(w.e, s)
	defer p.free()
	if err := p.fetch(ctx, []string{key}); err != nil {
		return "", err
	}
	doc := p.get(key)
	if doc == nil {
		return "", nil
	}
	id, _ := appendID(nil, doc)
	return string(id), nil
}
