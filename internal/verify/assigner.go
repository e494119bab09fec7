package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
)

// assigner assigns slices of large collections to other workers, which send the sums of hashes.
// What differs is looked into here. A slice counts once, with all of its sums or none; a slice of a
// lost worker is read again.
type assigner struct {
	*assign.Owner[*part, *partSums]

	mu       sync.Mutex
	shares   []*share
	parts    int           // that were ever assigned
	arriving *part         // whose sums come: one at a time, each takes the memory of a table
	changed  chan struct{} // closed when something is returned, or done
}

type share struct {
	*digester
	of       *slicing
	i        int
	wait     []scan.Slice
	assigned int
	closed   bool // nothing of its parts is taken any more
}

type part struct {
	*assigner
	of    *share
	id    string
	slice scan.Slice
	sums  []group // as far as they have come
	next  int     // group
}

type partOf struct {
	ID       string         `bson:"id"`
	Side     int            `bson:"side"`
	SourceNS string         `bson:"sourceNs"`
	Slice    scan.Slice     `bson:"slice"`
	At       bson.Timestamp `bson:"at"`     // reads see at least this
	Seed     int64          `bson:"seed"`   // of the hashes
	Groups   int            `bson:"groups"` // a power of two
}

type partSums struct {
	ID string `bson:"id"`
	// From is the first group of the piece. Groups has for each the two sums and the number of
	// documents, of 8 bytes each, little-endian.
	From   int    `bson:"from"`
	Groups []byte `bson:"groups"`
	// Docs and Bytes are those of all of the part.
	Docs  int64 `bson:"docs"`
	Bytes int64 `bson:"bytes"`
}

// pieceGroups keeps a report below half a megabyte: NATS takes one.
const pieceGroups = 16 << 10

// mostGroups bounds the table of a part. The owner's memory bounds it earlier.
const mostGroups = 4 << 20

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

func (w *assigner) close(s *share) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shares = slices.DeleteFunc(w.shares, func(o *share) bool { return o == s })
	s.closed = true
	if w.arriving != nil && w.arriving.of == s {
		w.arrived()
	}
}

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

// Return makes the slice wait again. See assign.Part.
func (p *part) Return(bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.wait = append([]scan.Slice{p.slice}, p.of.wait...)
	p.end()
}

// end notes that nobody has the part any more. mu is locked.
func (p *part) end() {
	p.of.assigned--
	if p.arriving == p {
		p.arrived()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// arrived lets other sums arrive. mu is locked.
func (w *assigner) arrived() {
	w.arriving.of.e.c.account(-groupCost * len(w.arriving.sums))
	w.arriving.sums, w.arriving = nil, nil
}

func (*assigner) Closed() string { return "" }
func (*assigner) Terms() any     { return struct{}{} }

// Note and Revoke do nothing: others write nowhere, and what a revoked worker sends is refused. See
// assign.Work.
func (*assigner) Note(context.Context, []string) error                { return nil }
func (*assigner) Revoke(context.Context, *assign.Member[*part]) error { return nil }

func (w *assigner) Waiting() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shares {
		n += len(s.wait)
	}
	return n
}

// Next takes the last waiting slice: here they are read from the first on. The next collection may
// have more. See assign.Work.
func (w *assigner) Next(string) (p *part, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shares {
		last := len(s.wait) - 1
		if last < 0 {
			continue
		}
		w.parts++
		p = &part{assigner: w, of: s, id: strconv.Itoa(w.parts), slice: s.wait[last]}
		s.wait = s.wait[:last]
		s.assigned++
		return p, true
	}
	return nil, true
}

func (p *part) ID() string { return p.id }

func (p *part) Unit() any {
	s := p.of
	unit := &partOf{ID: p.id, Side: s.i, SourceNS: s.pair.Source, Slice: p.slice, Seed: int64(s.seed),
		Groups: len(s.tables[s.i].groups)}
	if at := s.e.at[s.i].Load(); at != nil {
		unit.At = *at
	}
	return unit
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

// add takes a piece of the sums. With the last one it adds all to the table. mu is locked.
func (p *part) add(r *partSums) (all bool, err error) {
	t, c := &p.of.tables[p.of.i], &p.of.e.c
	if p.arriving == nil {
		p.sums, p.next, p.arriving = make([]group, len(t.groups)), 0, p
		c.account(groupCost * len(p.sums))
	}
	end := p.next + len(r.Groups)/groupCost
	if r.From != p.next || end > len(p.sums) || end == p.next || len(r.Groups)%groupCost != 0 {
		return false, errors.New("it has sent sums that do not fit the slice")
	}
	if _, err := binary.Decode(r.Groups, binary.LittleEndian, p.sums[p.next:end]); err != nil {
		return false, fmt.Errorf("read the sums of a slice: %w", err)
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

func (t *table) merge(sums []group, docs, bytes int64) bool {
	var n uint64
	for i := range sums {
		n += sums[i][2]
	}
	if n != uint64(docs) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range sums {
		for k, n := range sums[i] {
			t.groups[i][k] += n
		}
	}
	t.docs += docs
	t.bytes += bytes
	return true
}

const idle = 3 * time.Second

// Assist reads slices for a comparison of another process, which ask reaches, until there are no
// more for a while. spec is that of the comparison. An error says why it ended early; its slices
// are then read elsewhere. It writes nothing.
func Assist(ctx context.Context, spec Spec, worker, version string, ask assign.Ask) error {
	spec.Options = spec.withDefaults()
	j := assign.Joining{Worker: worker, Version: version, Ask: ask, Rules: spec.Rules, Log: spec.Log, Idle: idle}
	return assign.Assist(ctx, j, func(ctx context.Context, a *assisted) error {
		parts := a.Group("")
		first, err := parts.First(ctx)
		if err != nil || first == nil {
			return err
		}
		sides, err := spec.connect(ctx)
		if err != nil {
			return err
		}
		defer closeAll(sides)
		if err := a.CheckClusters(sides[source], sides[target]); err != nil {
			return err
		}
		e := New(sides[source], sides[target], spec.Options)
		g, ctx := errgroup.WithContext(ctx)
		for range max(spec.Workers/2, 1) { // each of them reads as much as is asked for at a time
			g.Go(func() error {
				for {
					p, err := parts.Next(ctx)
					if err != nil || p == nil {
						return err
					}
					if err := e.assist(ctx, a, p); err != nil {
						return err
					}
				}
			})
		}
		return g.Wait()
	})
}

type assisted = assign.Assistant[struct{}, partOf]

func (e *Engine) assist(ctx context.Context, a *assisted, p *partOf) error {
	if p.Side != source && p.Side != target || p.Groups < 1 || p.Groups > mostGroups || p.Groups&(p.Groups-1) != 0 {
		return fmt.Errorf("a part of side %d with %d groups", p.Side, p.Groups)
	}
	for at := &e.at[p.Side]; ; { // reads see what those of the owner do
		was := at.Load()
		if was != nil && !was.Before(p.At) || at.CompareAndSwap(was, &p.At) {
			break
		}
	}
	pair := Pair{Route: a.Made.Route(p.SourceNS)}
	ns := pair.name(p.Side)
	var t *table
	err := again(ctx, e.o.Log, "read a part of "+ns, func() error {
		s, err := e.describe(ctx, p.Side, ns)
		if err != nil {
			return err
		}
		s.choose(&pair)
		t = &table{groups: make([]group, p.Groups)}
		return s.scanSlice(ctx, p.Slice, sums{seed: uint64(p.Seed), mask: uint64(p.Groups - 1)}.into(t, &e.c))
	})
	for from := 0; err == nil && from < len(t.groups); {
		end := min(from+pieceGroups, len(t.groups))
		piece := &partSums{ID: p.ID, From: from, Docs: t.docs, Bytes: t.bytes}
		if piece.Groups, err = binary.Append(nil, binary.LittleEndian, t.groups[from:end]); err != nil {
			return fmt.Errorf("write the sums of a slice: %w", err)
		}
		var later bool // sums of somebody else are arriving
		if later, err = a.Report(ctx, piece); later {
			err = pace.Pause(ctx, 20*time.Millisecond)
		} else {
			from = end
		}
	}
	return err
}
