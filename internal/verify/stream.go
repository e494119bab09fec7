package verify

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// openCursor opens a cursor and names the side in its errors.
func openCursor(ctx context.Context, conn *wire.Conn, s *side, cmd bson.D, batch int) (*wire.Cursor, error) {
	cur, err := conn.OpenCursor(ctx, s.db, cmd, wire.CursorOptions{BatchSize: batch})
	if mongo.IsCode(err, codeInvalidOptions) { // a secondary that has not heard of the position yet
		err = mongo.Retry("the member has not reached the position", err, "")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s on %s: %w", s.ns, s.cluster.Address(), err)
	}
	return cur, nil
}

// codeInvalidOptions refuses a position ahead of what the member knows.
const codeInvalidOptions = 72

// closeCursor kills a cursor that is still open, also after ctx ended.
func closeCursor(ctx context.Context, cur *wire.Cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	cur.Close(ctx)
}

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

// fill reads cmd to its end into the stream. It owns the sending end; when ctx
// ends it returns although nobody takes its page.
func (st *stream) fill(ctx context.Context, s *side, cmd bson.D, batch int) error {
	defer close(st.pages)
	st.err = st.read(ctx, s, cmd, batch)
	return st.err
}

func (st *stream) read(ctx context.Context, s *side, cmd bson.D, batch int) error {
	return st.e.eachReply(ctx, s, cmd, batch, func(b *wire.Batch) (int, error) { return batch, st.send(ctx, b) })
}

// eachReply runs a command that reads documents of a side and hands over its
// replies. fn says how many documents the next one may bring, 0 when it is over.
func (e *Engine) eachReply(ctx context.Context, s *side, cmd bson.D, batch int, fn func(b *wire.Batch) (more int, err error)) error {
	if !s.exists {
		return nil
	}
	conn, err := s.checkout(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	cur, err := openCursor(ctx, conn, s, cmd, batch)
	if err != nil {
		return err
	}
	defer closeCursor(ctx, cur)
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return fmt.Errorf("read %s on %s: %w", s.ns, s.cluster.Address(), err)
		}
		more, err := fn(b)
		if err != nil || more == 0 || b.Done {
			return err
		}
		cur.Limit(more)
		if e.o.Throttle != nil {
			if err := e.o.Throttle(ctx, b.Size); err != nil {
				return err
			}
		}
	}
}

func (st *stream) send(ctx context.Context, b *wire.Batch) error {
	if b.Empty() {
		return nil
	}
	p := st.recycled()
	p.size = b.Size
	err := b.Each(func(doc []byte) error {
		p.docs = append(p.docs, doc)
		return nil
	})
	if err != nil {
		return err
	}
	st.e.c.hold(p.size)
	select {
	case st.pages <- p:
		return nil
	case <-ctx.Done():
		st.e.c.hold(-p.size)
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
	st.e.c.hold(-st.cur.size)
	clear(st.cur.docs)
	st.cur.docs = st.cur.docs[:0]
	select {
	case st.spare <- st.cur:
	default:
	}
	st.cur = nil
}
