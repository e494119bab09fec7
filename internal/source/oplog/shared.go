package oplog

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// sharedBytes bounds the replies that a shared oplog keeps for readers that are a little behind.
const sharedBytes = 32 << 20

// Shared lets the sources of one process read the same oplog with one cursor: one of the readers at its
// end reads, the others take its replies. A reader that falls further behind uses a cursor of its own until
// it has caught up. Only clusters opened with the same connection string and read preference share. The
// zero value is ready for use, by any number of goroutines. A nil Shared shares nothing.
type Shared struct {
	mu    sync.Mutex
	feeds map[string]*feed
}

// feed has the newest replies from one oplog.
type feed struct {
	mu      sync.Mutex
	readers int
	replies []reply // each begins where the one before ends
	bytes   int64
	end     mongo.OpTime  // the last entry of the last reply
	leader  *reader       // who reads on from end; nil is nobody
	changed chan struct{} // closed at the next reply, and when the leader leaves

	positions recent[mongo.Positions]
	window    recent[Window]
}

// reply is a chunk with the position before it and the one of its last entry.
type reply struct {
	chunk
	after, last mongo.OpTime
}

// join returns the feed of a cluster's oplog. Each join needs a leave.
func (s *Shared) join(c *mongo.Cluster) *feed {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := c.Access()
	f := s.feeds[key]
	if f == nil {
		if s.feeds == nil {
			s.feeds = map[string]*feed{}
		}
		f = &feed{changed: make(chan struct{}), positions: newRecent[mongo.Positions](), window: newRecent[Window]()}
		s.feeds[key] = f
	}
	f.mu.Lock()
	f.readers++
	f.mu.Unlock()
	return f
}

func (s *Shared) leave(c *mongo.Cluster, f *feed) {
	if f == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 {
		delete(s.feeds, c.Access())
	}
}

// alone reports that nobody else reads this oplog.
func (f *feed) alone() bool {
	if f == nil {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readers < 2
}

// next returns the reply that continues at r's position, and waits for it while another reader is at the end
// of the oplog. It returns false where r has to read by itself; what r reads is then shared if it leads. A
// leader that is silent for a minute loses the lead: the oplog is idle, or the leader stands still.
func (f *feed) next(ctx context.Context, r *reader) (rep reply, found bool, err error) {
	if f == nil || r.skip == 0 { // it has to find its start first
		return rep, false, nil
	}
	silent := time.NewTimer(replyTimeout)
	defer silent.Stop()
	for {
		rep, found, wait := f.look(r)
		if found || wait == nil {
			return rep, found, nil
		}
		select {
		case <-wait:
		case <-silent.C:
			f.depose()
		case <-ctx.Done():
			return rep, false, ctx.Err()
		}
	}
}

// look finds the reply for r's position, or makes r the leader, or returns what to wait for.
func (f *feed) look(r *reader) (rep reply, found bool, wait <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.leader == r:
		return rep, false, nil
	case f.leader == nil && !r.from.Before(f.end):
		if !same(r.from, f.end) {
			f.replies, f.bytes, f.end = nil, 0, r.from
		}
		f.leader = r
		return rep, false, nil
	case !r.from.Before(f.end):
		return rep, false, f.changed
	}
	for _, rep := range f.replies {
		if r.from.Before(rep.last) {
			ok := rep.cut(r.from)
			return rep, ok, nil
		}
	}
	return rep, false, nil
}

// cut skips the entries up to a position, which the reply must have or follow.
func (rep *reply) cut(from mongo.OpTime) bool {
	if same(rep.after, from) {
		return true
	}
	known := false
	rep.skip = 0
	err := rep.batch.Each(func(doc []byte) error {
		e, err := parseEntry(doc)
		if err == nil && !from.Before(e.at) {
			rep.skip++
			known = known || same(e.at, from)
		}
		return err
	})
	return err == nil && known
}

// publish gives the leader's reply to the others, and keeps it for those that come to its start soon.
func (f *feed) publish(r *reader, rep reply) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leader != r {
		return
	}
	f.end = rep.last
	if f.readers < 2 {
		f.replies, f.bytes = nil, 0
		return
	}
	f.replies = append(f.replies, rep)
	f.bytes += int64(rep.batch.Size)
	for f.bytes > sharedBytes {
		f.bytes -= int64(f.replies[0].batch.Size)
		f.replies = slices.Delete(f.replies, 0, 1)
	}
	f.wake()
}

// resign lets another reader read on, if r leads.
func (f *feed) resign(r *reader) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leader == r {
		f.leader = nil
		f.wake()
	}
}

// ahead notes that r, the only reader, reads on with a filter. Readers that join behind it do not lead.
func (f *feed) ahead(r *reader) {
	f.resign(r)
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leader == nil && f.end.Before(r.from) {
		f.replies, f.bytes, f.end = nil, 0, r.from
	}
}

// depose lets another reader read on. What the leader reads later is its own.
func (f *feed) depose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leader = nil
	f.wake()
}

func (f *feed) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}
