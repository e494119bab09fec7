package copy

import (
	"context"
	"sync"

	"github.com/millrace/millrace/internal/scan"
)

// slice is a slice under way. Its reader numbers chunks; writers acknowledge
// them in any order; the position moves over unbroken runs only.
type slice struct {
	c   *collection
	run *run

	mu    sync.Mutex
	st    scan.Slice
	acked int // chunks 0 … acked-1 are acknowledged
	early map[int]scan.Progress
	ended bool // the reader has sent all
	sent  int  // chunks, then
}

func newSlice(r *run, c *collection, st scan.Slice) *slice {
	return &slice{c: c, run: r, st: st, early: map[int]scan.Progress{}}
}

// job has a reader read the slice.
func (s *slice) job() job {
	return job{size: s.size(), slice: s, run: func(ctx context.Context, rd *reader) error { return rd.slice(ctx, s) }}
}

// size is what is left to read, roughly, for the schedule.
func (s *slice) size() int64 {
	st := s.state()
	return max(s.c.Source.Bytes/int64(max(st.Of, 1))-st.Bytes, 0)
}

// ack records that chunk n is on the target.
func (s *slice) ack(n int, p scan.Progress) {
	s.c.add(p)
	s.run.e.count.docs.Add(int64(p.Docs))
	s.run.e.count.bytes.Add(p.Bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early[n] = p
	for {
		p, ok := s.early[s.acked]
		if !ok {
			break
		}
		delete(s.early, s.acked)
		s.acked++
		s.st.Advance(p)
	}
	s.touched()
}

// end reports that the reader has sent everything, so many chunks; dropped that
// the collection is gone.
func (s *slice) end(sent int, dropped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.sent = true, sent
	s.st.Dropped = dropped
	s.touched()
}

// touched marks the slice for saving, and done when it is; the caller holds s.mu.
func (s *slice) touched() {
	s.run.unsaved(s)
	if s.ended && s.acked == s.sent && !s.st.Done {
		s.st.Done = true
		s.c.sliceDone(s.run, s.st.Dropped)
	}
}

// state is what is known of the slice.
func (s *slice) state() scan.Slice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st
}

// add counts documents that reached the target, or were left out.
func (c *collection) add(p scan.Progress) {
	if c.unread != nil && p.Unread > 0 {
		c.unread(p.Unread)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress.Docs += int64(p.Docs) + p.Unread
	c.progress.Bytes += p.Bytes + p.UnreadBytes
}

// sliceDone counts a finished slice and ends the collection with the last.
func (c *collection) sliceDone(r *run, dropped bool) {
	c.mu.Lock()
	p := &c.progress
	p.SlicesDone++
	over := p.SlicesDone == p.Slices
	if dropped {
		p.State = StateDropped
	} else if over && p.State != StateDropped {
		p.State = StateDone
	}
	now := *p
	c.mu.Unlock()
	if over {
		r.e.notify(now)
	}
	if over && now.State == StateDropped {
		r.e.opts.Log.Info("collection vanished from the source during its copy; the oplog replays the drop",
			"collection", c.Source.NS, "uuid", c.uuid)
	} else if over {
		r.e.opts.Log.Debug("collection copied", "collection", c.Source.NS, "docs", now.Docs, "bytes", now.Bytes)
	}
}
