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
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/wire"
)

// settings are the two things that decide how fast a server is fed: how many
// connections work at once and how large their commands are.
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

// dataset is what the full scenarios copy: documents spread evenly over
// collections, document number k in collection k modulo their number.
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

// insert writes a dataset from memory into a database: unordered inserts without
// validation, w:1 unless settings say more, no sessions, documents made right
// into the command's buffer. Each command goes to one collection.
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

// writer sends write commands over one connection.
type writer struct {
	conn    *wire.Conn
	db      string
	concern any // w of the write concern
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

// begin starts a command on a collection.
func (w *writer) begin(name, coll string, ordered bool, sequence string) error {
	body, ok := w.body[name+coll]
	if !ok {
		d := bson.D{{Key: name, Value: coll}, {Key: "ordered", Value: ordered}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: w.concern}}}}
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
func (w *writer) send(ctx context.Context, what string) error {
	want := int64(w.msg.Docs())
	res, err := w.exchange(ctx, what)
	if err == nil && res.N != want {
		err = fmt.Errorf("%s: the server did %d of %d", what, res.N, want)
	}
	return err
}

func (w *writer) exchange(ctx context.Context, what string) (wire.WriteResult, error) {
	reply, err := w.conn.RoundTrip(ctx, &w.msg)
	if err != nil {
		return wire.WriteResult{}, fmt.Errorf("%s: %w", what, err)
	}
	res := wire.ParseWriteResult(reply)
	if len(res.Errors) > 0 {
		return res, fmt.Errorf("%s: %s (code %d)", what, res.Errors[0].Message, res.Errors[0].Code)
	}
	return res, nil
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
	return w.send(ctx, "insert into "+collection(coll))
}

// trial is how fast some settings were.
type trial[S fmt.Stringer] struct {
	with    S
	seconds float64
}

// choose times a piece of work with each of the settings, and the best three
// again in the opposite order, and takes the fastest. note reports what was tried.
// On less than ten thousand things it takes the first, for times would say
// nothing.
func choose[S fmt.Stringer](ctx context.Context, things int, all []S, work func(context.Context, S) (time.Duration, error)) (best S, note string, err error) {
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
	var told []string
	for _, t := range trials {
		told = append(told, fmt.Sprintf("%s: %.3f s", t.with, t.seconds))
	}
	return finalists[0].with, strings.Join(told, "; "), nil
}

// grid combines connections and sizes.
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
	// mostRead and mostWritten are on how much settings are tried at most.
	mostRead    = 1_000_000
	mostWritten = 200_000
)

// trialSize is how much of the data settings of writes are tried on. It is more
// where more members have to have it: the others fall behind before they show how
// fast they are.
func trialSize(docs, members int) int {
	return min(max(docs/10, min(docs, 20_000))*max(members, 1), docs, mostWritten)
}
