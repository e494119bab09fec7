package verify

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/pace"
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
		var id, detail string
		walk := func(ctx context.Context, left, right *stream) (err error) {
			id, detail, err = c.disorder(ctx, left, right)
			return err
		}
		err := c.stream(ctx, scan.Slice{Strategy: scan.Serial}, true, walk)
		if err != nil || id == "" {
			return err
		}
		if !o.Online || time.Since(begin) >= min(o.Recheck.Quiet, o.Recheck.For) {
			c.add(Order, id, [2][]byte{}, nil, func() string { return detail })
			return nil
		}
		if err := pace.Pause(ctx, o.Recheck.Every); err != nil {
			return err
		}
	}
}

// disorder finds the first place where natural orders differ, by the _id of the
// source's document there; "" is none.
func (c *collection) disorder(ctx context.Context, left, right *stream) (id, detail string, err error) {
	for {
		a, err := left.peek(ctx)
		if err != nil {
			return "", "", err
		}
		b, err := right.peek(ctx)
		if err != nil || a == nil || b == nil {
			return "", "", err
		}
		if bytes.Equal(a, b) {
			left.advance()
			right.advance()
			continue
		}
		ka, kb := keyOf(a, nil), keyOf(b, nil)
		if ka == "" || kb == "" {
			return "", "", errMalformed(c.pair.Source)
		}
		ida, err := c.sides[target].idOn(ctx, ka)
		if err != nil {
			return "", "", err
		}
		idb, err := c.sides[source].idOn(ctx, kb)
		if err != nil {
			return "", "", err
		}
		switch {
		case ida == kb: // the same _id in another type
			left.advance()
			right.advance()
		case ida == "":
			left.advance()
		case idb == "":
			right.advance()
		default:
			return ka, fmt.Sprintf("natural order differs at document %d of the source: the target has _id %s here",
				left.walked+1, idValue(kb)), nil
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
	return keyOf(p.found[key], nil), nil
}
