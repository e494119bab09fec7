package scan

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
)

var (
	errNoToken  = errors.New("the server's reply in record order has no resume token")
	errNoRecord = errors.New("the server's reply has no record ids")
	errEnough   = errors.New("enough documents were seen")
)

// Want says what a walk returns. Batch is the number of documents to request in a reply.
type Want struct {
	Batch   int
	IDsOnly bool  // documents of their _ids alone
	Measure bool  // the extent and the position of each part
	Edge    *Edge // Serial: ends after this document
	// Keep chooses the documents of Part.Each, nil all; Part.Docs counts the others, too. It is not
	// called with IDsOnly, and must be safe for concurrent use.
	Keep func(doc []byte) bool
	// Map appends to dst what replaces a document in Part.Each, or nothing to leave it out; nil
	// changes none. It is called for what Keep chooses, under the same conditions.
	Map func(dst, doc []byte) ([]byte, error)
	// Prefilter lets the server leave out some of what Keep does not choose, ByRecord and without
	// IDsOnly; nil is nothing.
	Prefilter *Prefilter
	Range     *ownership.Range
}

// Walk reads a slice part by part. It opens another cursor if the server ended the first for a
// reason that does not end the reading, or if the start was deleted. The new cursor continues after
// the returned documents. A slice in record order may then return documents twice, but never omits
// one. Through routers that goes for documents with the _id of the last one: shards may have several.
type Walk struct {
	r    *Reader
	c    *schema.Collection
	s    *Slice
	want Want

	cur   *wire.Cursor
	bound bool // the cursor has index bounds
	tail  bool // the cursor is for the document of which the _id is MaxKey
	over  bool // nothing comes any more
	given bool
	idle  int // cursors opened again since something was given

	at        bson.Raw      // not ByRecord: last document given, or where the slice starts
	began     bson.Raw      // likewise, when the cursor was opened
	first     bool          // the document at `at` comes first again
	floor     int64         // ByRecord: record ids up to here are not the slice's, or given
	upper     int64         // the last record id, 0 for none
	start     int64         // where the cursor starts, at or below floor; 0 is the beginning
	back      []int64       // places to start from when start was deleted
	token     int64         // where the latest reply has ended
	prefilter *prefiltering // nil: the server leaves nothing out
}

// Part is what one reply has of a slice.
type Part struct {
	Last     bool // nothing comes after it
	Size     int  // of the reply in bytes
	Progress      // with Want.Measure

	batch   *wire.Batch
	entire  bool // the part is all of the batch
	from    int  // else Docs documents from here on
	records bool // the documents end with their record ids
	keep    func(doc []byte) bool
	mapping func(dst, doc []byte) ([]byte, error)
	mapped  [][]byte // once they are
}

func (r *Reader) Walk(c *schema.Collection, s *Slice, want Want) *Walk {
	w := &Walk{r: r, c: c, s: s, want: want, at: s.from(), back: s.Back, upper: Record(s.Upper)}
	w.floor = Record(w.at)
	w.start, w.token = w.floor, w.floor
	if s.Strategy == ByRecord && want.Prefilter != nil && !want.IDsOnly {
		batch := float64(want.Batch)
		w.prefilter = &prefiltering{Prefilter: *want.Prefilter, span: 8 * batch, rate: max(leastRate, 1/(8*batch)),
			most: batch / 4}
	}
	if s.Strategy != ByRecord && len(s.Position) > 0 {
		last := markID(s.Position).Type == bsoncore.TypeMaxKey // nothing is after it
		if r.Routers != nil {
			w.tail = last
		} else {
			w.first, w.over = true, last
		}
	}
	return w
}

func (w *Walk) SetBatch(n int) { w.want.Batch = n }

// Next returns the next part, nil at the end.
func (w *Walk) Next(ctx context.Context) (*Part, error) {
	for !w.over {
		p, err := w.step(ctx)
		if err == nil {
			return p, nil
		}
		w.Close(ctx)
		if w.s.Strategy == ByID && mongo.IsCode(err, codeNothingBetween) {
			break
		}
		if !w.again(err) {
			return nil, err
		}
	}
	return nil, nil
}

// Open opens the cursor and reads nothing. Of a shard's collection the walk returns what the shard
// owned then, even if a chunk moves before Next.
func (w *Walk) Open(ctx context.Context) error {
	for {
		b, err := w.open(ctx, true)
		if err == nil {
			w.over = b.Done
			return nil
		}
		w.Close(ctx)
		if !w.again(err) {
			return err
		}
	}
}

// open opens a cursor; empty asks for no documents yet.
func (w *Walk) open(ctx context.Context, empty bool) (b *wire.Batch, err error) {
	name, err := w.r.named(ctx, w.c)
	if err == nil && w.r.Fresh != nil {
		w.r.Concern, err = w.r.Fresh(ctx)
	}
	if err != nil {
		return nil, err
	}
	w.token, w.began = w.start, w.at
	cmd := w.command()
	if empty {
		cmd[slices.IndexFunc(cmd, func(e bson.E) bool { return e.Key == "batchSize" })].Value = 0
	}
	db, _ := mongo.SplitNS(w.c.DataNS())
	if w.cur, b, err = w.r.open(ctx, db, cmd, w.want.Batch); err == nil {
		err = w.r.stillNamed(ctx, w.c, name)
	}
	return b, err
}

// Close closes the cursor, also after ctx has ended.
func (w *Walk) Close(ctx context.Context) {
	if w.cur != nil {
		w.cur.Close(ctx)
		w.cur = nil
	}
}

func (w *Walk) again(err error) bool {
	const maxIdle = 5
	switch {
	case mongo.IsCode(err, codeKeyNotFound) && w.stepBack():
		return true
	case w.prefiltered() && (optional(err) || errors.Is(err, errNoToken)):
		w.prefilter = nil // it may be because of the filter
		return true
	case !CursorLost(err) && !w.forgotten(err) || w.idle == maxIdle || w.given && !w.resumable():
		return false
	}
	w.idle++
	if w.r.Reopened != nil {
		w.r.Reopened(err)
	}
	return true
}

func (w *Walk) prefiltered() bool { return w.prefilter != nil && w.prefilter.on }

func (w *Walk) resumable() bool { return w.s.Strategy.Resumable() }

// forgotten reports a snapshot that is too old, where another one will do.
func (w *Walk) forgotten(err error) bool {
	return w.r.Fresh != nil && Forgotten(err)
}

// stepBack takes the next place to start from; false if even the beginning was refused.
func (w *Walk) stepBack() bool {
	if w.start == 0 {
		return false
	}
	refused := w.start
	w.start = 0
	if i := slices.IndexFunc(w.back, func(rid int64) bool { return rid < refused }); i >= 0 {
		w.start, w.back = w.back[i], w.back[i+1:]
	}
	return true
}

func (w *Walk) step(ctx context.Context) (*Part, error) {
	var b *wire.Batch
	var err error
	if w.cur == nil {
		b, err = w.open(ctx, false)
	} else {
		w.cur.Limit(w.wanted())
		b, err = w.r.next(ctx, w.cur)
	}
	if err != nil {
		return nil, err
	}
	p, err := w.part(b)
	if err != nil {
		return nil, err
	}
	if b.Done && !p.Last { // its tail is left
		w.cur, w.tail = nil, true
	}
	w.over = p.Last
	if w.prefilter != nil && w.prefilter.pays(p) && w.cur != nil {
		// The next one goes on with the filter, over the same connection: it has to wait.
		w.cur.Close(ctx)
		w.cur = nil
	}
	return p, nil
}

// wanted is in record order at most the number of record ids to the slice's end.
func (w *Walk) wanted() int {
	n, left := w.want.Batch, int64(0)
	if w.s.Strategy == ByRecord && w.upper != 0 {
		left = max(w.upper-w.token, 1)
		n = int(min(left, int64(n)))
	}
	if w.prefilter != nil {
		n = w.prefilter.wanted(n, left)
	}
	return n
}

func (w *Walk) command() bson.D {
	if w.s.Strategy == Sorted {
		_, name := mongo.SplitNS(w.c.DataNS())
		return w.r.Owned.Mark(w.r.WithConcern(bson.D{{Key: "aggregate", Value: name},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}}},
			{Key: "allowDiskUse", Value: true}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: w.want.Batch}}}}))
	}
	return w.r.Find(w.c, w.how()...)
}

func (w *Walk) how() (more bson.D) {
	add := func(key string, value any) { more = append(more, bson.E{Key: key, Value: value}) }
	add("batchSize", w.wanted())
	if w.want.IDsOnly {
		add("projection", idOfDocument())
	}
	switch {
	case w.s.Strategy == ByRange:
		add("hint", w.want.Range.Hint)
		add("min", w.want.Range.Lower)
		add("max", w.want.Range.Upper)
	case w.tail:
		add("filter", bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bson.MaxKey{}}}}})
	case w.s.Strategy == ByID:
		add("hint", bson.D{{Key: "_id", Value: 1}})
		w.bound = len(w.at) > 0
		if w.bound {
			add("min", w.at)
		}
		if len(w.s.Upper) > 0 {
			add("max", w.s.Upper)
		}
		if w.r.Routers != nil {
			add("sort", bson.D{{Key: "_id", Value: 1}})
		}
	default:
		more = append(more, natural())
	}
	switch {
	case w.s.Strategy == ByKey:
		add("filter", keyRange(w.at, w.s.Upper))
	case w.s.Strategy == ByRecord:
		more = append(more, requestToken())
		if w.prefiltered() {
			add("filter", w.prefilter.filter(w.s.Upper))
			if w.c.Collated() { // by which the server would find other texts than Keep
				add("collation", bson.D{{Key: "locale", Value: "simple"}})
			}
		}
		if w.start != 0 {
			add("$_resumeAfter", bson.D{{Key: "$recordId", Value: w.start}})
		}
	case w.want.Edge != nil:
		add("showRecordId", true)
	}
	return more
}

func keyRange(lower, upper bson.Raw) bson.D {
	filter := bson.D{}
	if len(lower) > 0 {
		filter = append(filter, bson.E{Key: "_id", Value: bson.D{{Key: "$gte", Value: lower.Lookup("_id")}}})
	}
	if len(upper) > 0 {
		filter = append(filter, bson.E{Key: "_id", Value: bson.D{{Key: "$lt", Value: upper.Lookup("_id")}}})
	}
	return filter
}

// part finds what of a batch belongs to the slice. In record order the batch's resume token
// decides. At either end of a slice it may take too many documents, which were returned before or
// are the neighbour's.
func (w *Walk) part(b *wire.Batch) (*Part, error) {
	p := &Part{Size: b.Size, Last: b.Done, batch: b, entire: true, records: w.want.Edge != nil}
	if !w.want.IDsOnly {
		p.keep, p.mapping = w.want.Keep, w.want.Map
	}
	rid := int64(0)
	var until bsoncore.Value // the slice ends in this batch, after this _id if it is there
	if w.s.Strategy == ByRecord {
		rid = tokenRecord(b.Token)
		if w.prefiltered() {
			w.prefilter.passed(b, rid-w.token)
		}
		switch {
		case rid == 0 && !b.Done:
			return nil, errNoToken
		case rid != 0 && rid <= w.floor:
			w.token, p.entire = rid, false
			return p, nil
		case w.upper != 0 && (rid >= w.upper || b.Done): // or else what came behind the end meanwhile
			p.Last, until = true, markID(w.s.Upper)
		}
		w.token = rid
	}
	if w.want.Measure || w.prefilter != nil || w.first || until.Type != 0 || w.s.Strategy == ByID ||
		w.s.Strategy == ByKey {
		if err := w.measure(p, until); err != nil {
			return nil, err
		}
		if p.Docs == 0 {
			return p, nil
		}
	} else if b.Empty() {
		return p, nil
	}
	w.moved(rid)
	return p, nil
}

// measure finds the extent of a part: all of the batch, without a first document that was returned
// before, those after the _id until, and those beyond the edge.
func (w *Walk) measure(p *Part, until bsoncore.Value) error {
	i := -1
	ended := false
	var last []byte
	err := p.batch.Each(func(doc []byte) error {
		i++
		if ended {
			return nil
		}
		if p.records {
			record, ok := recordOf(doc)
			if !ok {
				return errNoRecord
			}
			if record > w.want.Edge.record {
				ended, p.Last = true, true
				return nil
			}
			p.Bytes -= int64(recordSuffix - 1)
		}
		if w.first {
			w.first = false
			if bsonraw.IDOf(doc).Equal(markID(w.at)) {
				return nil
			}
		}
		if p.Docs == 0 {
			p.from = i
		}
		p.Docs++
		p.Bytes += int64(len(doc))
		if w.prefiltered() {
			w.prefilter.unread(&p.Progress, doc, until)
		}
		last = doc
		ended = until.Type != 0 && bsonraw.IDOf(doc).Equal(until)
		return nil
	})
	p.entire = p.Docs == i+1 && !p.records
	if err == nil {
		w.position(p, last, until)
	}
	return err
}

// position sets where a measured part ends, and whether more follows. At the end of the collection
// the server's token is of the last document examined, which need not be the last returned, so it
// is no position.
func (w *Walk) position(p *Part, last []byte, until bsoncore.Value) {
	rid := w.token
	switch {
	case p.Docs == 0:
	case until.Type != 0:
		p.Position = w.s.Upper
	case w.prefiltered() && p.Last:
	case rid != 0 || w.s.Strategy != ByRecord:
		p.Position = mark(w.s.Strategy, rid, bsonraw.IDOf(last))
	}
	if len(p.Position) > 0 && w.s.Strategy != ByRecord {
		w.at = p.Position
	}
	// Bounds of an index without a max end before MaxKey, those of a cluster key after it.
	largest := markID(w.at).Type == bsoncore.TypeMaxKey
	if w.s.Strategy == ByID && p.Last && w.bound && !w.tail && !largest && len(w.s.Upper) == 0 {
		p.Last = false
	}
}

func (w *Walk) moved(rid int64) {
	w.given = true
	if w.s.Strategy == ByRecord {
		w.idle = 0
		w.back = remember(w.back, w.start)
		w.floor = max(w.floor, rid)
		w.start = w.floor
		return
	}
	w.first = w.resumable() && w.r.Routers == nil
	if !bytes.Equal(w.at, w.began) { // else only what an earlier cursor gave, too
		w.idle = 0
	}
}

// Each calls fn with the part's documents that are kept, as mapped: they are mapped once. Others
// alias the reply.
func (p *Part) Each(fn func(doc []byte) error) error {
	if p.mapping == nil {
		return p.eachKept(fn)
	}
	if p.mapped == nil {
		all, ends := make([]byte, 0, p.Size), make([]int, 0, p.Docs)
		err := p.eachKept(func(doc []byte) (err error) {
			before := len(all)
			if all, err = p.mapping(all, doc); len(all) > before {
				ends = append(ends, len(all))
			}
			return err
		})
		if err != nil {
			return err
		}
		from := 0
		p.mapped = make([][]byte, len(ends))
		for i, end := range ends {
			p.mapped[i], from = all[from:end:end], end
		}
	}
	for _, doc := range p.mapped {
		if err := fn(doc); err != nil {
			return err
		}
	}
	return nil
}

func (p *Part) eachKept(fn func(doc []byte) error) error {
	if p.entire && p.keep == nil {
		return p.batch.Each(fn)
	}
	i := -1 - p.from
	return p.batch.Each(func(doc []byte) error {
		if i++; !p.entire && (i < 0 || i >= p.Docs) {
			return nil
		}
		if p.records {
			doc = withoutRecord(doc)
		}
		if p.keep != nil && !p.keep(doc) {
			return nil
		}
		return fn(doc)
	})
}
