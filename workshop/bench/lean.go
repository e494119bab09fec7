package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// settings decide how fast a server is fed: how many connections work at once, and the size of their commands.
type settings struct {
	connections int
	batchBytes  int
	members     int  // that each write waits for; 0 is 1
	majority    bool // each write waits for a majority
}

func (s settings) String() string {
	text := fmt.Sprintf("%d connections, %s a command", s.connections, kib(s.batchBytes))
	if s.majority {
		text += ", w:majority"
	}
	return text
}

// concern is w of the write concern.
func (s settings) concern() any {
	if s.majority {
		return "majority"
	}
	return max(s.members, 1)
}

func kib(n int) string {
	if n >= 1<<20 {
		return itoa(n>>20) + " MiB"
	}
	return itoa(n>>10) + " KiB"
}

// dataset is what is copied: documents spread evenly, number k in collection k modulo their number.
type dataset struct {
	shape       *shape
	docs        int
	collections int
}

func (d dataset) bytes() int { return d.docs * d.shape.size }

func (d dataset) describe() string {
	text := itoa(d.docs) + " documents"
	if d.collections > 1 {
		text += " in " + itoa(d.collections) + " collections"
	}
	return text + " (" + d.shape.name + "; " + itoa(d.shape.size) + " B each)"
}

// part is the dataset with fewer documents.
func (d dataset) part(docs int) dataset {
	d.docs = min(docs, d.docs)
	return d
}

// insert writes a dataset from memory: unordered, unvalidated, without sessions, a collection a command.
func insert(ctx context.Context, to *side, db string, d dataset, s settings) error {
	batch := max(s.batchBytes/d.shape.size, 1)
	perColl := (d.docs + d.collections - 1) / d.collections
	batches := (perColl + batch - 1) / batch * d.collections
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range s.connections {
		g.Go(func() error {
			w, err := newWriter(ctx, to, s.concern())
			if err != nil {
				return err
			}
			defer w.conn.Release()
			w.db = db
			for {
				b := int(next.Add(1)) - 1
				if b >= batches {
					return nil
				}
				coll := b % d.collections
				from := b / d.collections * batch
				if err := w.insert(ctx, d, coll, from, min(from+batch, perColl)); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

type writer struct {
	conn    *wire.Conn
	db      string
	concern any // w of the write concern
	size    int // of a command of changes, in bytes, about
	msg     wire.Message
	body    map[string]bsoncore.Document
}

func newWriter(ctx context.Context, to *side, concern any) (*writer, error) {
	conn, err := to.door().Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	return &writer{conn: conn, db: dataDB, concern: concern, body: map[string]bsoncore.Document{}}, nil
}

func (w *writer) begin(name, coll string, ordered bool, sequence string) error {
	body, ok := w.body[name+coll]
	if !ok {
		d := bson.D{{Key: name, Value: coll}, {Key: "ordered", Value: ordered},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w.concern}}}}
		if name != "delete" {
			d = append(d, bson.E{Key: "bypassDocumentValidation", Value: true})
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			return err
		}
		body = raw
		w.body[name+coll] = body
	}
	w.msg.Reset(w.db, body, false)
	w.msg.StartSequence(sequence)
	return nil
}

// send sends the command and fails unless every operation did what it should.
func (w *writer) send(ctx context.Context, what string, want int) error {
	reply, err := w.conn.RoundTrip(ctx, &w.msg)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	res := wire.ParseWriteResult(reply)
	if len(res.Errors) > 0 {
		return fmt.Errorf("%s: %s (code %d)", what, res.Errors[0].Message, res.Errors[0].Code)
	}
	if res.N != int64(want) {
		return fmt.Errorf("%s: the server did %d of %d", what, res.N, want)
	}
	return nil
}

// insert writes the documents from … to-1 of a collection.
func (w *writer) insert(ctx context.Context, d dataset, coll, from, to int) error {
	if err := w.begin("insert", collection(coll), false, "documents"); err != nil {
		return err
	}
	for i := from; i < to; i++ {
		key := i*d.collections + coll
		if key < d.docs {
			w.msg.BuildDocument(func(dst []byte) []byte { return d.shape.appendDoc(dst, uint32(key), nil) })
		}
	}
	if w.msg.Docs() == 0 {
		return nil
	}
	return w.send(ctx, "insert into "+collection(coll), w.msg.Docs())
}

type trial[S fmt.Stringer] struct {
	with    S
	seconds float64
}

// choose times work with all settings, and the best three again in the opposite order, and takes the fastest. Below
// ten thousand things it takes the first: times say nothing.
func choose[S fmt.Stringer](ctx context.Context, things int, all []S,
	work func(context.Context, S) (time.Duration, error)) (best S, note string, err error) {
	if things < 10_000 {
		return all[0], fmt.Sprintf("%s, untried on only %d", all[0], things), nil
	}
	var trials []trial[S]
	for _, s := range all {
		took, err := work(ctx, s)
		if err != nil {
			return best, "", fmt.Errorf("try %s: %w", s, err)
		}
		trials = append(trials, trial[S]{s, took.Seconds()})
	}
	byTime := func(a, b trial[S]) int { return cmp.Compare(a.seconds, b.seconds) }
	slices.SortStableFunc(trials, byTime)
	finalists := trials[:min(3, len(trials))]
	for i := range finalists {
		f := &finalists[len(finalists)-1-i]
		took, err := work(ctx, f.with)
		if err != nil {
			return best, "", fmt.Errorf("try %s again: %w", f.with, err)
		}
		f.seconds = min(f.seconds, took.Seconds())
	}
	slices.SortStableFunc(finalists, byTime)
	var texts []string
	for _, t := range trials {
		texts = append(texts, fmt.Sprintf("%s: %.3f s", t.with, t.seconds))
	}
	return finalists[0].with, strings.Join(texts, "; "), nil
}

func grid(connections, batchBytes []int) []settings {
	var all []settings
	for _, c := range connections {
		for _, b := range batchBytes {
			all = append(all, settings{connections: c, batchBytes: b})
		}
	}
	return all
}

const (
	mostRead    = 1_000_000 // mostRead and mostWritten are on how much settings are tried at most.
	mostWritten = 200_000
)

// trialSize is how much data settings of writes are tried on: more for more members, which fall behind first.
func trialSize(docs, members int) int {
	return min(max(docs/10, min(docs, 20_000))*max(members, 1), docs, mostWritten)
}

// reading are the settings of a read in record order.
type reading struct {
	slices    int // of each collection
	parallel  int // slices read at once
	batchDocs int // of a reply; 0 lets the server fill 16 MB
}

func (r reading) String() string {
	batch := "16 MB replies"
	if r.batchDocs > 0 {
		batch = itoa(r.batchDocs) + " documents a reply"
	}
	return fmt.Sprintf("%d slices at once, %s", r.parallel, batch)
}

func readings(d dataset, version4point4 bool) []reading {
	parallel := []int{1, 2, 4, 8}
	if !version4point4 { // cannot begin in the middle
		parallel = []int{min(d.collections, 4)}
	}
	var all []reading
	for _, p := range parallel {
		slices := (p + d.collections - 1) / d.collections
		for _, batch := range []int{0, (1 << 20) / d.shape.size} {
			all = append(all, reading{slices, p, batch})
		}
	}
	return all
}

// readAll reads a dataset and keeps nothing. Collections are cut at record ids, which count from 1 without gaps, as
// the bench inserted them. It fails unless it saw each document once.
func readAll(ctx context.Context, from *side, d dataset, r reading) error {
	var parts []part
	for s := range r.slices {
		for c := range d.collections {
			n := (d.docs - c + d.collections - 1) / d.collections
			lo, hi := n*s/r.slices, n*(s+1)/r.slices
			parts = append(parts, part{c, int64(lo), int64(hi - lo)})
		}
	}
	var next, docs atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(r.parallel, len(parts)) {
		g.Go(func() error {
			conn, err := from.Pool.Checkout(ctx, wire.Primary())
			if err != nil {
				return err
			}
			defer conn.Release()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(parts) {
					return nil
				}
				p := parts[i]
				n, err := p.read(ctx, conn, r.batchDocs)
				if err != nil {
					return fmt.Errorf("read %s: %w", collection(p.coll), err)
				}
				docs.Add(n)
			}
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if docs.Load() != int64(d.docs) {
		return fmt.Errorf("read %d of %d documents", docs.Load(), d.docs)
	}
	return nil
}

// part is a run of documents of a collection, after the one of a record id.
type part struct {
	coll        int
	after, docs int64
}

// read reads the part, in batches of so many documents, and counts them.
func (p part) read(ctx context.Context, conn *wire.Conn, batch int) (int64, error) {
	cmd := bson.D{{Key: "find", Value: collection(p.coll)}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "limit", Value: p.docs}}
	if p.after > 0 {
		cmd = append(cmd, bson.E{Key: "$_requestResumeToken", Value: true},
			bson.E{Key: "$_resumeAfter", Value: bson.D{{Key: "$recordId", Value: p.after}}})
	}
	first := batch
	if batch == 0 {
		first = 1 << 20 // else the first reply has 101 documents
	}
	cmd = append(cmd, bson.E{Key: "batchSize", Value: first})
	return drain(ctx, conn, dataDB, cmd, wire.CursorOptions{BatchSize: batch})
}

// drain reads a cursor to its end and counts the documents.
func drain(ctx context.Context, conn *wire.Conn, db string, cmd bson.D, o wire.CursorOptions) (n int64, err error) {
	cur, err := conn.OpenCursor(ctx, db, cmd, o)
	if err != nil {
		return 0, err
	}
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return n, err
		}
		if err := b.Each(func([]byte) error { n++; return nil }); err != nil || b.Done {
			return n, err
		}
	}
}

type oplogReading struct {
	cursors   int
	batchDocs int // 0 lets the server fill 16 MB
}

func (r oplogReading) String() string {
	batch := "16 MB replies"
	if r.batchDocs > 0 {
		batch = itoa(r.batchDocs) + " entries a reply"
	}
	return fmt.Sprintf("%d cursors, %s", r.cursors, batch)
}

// span is a part of a source's oplog: after from, up to and including to. Marks lie in between, about evenly.
type span struct {
	from, to mongo.OpTime
	marks    []mongo.OpTime
	of       []string // namespaces that are read; nil is all
}

// head is about that share of the span, from its beginning.
func (s span) head(share float64) span {
	n := int(share * float64(len(s.marks)))
	if n >= len(s.marks) {
		return s
	}
	return span{from: s.from, to: s.marks[n], marks: s.marks[:n], of: s.of}
}

// cut divides the span into n parts, fewer if there are not enough marks.
func (s span) cut(n int) []span {
	var parts []span
	from := s.from
	for i := 1; i < n && len(s.marks) >= n; i++ {
		m := s.marks[i*len(s.marks)/n]
		parts = append(parts, span{from: from, to: m, of: s.of})
		from = m
	}
	return append(parts, span{from: from, to: s.to, of: s.of})
}

// readOplog reads a span to its end, keeps nothing, and counts the entries.
func readOplog(ctx context.Context, from *side, s span, r oplogReading) (int64, error) {
	var entries atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range s.cut(r.cursors) {
		g.Go(func() error {
			conn, err := from.Pool.Checkout(ctx, wire.Primary())
			if err != nil {
				return err
			}
			defer conn.Release()
			filter := bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: part.from.TS}, {Key: "$lte", Value: part.to.TS}}}}
			if part.of != nil {
				filter = append(filter, bson.E{Key: "ns", Value: bson.D{{Key: "$in", Value: part.of}}})
			}
			cmd := bson.D{
				{Key: "find", Value: "oplog.rs"},
				{Key: "filter", Value: filter},
				{Key: "batchSize", Value: 1 << 20},
			}
			n, err := drain(ctx, conn, "local", cmd, wire.CursorOptions{BatchSize: r.batchDocs})
			entries.Add(n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("read the oplog: %w", err)
	}
	return entries.Load(), nil
}

// readStream reads a span by the driver's change stream, keeps nothing, and counts the events.
func readStream(ctx context.Context, from *side, s span) (events int64, err error) {
	after := s.from.TS
	after.I++
	stream, err := from.Client.Watch(ctx, bson.A{}, options.ChangeStream().SetStartAtOperationTime(&after).
		SetBatchSize(5000).SetMaxAwaitTime(100*time.Millisecond))
	if err != nil {
		return 0, fmt.Errorf("open a change stream: %w", err)
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	for stream.Next(ctx) {
		events++
		t, i, _ := stream.Current.Lookup("clusterTime").TimestampOK()
		if at := (bson.Timestamp{T: t, I: i}); !at.Before(s.to.TS) {
			break
		}
	}
	return events, mongo.Wrap(stream.Err(), "read a change stream")
}

// comparing is the experiment of two equal sides that are compared.
type comparing struct {
	docs    int
	each    int // documents of a collection; 0 puts all into one
	indexes int // of each collection
}

func (v comparing) run(ctx context.Context, b *bench, s scenario) error {
	d := dataset{ycsb(), b.o.Scale.of(v.docs), 1}
	load := (*side).load
	if v.each > 0 {
		d.collections, load = d.docs/v.each, (*side).refill
	}
	c := Case{
		Scenario: s.name, Work: "compare " + d.describe() + " that are equal", Ceiling: s.ceiling,
		Unit: "documents", Count: d.docs, Bytes: d.bytes(),
	}
	n := needs{sourceCacheGB: b.cacheGB(d.bytes()), targetCacheGB: b.cacheGB(d.bytes())}
	return b.onServers(ctx, s, n, func(st *site) error {
		b.say("%s: loading both sides", s.name)
		for _, side := range []*side{st.source, st.target} {
			if err := load(side, ctx, d, fieldIndexes(v.indexes)); err != nil {
				return err
			}
		}
		way, read := "8 connections, a collection at a time", scanEach
		if v.each == 0 {
			r, err := b.bestReading(ctx, &c, "reading %d documents of both sides: %s", d, st.source, st.target)
			if err != nil {
				return err
			}
			way, read = r.String(), func(ctx context.Context, d dataset, from ...*side) error {
				return readEach(ctx, d, r, from...)
			}
		}
		args := []string{"verify", "--include", dataDB + ".*", "--output", "json", "--log-level", "warn"}
		return b.compete(ctx, st, c, []contender{
			{
				name: "ceiling", kind: KindCeiling, how: "read, on each side: " + way, prepare: nothing,
				run: func(ctx context.Context, m *meter) error {
					return m.part("read", func() error { return read(ctx, d, st.source, st.target) })
				},
			},
			{
				name: "millrace", kind: KindMillrace, how: commandLine(args), prepare: nothing,
				run: func(ctx context.Context, m *meter) error {
					return toEnd(ctx, m, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)})
				},
			},
		})
	})
}

// readEach reads a dataset of several clusters at the same time.
func readEach(ctx context.Context, d dataset, r reading, from ...*side) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, side := range from {
		g.Go(func() error { return readAll(ctx, side, d, r) })
	}
	return g.Wait()
}

// bestReading finds how clusters are read fastest; note is a format for how much was read and what was tried.
func (b *bench) bestReading(ctx context.Context, c *Case, note string, d dataset, from ...*side) (reading, error) {
	b.say("%s: finding the best way to read", c.Name())
	part := d.part(mostRead)
	r, tried, err := choose(ctx, part.docs, readings(d, from[0].Info.Version.AtLeast(4, 4)),
		func(ctx context.Context, r reading) (time.Duration, error) {
			began := time.Now()
			err := readEach(ctx, part, r, from...)
			return time.Since(began), err
		})
	if err == nil {
		c.Notes = append(c.Notes, fmt.Sprintf(note, part.docs, tried))
	}
	return r, err
}
