package oplog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

const (
	// sampleBytes is how much is read before its skipped share is judged.
	sampleBytes = 1 << 20
	// worthwhile is the share of skipped bytes from which a filter is used.
	worthwhile = 0.25
	// largeEntry is the size from which an entry costs the server more to send than to compare with a hundred
	// names. Measured on 6.0: 1 µs a KB, 0.1 µs a comparison.
	largeEntry = 512
	// maxExcluded bounds the names in a filter.
	maxExcluded = 1000
	// firstWindow and longestWindow bound the time that one filtered cursor reads behind the newest
	// entries: a reply may look at all of it.
	firstWindow, longestWindow = 10 * time.Second, time.Hour
	// filteredAwait is how long a filtered cursor waits for entries. Then the position moves on.
	filteredAwait = 200 * time.Millisecond
	// seldom bounds the share of time that a server searches for its newest committed entry. Behind it may be
	// millions, while no majority is available.
	seldom = 5
)

// errUnfiltered ends a pass whose reader must read again, without a filter.
var errUnfiltered = errors.New("entries that a filter left out are needed")

// filter makes the server leave out writes that the source skips, where they were a large share of what it read. It
// selects by prefixes of names that the rules keep, if there are any, and leaves out collections that were large. All
// else passes: commands, transactions and collections not seen yet. The assembler sets it, the reader uses it.
//
// The position moves past entries that were left out. Behind the newest entries, a cursor reads a window that ends at
// an entry that passes. At the end, an empty reply proves that the server looked at everything that it had committed
// before the request.
type filter struct {
	sample   int64
	prefixes []string
	// newer lets all kinds of entries pass that are not known, which servers that the tests run on do not have. It
	// costs the server 0.5 µs an entry (6.0).
	newer bool
	names atomic.Pointer[[]string] // excluded beside what has no such prefix; nil is no filter

	// Since the share was judged last:
	read, count int64
	skipped     []*nsInfo // with the bytes in their field skipped
}

// skip counts the bytes of an entry that the source skips.
func (f *filter) skip(info *nsInfo, bytes int) {
	if info.skipped == 0 {
		f.skipped = append(f.skipped, info)
	}
	info.skipped += int64(bytes)
	f.count++
}

// judge extends the filter if the source skips a large share of what it reads.
func (f *filter) judge(bytes int) {
	if f.read += int64(bytes); f.read < f.sample {
		return
	}
	var skipped int64
	for _, info := range f.skipped {
		skipped += info.skipped
	}
	if f.count > 0 && float64(skipped) >= worthwhile*float64(f.read) {
		f.extend(skipped / f.count)
	}
	f.forget()
}

func (f *filter) extend(size int64) {
	old := f.names.Load()
	if old == nil && len(f.prefixes) > 0 {
		f.names.Store(&[]string{})
		return
	}
	var names []string
	if old != nil {
		names = *old
	}
	room := maxExcluded - len(names)
	if room <= 0 || size < largeEntry {
		return
	}
	slices.SortFunc(f.skipped, func(a, b *nsInfo) int { return cmp.Compare(b.skipped, a.skipped) })
	var more []string
	for _, info := range f.skipped {
		ns := info.name
		here := len(f.prefixes) == 0 ||
			slices.ContainsFunc(f.prefixes, func(p string) bool { return strings.HasPrefix(ns, p) })
		if here && !slices.Contains(names, ns) && len(more) < room { // entries that were read before are still coming
			more = append(more, ns)
		}
	}
	if len(more) > 0 {
		names = slices.Concat(names, more)
		f.names.Store(&names)
	}
}

func (f *filter) forget() {
	for _, info := range f.skipped {
		info.skipped = 0
	}
	f.read, f.count, f.skipped = 0, 0, f.skipped[:0]
}

// reset makes the next pass read everything. It reports whether the reader may have left anything out.
func (f *filter) reset() bool {
	f.forget()
	return f.names.Swap(nil) != nil
}

// excluded returns the names that a reader's next cursor leaves out, nil for none. Readers that share an oplog read all
// of it.
func (r *reader) excluded() *[]string {
	if r.filter == nil || !r.feed.alone() {
		return nil
	}
	return r.filter.names.Load()
}

// passing matches the entries that a filter does not leave out, and those at some positions.
func (f *filter) passing(names []string, at ...mongo.OpTime) bson.E {
	var positions, or bson.A
	for _, p := range at {
		positions = append(positions, p.TS)
	}
	others := bson.D{}
	if len(names) > 0 {
		others = bson.D{{Key: "$nin", Value: names}}
	}
	for _, p := range f.prefixes {
		in := bson.D{{Key: "$gte", Value: p}}
		if end := successor(p); end != "" {
			in = append(in, bson.E{Key: "$lt", Value: end})
		}
		or = append(or, bson.D{{Key: "ns", Value: append(in, others...)}})
	}
	if len(f.prefixes) == 0 {
		or = append(or, bson.D{{Key: "ns", Value: others}})
	}
	switch {
	case f.newer:
		known := bson.A{}
		for _, op := range []string{"i", "u", "d", "n"} {
			known = append(known, bson.D{{Key: "op", Value: op}})
		}
		or = append(or, bson.D{{Key: "$nor", Value: known}})
	case len(f.prefixes) > 0:
		or = append(or, bson.D{{Key: "op", Value: "c"}})
	}
	return bson.E{Key: "$or", Value: append(or, bson.D{{Key: "ts", Value: bson.D{{Key: "$in", Value: positions}}}})}
}

// successor returns the first text, in the order of servers, that is after all texts with a prefix; "" is none.
func successor(prefix string) string {
	runes := []rune(prefix)
	for len(runes) > 0 && runes[len(runes)-1] == utf8.MaxRune {
		runes = runes[:len(runes)-1]
	}
	if n := len(runes); n > 0 {
		const beforeSurrogates = 0xd7ff
		if runes[n-1]++; runes[n-1] == beforeSurrogates+1 {
			runes[n-1] = 0xe000
		}
	}
	return string(runes)
}

// openFiltered opens a cursor for a window, or at the end of the oplog one that waits for more.
func (o *ownCursor) openFiltered(ctx context.Context) (*wire.Cursor, error) {
	end, err := newest(ctx, o.conn)
	if err != nil {
		return nil, err
	}
	o.committed, o.asked = end, time.Now()
	o.window = max(o.window, firstWindow)
	from, until := o.from, end
	if limit := from.TS.T + uint32(o.window.Seconds()); limit < end.TS.T {
		e, found, err := findOne(ctx, o.conn, committed(bson.D{{Key: "find", Value: oplogColl},
			{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: bson.Timestamp{T: limit}}}}}}},
			seekHint(o.cluster)))
		if err != nil {
			return nil, err
		}
		if found && e.at.Before(end) {
			until = e.at
		}
	}
	if same(until, end) && end.TS.T < from.TS.T+uint32(firstWindow.Seconds()) {
		o.until = mongo.OpTime{}
		return o.reader.open(ctx, o.conn, bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: from.TS}}},
			o.filter.passing(*o.names, from)}, true)
	}
	o.until, o.opened = until, time.Now()
	within := bson.D{{Key: "$gte", Value: from.TS}, {Key: "$lte", Value: until.TS}}
	return o.reader.open(ctx, o.conn, bson.D{{Key: "ts", Value: within}, o.filter.passing(*o.names, from, until)}, false)
}

// nextWindow opens the cursor after the one that has read its window.
func (o *ownCursor) nextWindow(ctx context.Context) error {
	if !same(o.from, o.until) {
		return mongo.Retry("the oplog cursor ended at "+o.from.String()+" before "+o.until.String(), nil, "")
	}
	const short = time.Second
	switch took := time.Since(o.opened); {
	case took < short:
		o.window = min(2*o.window, longestWindow)
	case took > short*4:
		o.window = max(o.window/2, firstWindow)
	}
	var err error
	o.started = false
	o.cur, err = o.openFiltered(ctx)
	return err
}

// ask notes what is committed before the next request, now and then.
func (o *ownCursor) ask(ctx context.Context) error {
	apart := max(min(o.await, filteredAwait)/2, seldom*o.took)
	if o.names == nil || !o.until.IsZero() || time.Since(o.asked) < apart {
		return nil
	}
	began := time.Now()
	var err error
	o.committed, err = newest(ctx, o.conn)
	o.asked = time.Now()
	o.took = o.asked.Sub(began)
	return err
}

// pass moves the position over entries that the server left out of an empty reply. The consumer gets a no-op there.
func (o *ownCursor) pass() error {
	if o.names == nil || !o.until.IsZero() || !o.started || !o.from.Before(o.committed) {
		return nil
	}
	doc := bsoncore.NewDocumentBuilder().AppendTimestamp("ts", o.committed.TS.T, o.committed.TS.I).
		AppendInt64("t", o.committed.Term).AppendString("op", "n").AppendString("ns", "").Build()
	o.from, o.skip = o.committed, 1
	return o.sink.put(chunk{batch: wire.BatchOf(append([]byte{byte(bson.TypeEmbeddedDocument), 0}, doc...))})
}

// newest returns the newest position that the member knows to be committed.
func newest(ctx context.Context, conn *wire.Conn) (mongo.OpTime, error) {
	e, found, err := findOne(ctx, conn, committed(bson.D{{Key: "find", Value: oplogColl},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}}}, nil))
	if err == nil && !found {
		err = mongo.Retry(conn.Addr()+" has no committed entries", nil, "")
	}
	return e.at, err
}

// committed limits a find to the position of one entry that is majority-committed.
func committed(find, hint bson.D) bson.D {
	return slices.Concat(find, bson.D{
		{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}, hint)
}
