package oplog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Window describes what the oplog of a source holds and how fast writes use it up.
type Window struct {
	Oldest, Newest mongo.OpTime
	// Bytes are in use, of at most MaxBytes. Both are 0 if the server does not report them.
	Bytes, MaxBytes int64
	// Shards has the window of each shard of a sharded cluster, by name.
	Shards map[string]Window

	at      time.Time
	written int64   // bytes since the start of the server
	recent  float64 // bytes a second; 0 if not measured
}

// ReadWindow reads the window of the member that serves reads.
func ReadWindow(ctx context.Context, c *mongo.Cluster) (Window, error) {
	conn, err := c.Checkout(ctx, c.Reader())
	if err != nil {
		return Window{}, err
	}
	defer conn.Release()
	first, err := oplogEnd(ctx, conn, 1)
	if err != nil {
		return Window{}, fmt.Errorf("read the oldest oplog entry of %s: %w", c.Address(), err)
	}
	last, err := oplogEnd(ctx, conn, -1)
	if err != nil {
		return Window{}, fmt.Errorf("read the newest oplog entry of %s: %w", c.Address(), err)
	}
	w := Window{Oldest: first.at, Newest: last.at, at: time.Now()}
	raw, err := conn.Run(ctx, oplogDB, bson.D{{Key: "collStats", Value: oplogColl}})
	switch {
	case ctx.Err() != nil: // unknown sizes would look like a full oplog
		return Window{}, ctx.Err()
	case err == nil: // else the sizes are unknown
		stats := bson.Raw(raw)
		w.Bytes, _ = stats.Lookup("size").AsInt64OK()
		w.MaxBytes, _ = stats.Lookup("maxSize").AsInt64OK()
		w.written, _ = stats.Lookup("wiredTiger", "cursor", "insert key and value bytes").AsInt64OK()
	}
	return w, nil
}

// ShortHint is what an operator can do about a short window.
const ShortHint = "make the source's oplog larger (replSetResizeOplog), write less there, resume the job, or " +
	"raise its limits; after the loss the job must begin anew"

const (
	// fullShare is the share of MaxBytes from which an oplog overwrites: sizes may be a little wrong.
	fullShare = 0.95
	// youngest is the least time over which the writes in an oplog with room are averaged. It bounds what
	// an initial load counts for; Since measures writes that go on.
	youngest = 24 * time.Hour
)

// Full reports whether the oplog, or that of a shard, overwrites its oldest entries, or may.
func (w *Window) Full() bool {
	for _, shard := range w.Shards {
		if shard.Full() {
			return true
		}
	}
	return len(w.Shards) == 0 && float64(w.Bytes) >= fullShare*float64(w.MaxBytes)
}

// Since takes the recent write rate from an earlier window of the same oplog.
func (w *Window) Since(before *Window) {
	for name, shard := range w.Shards {
		if was, ok := before.Shards[name]; ok {
			shard.Since(&was)
			w.Shards[name] = shard
		}
	}
	// The counter of a server that has started again is smaller.
	if span := w.at.Sub(before.at).Seconds(); span > 0 && before.written > 0 && w.written > before.written {
		w.recent = float64(w.written-before.written) / span
	}
}

// Rate returns the write rate in bytes a second: the recent one or the average of what the oplog holds,
// whichever is higher.
func (w *Window) Rate() float64 {
	span := w.span()
	if !w.Full() {
		span = max(span, youngest.Seconds())
	}
	return max(float64(w.Bytes)/span, w.recent)
}

// span is the age of the oldest entry against the newest, in seconds.
func (w *Window) span() float64 { return max(seconds(w.Oldest, w.Newest), 1) }

func seconds(from, to mongo.OpTime) float64 { return float64(int64(to.TS.T) - int64(from.TS.T)) }

// Left estimates when the oplog overwrites the entries from need on, at the present write rate. First writes
// fill the room that is left, then they replace what is older than need. Of shards it is the shortest.
func (w *Window) Left(need mongo.OpTime) time.Duration {
	_, first := w.First(need)
	older := max(seconds(first.Oldest, need), 0)
	if first.Bytes <= 0 || first.MaxBytes <= 0 {
		return time.Duration(older) * time.Second
	}
	before := float64(first.Bytes) * min(older/first.span(), 1)
	if !first.Full() {
		before += float64(first.MaxBytes - first.Bytes)
	}
	return time.Duration(min(before/first.Rate(), longest.Seconds())) * time.Second
}

// First returns the shard whose oplog overwrites need first; w itself and no name if there are no shards.
func (w *Window) First(need mongo.OpTime) (name string, first *Window) {
	first = w
	for _, shard := range slices.Sorted(maps.Keys(w.Shards)) {
		if of := w.Shards[shard]; name == "" || of.Left(need) < first.Left(need) {
			name, first = shard, &of
		}
	}
	return name, first
}

// longest bounds an estimate.
const longest = 10 * 365 * 24 * time.Hour

// Meter measures the recent write rate of an oplog over the windows that it is given. It is not safe for
// concurrent use.
type Meter struct{ windows []Window }

// meterSpan is the time over which a Meter measures.
const meterSpan = time.Minute

// Add takes the newest window and sets its recent write rate.
func (m *Meter) Add(w *Window) {
	for len(m.windows) > 1 && w.at.Sub(m.windows[1].at) >= meterSpan {
		m.windows = m.windows[1:]
	}
	if len(m.windows) > 0 {
		w.Since(&m.windows[0])
	}
	m.windows = append(m.windows, *w)
}
