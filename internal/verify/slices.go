package verify

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/scan"
)

// eachSlice calls fn for the slices, so many at a time.
func eachSlice(ctx context.Context, parts []scan.Slice, readers int, fn func(context.Context, scan.Slice) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for _, sl := range parts {
		g.Go(func() error { return fn(ctx, sl) })
	}
	return g.Wait()
}

// byRecord reports whether the server lets a scan begin in the middle.
func (s *side) byRecord() bool {
	return s.exists && scan.ByStorage(&s.Collection, s.cluster.Info) == scan.ByRecord
}

// readersOf is how many readers share a side: at most one for each range's worth
// of bytes, and one where no scan begins in the middle.
func (e *Engine) readersOf(s *side) int {
	if !s.byRecord() {
		return 1
	}
	return int(max(min(s.Bytes/e.o.RangeBytes, int64(e.o.Workers)), 1))
}

// slicesPerReader keeps all readers busy to the end, although slices are not of
// the same size. A slice costs half a reply that is not its own.
const slicesPerReader = 4

// slices part a side for so many readers in the order of its storage. All are
// read from the member that was asked for the bounds: record ids are its own.
// Where a document at a bound has been deleted, a slice may give some that
// another one gives as well: then their groups differ and are looked into.
func (s *side) slices(ctx context.Context, readers int) ([]scan.Slice, error) {
	if !s.byRecord() {
		return []scan.Slice{{Strategy: scan.Serial}}, nil
	}
	parts := []scan.Slice{{Strategy: scan.ByRecord}}
	if readers < 2 {
		return parts, nil
	}
	err := s.read(ctx, scan.Member{}, func(r *scan.Reader) error {
		m, err := scan.MemberOf(ctx, r.Conn)
		if err != nil {
			return err
		}
		bounds, strategy, err := r.Cut(ctx, &s.Collection, scan.ByRecord, readers*slicesPerReader)
		if err != nil {
			return err
		}
		parts = []scan.Slice{{Strategy: scan.Serial}}
		if strategy == scan.ByRecord {
			parts = scan.Slices(scan.Slice{Strategy: strategy, Member: m}, bounds)
		}
		return nil
	})
	return parts, err
}

// reading is what is done with the documents of a slice.
type reading struct {
	idsOnly bool
	each    func(doc, key []byte) error // what it gets is valid during the call
	end     func()                      // of each reply; nil is nothing
}

// scanSlice reads a slice.
func (w *worker) scanSlice(ctx context.Context, s *side, sl scan.Slice, do reading) error {
	size := s.averageSize()
	if do.idsOnly {
		size = min(size, 64)
	}
	var key []byte
	return s.walk(ctx, sl, scan.Want{Batch: max(w.e.limits.scan/size, 2), IDsOnly: do.idsOnly}, func(p *scan.Part) error {
		w.e.c.account(p.Size)
		err := p.Each(func(doc []byte) error {
			var ok bool
			if key, ok = appendID(key[:0], doc); !ok {
				return errMalformed(s.NS)
			}
			return do.each(doc, key)
		})
		w.e.c.account(-p.Size)
		if do.end != nil {
			do.end()
		}
		return err
	})
}
