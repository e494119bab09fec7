package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/versions"
)

type page struct {
	docs [][]byte
	size int
}

// stream reads ahead in a goroutine. It belongs to one goroutine.
type stream struct {
	e      *Engine
	pages  chan *page // closed at the end
	spare  chan *page // walked pages go back for their slices
	cur    *page
	next   int
	walked int
	err    error // why pages ended early; read after pages is closed

	docs, bytes int64 // read
}

func newStream(e *Engine) *stream {
	return &stream{e: e, pages: make(chan *page), spare: make(chan *page, 2)}
}

var errWalked = errors.New("the streams were walked")

// request is what is read of a slice, and how.
type request struct {
	scan.Slice      // in _id order if it has no strategy
	idsOnly    bool // documents of their _ids alone
	once       bool // it fails with errLarge where a reply of smallDocs documents is not all
}

// stream walks both sides of a slice at once.
func (c *collection) stream(ctx context.Context, rq request,
	walk func(ctx context.Context, left, right *stream) error) error {
	g, gctx := errgroup.WithContext(ctx)
	var st [2]*stream
	for i := range st {
		s, rq := &c.sides[i], rq
		rq.Strategy = cmp.Or(rq.Strategy, s.order)
		st[i] = newStream(c.e)
		g.Go(func() error { return st[i].fill(gctx, s, rq) })
	}
	g.Go(func() error {
		defer st[source].drop()
		defer st[target].drop()
		return cmp.Or(walk(gctx, st[source], st[target]), errWalked)
	})
	if err := g.Wait(); !errors.Is(err, errWalked) {
		return err
	}
	return nil
}

// fill reads a slice to its end into the stream. It owns the sending end, and returns when ctx
// ends.
func (st *stream) fill(ctx context.Context, s *side, rq request) error {
	defer close(st.pages)
	sl, want := rq.Slice, s.want(s.e.limits.batch, rq.idsOnly)
	if rq.once {
		want.Batch = smallDocs
	}
	var newest *versions.Newest
	if s.history { // the newest versions are the documents
		newest, sl.Lower, sl.Upper = versions.NewNewest(versions.Ever()), ofVersions(sl.Lower), ofVersions(sl.Upper)
	}
	st.err = s.walk(ctx, sl, want, func(part *scan.Part) error {
		if rq.once && !part.Last {
			return errLarge
		}
		p := st.page(part.Size)
		err := part.Each(func(doc []byte) error {
			if newest == nil {
				p.docs = append(p.docs, doc)
				return nil
			}
			last, err := newest.Add(doc)
			p.addVersion(last)
			return err
		})
		if err != nil {
			return err
		}
		return st.send(ctx, p, want)
	})
	if newest != nil && st.err == nil {
		last := newest.End()
		p := st.page(len(last))
		p.addVersion(last)
		st.err = st.send(ctx, p, want)
	}
	return st.err
}

func (p *page) addVersion(version bson.Raw) {
	if doc := versions.Unwrap(version); doc != nil {
		p.docs = append(p.docs, doc)
	}
}

func (st *stream) page(size int) (p *page) {
	select {
	case p = <-st.spare:
	default:
		p = &page{}
	}
	p.size = size
	return p
}

func (st *stream) send(ctx context.Context, p *page, want scan.Want) error {
	if len(p.docs) == 0 {
		return nil
	}
	var bytes int64
	for _, doc := range p.docs {
		bytes += int64(len(doc))
	}
	st.docs += int64(len(p.docs))
	st.bytes += bytes
	if !want.IDsOnly {
		st.e.c.read(len(p.docs), bytes)
	}
	st.e.c.account(p.size)
	select {
	case st.pages <- p:
		return nil
	case <-ctx.Done():
		st.e.c.account(-p.size)
		return ctx.Err()
	}
}

// peek returns the document at the head, nil at the end.
func (st *stream) peek(ctx context.Context) ([]byte, error) {
	if st.cur != nil && st.next < len(st.cur.docs) {
		return st.cur.docs[st.next], nil
	}
	st.drop()
	select {
	case p, ok := <-st.pages:
		if !ok {
			return nil, st.err
		}
		st.cur, st.next = p, 0
		return p.docs[0], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (st *stream) advance() {
	st.walked++
	st.next++
}

func (st *stream) drop() {
	if st.cur == nil {
		return
	}
	st.e.c.account(-st.cur.size)
	clear(st.cur.docs)
	st.cur.docs = st.cur.docs[:0]
	select {
	case st.spare <- st.cur:
	default:
	}
	st.cur = nil
}

// order compares the natural order of two capped collections, without documents that only one side
// has. The order of a capped collection never changes, so two documents in another order are a
// difference. While writes go on it has to last for a while.
func (c *collection) order(ctx context.Context) error {
	o := &c.e.o
	for begin := time.Now(); ; {
		var id, detail string
		walk := func(ctx context.Context, left, right *stream) (err error) {
			id, detail, err = c.disorder(ctx, left, right)
			return err
		}
		err := c.stream(ctx, request{Slice: scan.Slice{Strategy: scan.Serial}, idsOnly: true}, walk)
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

// disorder returns the first place where natural orders differ, by the _id of the source's
// document; "" is none.
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

func (s *side) idOn(ctx context.Context, key string) (string, error) {
	p := newProbe(s)
	defer p.free()
	if err := p.fetch(ctx, []string{key}); err != nil {
		return "", err
	}
	return keyOf(p.found[key], nil), nil
}
