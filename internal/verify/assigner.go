package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/scan"
)

// assigner assigns slices of large collections to other workers. One of them reads a slice and sends
// the sums of its documents' hashes; what differs is then looked into here, as ever. Others only
// read. A slice counts once, with all of its sums or none: what a lost worker has read is read again.
type assigner struct {
	*assign.Owner[*part, *partSums]

	mu       sync.Mutex
	shares   []*share
	parts    int           // that were ever assigned
	arriving *part         // whose sums come: one at a time, each takes the memory of a table
	changed  chan struct{} // closed when something is returned, or done
}

// share is a side whose slices are read here and elsewhere.
type share struct {
	*digester
	of       *slicing
	i        int
	wait     []scan.Slice
	assigned int
	closed   bool // nothing of its parts is taken any more
}

// part is a slice that another worker has.
type part struct {
	*assigner
	of    *share
	id    string
	slice scan.Slice
	sums  []group // as far as they have come
	next  int     // group
}

// partOf is a part as it is assigned, and how it is summed up.
type partOf struct {
	ID       string         `bson:"id"`
	Side     int            `bson:"side"`
	SourceNS string         `bson:"sourceNs"`
	Slice    scan.Slice     `bson:"slice"`
	At       bson.Timestamp `bson:"at"`     // reads see at least this
	Seed     int64          `bson:"seed"`   // of the hashes
	Groups   int            `bson:"groups"` // a power of two
}

// partSums are a piece of what a part sums up to.
type partSums struct {
	ID string `bson:"id"`
	// From is the first group of the piece, Groups are the piece: of each its sums and its
	// number of documents, of 8 bytes each, little-endian.
	From   int    `bson:"from"`
	Groups []byte `bson:"groups"`
	// Docs and Bytes are those of all of the part.
	Docs  int64 `bson:"docs"`
	Bytes int64 `bson:"bytes"`
}

// pieceGroups is how many groups a report carries: less than half a megabyte, and NATS
// takes one.
const pieceGroups = 16 << 10

// mostGroups bounds the table of a part; an owner's own memory bounds it earlier.
const mostGroups = 4 << 20

// assigns reports that slices of the collection may be assigned. What only the target has is
// not paired by the rules.
func (d *digester) assigns() bool { return d.e.assigner != nil && d.sides[source].exists }

// slicesToAssign is how many slices so many bytes have at least, so that others find some.
func (e *Engine) slicesToAssign(bytes int64) int {
	const most = 1024
	if e.assigner == nil {
		return 0
	}
	return int(min(bytes/(4*e.o.RangeBytes), most))
}

// read reads all slices of a side, but for those that others read.
func (w *assigner) read(ctx context.Context, s *share, begin func() reading) error {
	w.mu.Lock()
	w.shares = append(w.shares, s)
	w.mu.Unlock()
	defer w.close(s)
	g, ctx := errgroup.WithContext(ctx)
	for range min(s.readers, len(s.of.parts)) {
		g.Go(func() error {
			for {
				sl, err := w.take(ctx, s)
				if err != nil || sl == nil {
					return err
				}
				if err := s.of.scanSlice(ctx, *sl, begin()); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// close ends a share. Nothing of its parts is taken any more.
func (w *assigner) close(s *share) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shares = slices.DeleteFunc(w.shares, func(o *share) bool { return o == s })
	s.closed = true
	if w.arriving != nil && w.arriving.of == s {
		w.arrived()
	}
}

// take is the next slice to be read here, nil when all have been read, here or elsewhere.
func (w *assigner) take(ctx context.Context, s *share) (*scan.Slice, error) {
	for {
		w.mu.Lock()
		if len(s.wait) > 0 {
			sl := s.wait[0]
			s.wait = s.wait[1:]
			w.mu.Unlock()
			return &sl, nil
		}
		assigned, changed := s.assigned, w.changed
		w.mu.Unlock()
		if assigned == 0 {
			return nil, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Return has the slice be read by somebody else. See assign.Part.
func (p *part) Return(bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.wait = append([]scan.Slice{p.slice}, p.of.wait...)
	p.end()
}

// end notes that nobody has the part any more. The caller has mu locked.
func (p *part) end() {
	p.of.assigned--
	if p.arriving == p {
		p.arrived()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// arrived lets other sums arrive. The caller has mu locked.
func (w *assigner) arrived() {
	w.arriving.of.e.c.account(-groupCost * len(w.arriving.sums))
	w.arriving.sums, w.arriving = nil, nil
}

// Closed lets all join. See assign.Work.
func (*assigner) Closed() string { return "" }

// Terms are none. See assign.Work.
func (*assigner) Terms() any { return struct{}{} }

// Note does nothing: others write nowhere. See assign.Work.
func (*assigner) Note(context.Context, []string) error { return nil }

// Revoke does nothing: what a worker sends that is revoked is refused. See assign.Work.
func (*assigner) Revoke(context.Context, *assign.Member[*part]) error { return nil }

// Waiting is how many slices others may read now. See assign.Work.
func (w *assigner) Waiting() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shares {
		n += len(s.wait)
	}
	return n
}

// Next takes a slice, the last of those that wait: here they are read from the first on. The next
// collection may have one later. See assign.Work.
func (w *assigner) Next(string) (a *assign.Assigned[*part], more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shares {
		last := len(s.wait) - 1
		if last < 0 {
			continue
		}
		w.parts++
		p := &part{assigner: w, of: s, id: strconv.Itoa(w.parts), slice: s.wait[last]}
		s.wait = s.wait[:last]
		s.assigned++
		unit := &partOf{ID: p.id, Side: s.i, SourceNS: s.pair.Source, Slice: p.slice, Seed: int64(s.seed),
			Groups: len(s.tables[s.i].groups)}
		if at := s.e.at[s.i].Load(); at != nil {
			unit.At = *at
		}
		return &assign.Assigned[*part]{ID: p.id, Part: p, Unit: unit}, true
	}
	return nil, true
}

// Report takes a piece of a part's sums. See assign.Work.
func (w *assigner) Report(_ context.Context, m *assign.Member[*part], r *partSums) (again bool, err error) {
	if r == nil {
		return false, nil
	}
	err = m.Update(func(parts map[string]*part, f *assign.Figures) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		p := parts[r.ID]
		switch {
		case p == nil:
			return nil // it is over
		case p.of.closed:
			delete(parts, r.ID)
			return nil
		case w.arriving != nil && w.arriving != p:
			again = true
			return nil
		}
		all, err := p.add(r)
		if err != nil {
			w.arrived()
		}
		if all {
			f.Docs += r.Docs
			f.Bytes += r.Bytes
			delete(parts, r.ID)
			p.end()
		}
		return err
	})
	return again, err
}

// add takes a piece of the sums, and adds all of them to the table when the last one has come. The
// caller has mu locked.
func (p *part) add(r *partSums) (all bool, err error) {
	t, c := &p.of.tables[p.of.i], &p.of.e.c
	if p.arriving == nil {
		p.sums, p.next, p.arriving = make([]group, len(t.groups)), 0, p
		c.account(groupCost * len(p.sums))
	}
	end := p.next + len(r.Groups)/groupCost
	if r.From != p.next || end > len(p.sums) || end == p.next || !takeGroups(p.sums[p.next:end], r.Groups) {
		return false, errors.New("it has sent sums that do not fit the slice")
	}
	if p.next = end; end < len(p.sums) {
		return false, nil
	}
	if !t.merge(p.sums, r.Docs, r.Bytes) {
		return false, errors.New("its sums are not of as many documents as it says")
	}
	c.read(int(r.Docs), r.Bytes)
	return true, nil
}

// merge adds sums of other documents, if they are of so many.
func (t *table) merge(sums []group, docs, bytes int64) bool {
	var n uint64
	for i := range sums {
		n += sums[i].n
	}
	if n != uint64(docs) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range sums {
		g, s := &t.groups[i], &sums[i]
		g.x += s.x
		g.y += s.y
		g.n += s.n
	}
	t.docs += docs
	t.bytes += bytes
	return true
}

func appendGroups(dst []byte, groups []group) []byte {
	for _, g := range groups {
		dst = binary.LittleEndian.AppendUint64(dst, g.x)
		dst = binary.LittleEndian.AppendUint64(dst, g.y)
		dst = binary.LittleEndian.AppendUint64(dst, g.n)
	}
	return dst
}

// takeGroups fills groups with a piece, and reports whether it is one of so many.
func takeGroups(groups []group, piece []byte) bool {
	if len(piece) != len(groups)*groupCost {
		return false
	}
	for i := range groups {
		g := piece[i*groupCost:]
		groups[i] = group{binary.LittleEndian.Uint64(g), binary.LittleEndian.Uint64(g[8:]),
			binary.LittleEndian.Uint64(g[16:])}
	}
	return true
}
