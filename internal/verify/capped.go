package verify

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/scan"
)

// order compares the natural order of two capped collections. Documents that
// only one side holds (they differ anyway, or have rolled off, or have not
// arrived yet) are passed over. As the order of documents in a capped
// collection never changes, two that stand the other way round are a
// difference; while writes go on it has to show again for a while.
func (c *collection) order(ctx context.Context) error {
	o := &c.e.o
	for begin := time.Now(); ; {
		var d *disorder
		err := c.stream(ctx, scan.Slice{Strategy: scan.Serial}, true, func(ctx context.Context, left, right *stream) (err error) {
			d, err = c.walk(ctx, left, right)
			return err
		})
		if err != nil || d == nil {
			return err
		}
		if !o.Online || time.Since(begin) >= min(o.Recheck.Quiet, o.Recheck.For) {
			c.add(Order, d.key, func() string { return d.detail })
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(o.Recheck.Every):
		}
	}
}

// disorder is the first place where natural orders differ.
type disorder struct{ key, detail string }

func (c *collection) walk(ctx context.Context, left, right *stream) (*disorder, error) {
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
		ida, err := c.sides[target].idOn(ctx, string(ka))
		if err != nil {
			return nil, err
		}
		idb, err := c.sides[source].idOn(ctx, string(kb))
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
			return &disorder{string(ka), fmt.Sprintf("natural order differs at document %d of the source: the target has _id %s here",
				left.walked+1, idValue(string(kb)))}, nil
		}
	}
}

// idOn is the _id, in the bytes of the side, of the document that the key finds
// there; "" when there is none.
func (s *side) idOn(ctx context.Context, key string) (string, error) {
	p := newProbe(s)
	defer p.free()
	if err := p.fetch(ctx, []string{key}); err != nil {
		return "", err
	}
	id, _ := appendID(nil, p.found[key])
	return string(id), nil
}
