package verify

import (
	"context"

	"github.com/millrace/millrace/internal/scan"
)

// byRecord reports whether the server lets a scan begin in the middle.
func (s *side) byRecord() bool {
	return s.exists && scan.ByStorage(&s.Collection, s.cluster().Info) == scan.ByRecord
}

// readers is how many share a side: at most one for each range's worth of bytes,
// and one where no scan begins in the middle.
func (s *side) readers() int {
	if !s.byRecord() && (s.e.shards[s.i].Load() == nil || s.on != nil) {
		return 1
	}
	return s.e.readersOf(s.Bytes)
}

func (e *Engine) readersOf(bytes int64) int {
	return int(max(min(bytes/e.o.RangeBytes, int64(e.o.Workers)), 1))
}

// slicesPerReader keeps all readers busy to the end, although slices are not of
// the same size. A slice costs half a reply that is not its own.
const slicesPerReader = 4

// slices part a side for so many readers in the order of its storage.
func (s *side) slices(ctx context.Context, readers int) ([]scan.Slice, error) {
	if readers < 2 {
		return []scan.Slice{s.entire()}, nil
	}
	return s.cut(ctx, max(readers*slicesPerReader, s.e.slicesToAssign(s.Bytes)))
}

// entire returns all of a side in the order of its storage.
func (s *side) entire() scan.Slice {
	if s.byRecord() {
		return scan.Slice{Strategy: scan.ByRecord}
	}
	return scan.Slice{Strategy: scan.Serial}
}

// cut parts a side into at most n slices. All are read from the member that gave the bounds:
// record ids are its own. Where a document at a bound was deleted, two slices may give the
// same documents: then their groups differ, and their documents are compared.
func (s *side) cut(ctx context.Context, n int) ([]scan.Slice, error) {
	parts := []scan.Slice{s.entire()}
	if n < 2 || !s.byRecord() {
		return parts, nil
	}
	err := s.read(ctx, scan.Member{}, func(r *scan.Reader) error {
		m, err := scan.MemberOf(ctx, r.Conn)
		if err != nil {
			return err
		}
		bounds, strategy, err := r.Cut(ctx, &s.Collection, scan.ByRecord, n)
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

// scanSlice reads one slice.
func (s *side) scanSlice(ctx context.Context, sl scan.Slice, do reading) error {
	return s.read(ctx, sl.Member, func(r *scan.Reader) error {
		w := r.Walk(&s.Collection, &sl, s.want(s.e.limits.scan, do.idsOnly))
		defer w.Close(ctx)
		return s.scanWalk(ctx, w, do)
	})
}

// scanWalk reads a slice to its end.
func (s *side) scanWalk(ctx context.Context, w *scan.Walk, do reading) error {
	var key []byte
	return s.handOver(ctx, w, func(p *scan.Part) error {
		s.e.c.account(p.Size)
		err := p.Each(func(doc []byte) error {
			var ok bool
			if key, ok = appendID(key[:0], doc); !ok {
				return errMalformed(s.NS)
			}
			return do.each(doc, key)
		})
		s.e.c.account(-p.Size)
		if do.end != nil {
			do.end()
		}
		return err
	})
}
