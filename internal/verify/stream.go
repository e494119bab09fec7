package verify

import (
	"cmp"
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/scan"
)

// page is one reply, cut into documents.
type page struct {
	docs [][]byte
	size int
}

// stream hands out one side's documents one by one while a goroutine reads the
// next reply ahead. It belongs to one goroutine.
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

// errWalked ends the readers of streams when no more is wanted of them.
var errWalked = errors.New("the streams were walked")

// stream has both sides of a slice walked at once, in the order of their _ids if
// the slice has no strategy of its own.
func (c *collection) stream(ctx context.Context, sl scan.Slice, idsOnly bool,
	walk func(ctx context.Context, left, right *stream) error) error {
	g, gctx := errgroup.WithContext(ctx)
	var st [2]*stream
	for i := range st {
		s, sl := &c.sides[i], sl
		sl.Strategy = cmp.Or(sl.Strategy, s.order)
		st[i] = newStream(c.e)
		g.Go(func() error { return st[i].fill(gctx, s, sl, s.want(c.e.limits.batch, idsOnly)) })
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

// fill reads a slice to its end into the stream. It owns the sending end; when
// ctx ends it returns although nobody takes its page.
func (st *stream) fill(ctx context.Context, s *side, sl scan.Slice, want scan.Want) error {
	defer close(st.pages)
	if s.history {
		st.err = st.fillNewest(ctx, s, sl, want)
		return st.err
	}
	st.err = s.walk(ctx, sl, want, func(part *scan.Part) error {
		p := st.page(part.Size)
		err := part.Each(func(doc []byte) error {
			p.docs = append(p.docs, doc)
			return nil
		})
		if err != nil {
			return err
		}
		return st.send(ctx, p, want)
	})
	return st.err
}

// page is an empty one for what has so many bytes.
func (st *stream) page(size int) (p *page) {
	select {
	case p = <-st.spare:
	default:
		p = &page{}
	}
	p.size = size
	return p
}

// send hands a page to whoever walks the stream.
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

// advance goes to the next document.
func (st *stream) advance() {
	st.walked++
	st.next++
}

// drop lets go of the walked page.
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
