package verify

import (
	"context"

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
	e     *Engine
	pages chan *page // closed at the end
	spare chan *page // walked pages go back for their slices
	cur   *page
	next  int
	err   error // why pages ended early; read after pages is closed

	docs, bytes     int64 // handed out
	told, toldBytes int64 // of those, published as progress
}

func newStream(e *Engine) *stream {
	return &stream{e: e, pages: make(chan *page), spare: make(chan *page, 2)}
}

// fill reads a slice to its end into the stream. It owns the sending end; when
// ctx ends it returns although nobody takes its page.
func (st *stream) fill(ctx context.Context, s *side, sl scan.Slice, want scan.Want) error {
	defer close(st.pages)
	st.err = s.walk(ctx, sl, want, func(p *scan.Part) error { return st.send(ctx, p) })
	return st.err
}

func (st *stream) send(ctx context.Context, part *scan.Part) error {
	p := st.recycled()
	p.size = part.Size
	err := part.Each(func(doc []byte) error {
		p.docs = append(p.docs, doc)
		return nil
	})
	if err != nil || len(p.docs) == 0 {
		return err
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

func (st *stream) recycled() *page {
	select {
	case p := <-st.spare:
		return p
	default:
		return &page{}
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
	st.docs++
	st.bytes += int64(len(st.cur.docs[st.next]))
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
