package bench

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// copying is the experiment of a dataset that is copied.
type copying struct {
	shape       func() *shape // nil is ycsb
	docs        int
	collections int   // 0 is 1
	each        int   // documents of a collection, which decides how many there are; 0 is none
	indexes     []int // a case for each number of secondary indexes; none is one case without
	cold        bool  // the source's servers are restarted before each round
	files       bool  // by files, too
	link        link  // to the target
	extra       []ruled
	ways        []copyWay // without millrace and peers
}

type copyWay struct {
	name         string
	kind         Kind
	read         bool // or only insert
	indexesFirst bool // or afterwards
	unreplicated bool // insert only, where the server writes no oplog
	fills        bool // create, index and insert, collection by collection
}

func (f copying) run(ctx context.Context, b *bench, s scenario) error {
	if len(f.indexes) == 0 {
		return f.measure(ctx, b, s, "", 0)
	}
	for _, n := range f.indexes {
		if err := f.measure(ctx, b, s, itoa(n), n); err != nil {
			return err
		}
	}
	return nil
}

func (f copying) measure(ctx context.Context, b *bench, s scenario, variant string, indexes int) error {
	w := &fullWork{bench: b, copying: f, data: dataset{shapeOf(f.shape), b.o.Scale.of(f.docs), max(f.collections, 1)},
		indexes: fieldIndexes(indexes)}
	if f.each > 0 {
		w.data.collections = w.data.docs / f.each
	}
	bytes := w.data.bytes()
	n := needs{
		sourceCacheGB: b.cacheGB(bytes), targetCacheGB: b.cacheGB(bytes * (2 + indexes) / 2),
		targetProxy: f.link.far(), ownServers: f.cold || f.files, member: b.hasPeer(peerSecondary) && !f.files,
	}
	if f.files {
		n.pairing = filesServers()
	}
	c := Case{
		Scenario: s.name, Variant: variant, Work: "copy " + w.data.describe(), Ceiling: s.ceiling,
		Unit: "documents", Count: w.data.docs, Bytes: bytes,
	}
	if indexes > 0 {
		c.Work += ", with " + itoa(indexes) + " secondary indexes on 100-byte fields"
	}
	c.Notes = append(c.Notes, f.link.notes()...)
	if f.cold {
		n.sourceCacheGB = w.coldCache(&c)
	}
	return b.onServers(ctx, s, n, func(st *site) error {
		w.site = st
		b.say("%s: loading %s", c.Name(), w.data.describe())
		if f.each > 0 {
			if err := st.source.refill(ctx, w.data, w.indexes); err != nil {
				return err
			}
			return b.compete(ctx, st, c, w.contenders())
		}
		if err := st.source.load(ctx, w.data, w.indexes); err != nil {
			return err
		}
		if len(f.ways) > 0 {
			if err := w.calibrate(ctx, &c); err != nil {
				return err
			}
		}
		return b.compete(ctx, st, c, w.contenders())
	})
}

// shapeOf makes a shape, by default that of YCSB.
func shapeOf(s func() *shape) *shape {
	if s == nil {
		return ycsb()
	}
	return s()
}

// fieldIndexes are indexes on the first n fields of YCSB.
func fieldIndexes(n int) (all []index) {
	for i := range n {
		all = append(all, index{field: "field" + itoa(i)})
	}
	return all
}

// coldCache is the source's cache of a cold copy, a fifth of the data.
func (w *fullWork) coldCache(c *Case) float64 {
	const least = 0.25 // of the server's setting
	gb := float64(w.data.bytes()) / (1 << 30)
	cache := max(least, gb/5)
	c.Notes = append(c.Notes,
		fmt.Sprintf("source cache %.2f GB for %.2f GB of data; the operating system's cache stays warm", cache, gb))
	if cache == least && gb < 1 {
		c.Notes = append(c.Notes,
			"at this scale the data fit into the smallest cache there is: only the restart makes it cold")
	}
	return cache
}

// copies is how many members have each document.
func (s *side) copies() int {
	if s.cluster != nil {
		return len(s.cluster.Shards()[0].Members())
	}
	return len(s.nodes)
}

// load fills a cleared cluster. Every write waits for all members: none can fall behind what the oplog holds.
func (s *side) load(ctx context.Context, d dataset, indexes []index) error {
	if err := s.remake(ctx, d.collections, nil); err != nil {
		return err
	}
	if err := insert(ctx, s, dataDB, d, settings{connections: 4, batchBytes: 1 << 20, members: s.copies()}); err != nil {
		return fmt.Errorf("load the source: %w", err)
	}
	for c := range d.collections {
		if err := s.index(ctx, c, indexes); err != nil {
			return err
		}
	}
	return s.settle(ctx)
}

type fullWork struct {
	*bench
	*site
	copying
	data    dataset
	indexes []index
	reading reading
	write   settings
}

func (w *fullWork) calibrate(ctx context.Context, c *Case) (err error) {
	connections := []int{2, 4, 8, 16}
	if w.link.far() {
		w.target.moveAway(w.link)
		connections = farConnections()
	} else if w.reading, err = w.bench.bestReading(ctx, c, "reading, %d documents: %s", w.data, w.source); err != nil {
		return err
	}
	return w.bestInsert(ctx, c, len(w.target.nodes), grid(connections, []int{128 << 10, 512 << 10, 2 << 20}))
}

// bestInsert finds the best settings to insert into so many members.
func (w *fullWork) bestInsert(ctx context.Context, c *Case, members int, all []settings) (err error) {
	w.say("%s: finding the best way to insert", c.Name())
	part := w.data.part(trialSize(w.data.docs, members))
	var note string
	w.write, note, err = choose(ctx, part.docs, all, func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.target.remake(ctx, w.data.collections, nil); err != nil {
			return 0, err
		}
		return w.target.timed(ctx, func() error { return insert(ctx, w.target, dataDB, part, s) })
	})
	c.Notes = append(c.Notes, fmt.Sprintf("inserting, %d documents: %s", part.docs, note))
	return err
}

// remake clears a cluster and makes collections, with indexes if any are given.
func (s *side) remake(ctx context.Context, collections int, indexes []index) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	return s.create(ctx, collections, indexes)
}

// chill restarts the source's servers where the scenario wants them cold.
func (w *fullWork) chill(ctx context.Context) error {
	if !w.cold {
		return nil
	}
	return w.source.restart(ctx)
}

// cleared is the start of millrace and of peers: they make the collections.
func (w *fullWork) cleared(ctx context.Context) error {
	if err := w.chill(ctx); err != nil {
		return err
	}
	if err := w.target.clear(ctx); err != nil || w.each == 0 || w.target.lab == nil {
		return err
	}
	// A server keeps handles of thousands of dropped tables, which each new one would pay for.
	return w.target.restart(ctx)
}

func (w *fullWork) contenders() []contender {
	var all []contender
	for _, way := range w.ways {
		switch {
		case way.fills:
			all = append(all, w.fills(way))
		case !way.unreplicated:
			all = append(all, w.way(way))
		case w.target.lab != nil:
			all = append(all, w.withoutOplog(way))
		}
	}
	if w.files {
		all = append(all, w.byFiles()...)
	}
	all = append(all, w.syncs(w.site, w.cleared, w.complete, "--until", "caught-up")...)
	all = append(all, w.ruled(w.site, w.extra, w.cleared, w.completeAs, "--until", "caught-up")...)
	return append(all, w.peers(w.peer)...)
}

// way reads, inserts and indexes, one after the other.
func (w *fullWork) way(c copyWay) contender {
	x := contender{name: c.name, kind: c.kind, how: "insert: " + w.write.String(), check: w.complete}
	before, after := []index(nil), w.indexes
	if c.indexesFirst {
		before, after = w.indexes, nil
	}
	if c.read {
		x.how = "read: " + w.reading.String() + "; " + x.how
	}
	if len(after) > 0 {
		x.how += "; then createIndexes, at most three at once"
	}
	x.prepare = func(ctx context.Context) error {
		if err := w.chill(ctx); err != nil {
			return err
		}
		return w.target.remake(ctx, w.data.collections, before)
	}
	x.run = func(ctx context.Context, m *meter) error {
		if c.read {
			if err := m.part("read", func() error { return readAll(ctx, w.source, w.data, w.reading) }); err != nil {
				return err
			}
		}
		if err := m.part("insert", func() error { return insert(ctx, w.target, dataDB, w.data, w.write) }); err != nil {
			return err
		}
		if len(after) > 0 {
			if err := m.part("index", func() error { return w.indexAll(ctx, after) }); err != nil {
				return err
			}
		}
		return m.part(partMajority, func() error { return w.target.majority(ctx) })
	}
	return x
}

// indexAll builds the indexes of all collections of the target.
func (w *fullWork) indexAll(ctx context.Context, all []index) error {
	for c := range w.data.collections {
		if err := w.target.index(ctx, c, all); err != nil {
			return err
		}
	}
	return nil
}

// unreplicatedDB is the database whose writes a server does not put into its oplog.
const unreplicatedDB = "local"

// withoutOplog inserts where the server writes no oplog, as in an initial sync; no client can be that cheap.
func (w *fullWork) withoutOplog(c copyWay) contender {
	return contender{
		name: c.name, kind: c.kind,
		how: "insert alone, into the database " + unreplicatedDB + ", whose writes make no oplog entries: " +
			w.write.String(),
		prepare: func(ctx context.Context) error {
			if err := w.dropUnreplicated(ctx); err != nil { // of a round that failed
				return err
			}
			return w.target.clear(ctx)
		},
		run: func(ctx context.Context, m *meter) error {
			return m.part("insert", func() error { return insert(ctx, w.target, unreplicatedDB, w.data, w.write) })
		},
		check: w.dropUnreplicated, // insert has checked the number; other contenders do not drop them
	}
}

// dropUnreplicated removes what withoutOplog inserted.
func (w *fullWork) dropUnreplicated(ctx context.Context) error {
	for c := range w.data.collections {
		_, err := w.target.direct.Command(ctx, unreplicatedDB, bson.D{{Key: "drop", Value: collection(c)}})
		if err != nil && !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return fmt.Errorf("drop %s.%s: %w", unreplicatedDB, collection(c), err)
		}
	}
	return nil
}

// complete checks the numbers of documents and indexes.
func (w *fullWork) complete(ctx context.Context) error {
	if err := w.target.holds(ctx, "the target", w.data); err != nil {
		return err
	}
	for c := range w.data.collections {
		n, err := w.target.built(ctx, c)
		if want := 1 + len(w.indexes); err == nil && n != want {
			err = fmt.Errorf("%s of the target has %d of %d indexes", collection(c), n, want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// completeAs checks the number of documents, and some besides, as they are after a rule.
func (w *fullWork) completeAs(r ruled) func(context.Context) error {
	return func(ctx context.Context) error {
		all := w.data
		keys := all.kept(r)
		all.docs = len(keys)
		if err := w.target.holds(ctx, "the target", all); err != nil {
			return err
		}
		for i := 0; i < len(keys); i += len(keys)/sampled + 1 {
			key := keys[i]
			doc := all.shape.appendDoc(nil, uint32(key), nil)
			if err := w.target.has(ctx, collection(key%w.data.collections), doc, r); err != nil {
				return err
			}
		}
		return nil
	}
}

func (d dataset) kept(r ruled) (keys []int) {
	var doc []byte
	for key := range d.docs {
		if r.keeps != nil {
			if doc = d.shape.appendDoc(doc[:0], uint32(key), nil); !r.keeps(doc) {
				continue
			}
		}
		keys = append(keys, key)
	}
	return keys
}

// holds checks that a cluster has a dataset's number of documents.
func (s *side) holds(ctx context.Context, who string, d dataset) error {
	n, err := s.count(ctx, d.collections)
	if err == nil && n != int64(d.docs) {
		err = fmt.Errorf("%s has %d of %d documents", who, n, d.docs)
	}
	return err
}

// sampled is how many documents are compared byte for byte after a round.
const sampled = 200

// complete checks that the target is at the end of the backlog: the number of documents, and the bytes of some.
func (w *incrWork) complete(ctx context.Context) error { return w.completeAs(ruled{})(ctx) }

// completeAs is complete after a rule.
func (w *incrWork) completeAs(r ruled) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := w.target.count(ctx, w.load.collections)
		if err != nil {
			return err
		}
		if n != int64(len(w.final)) {
			return fmt.Errorf("the target has %d documents, and should have %d", n, len(w.final))
		}
		for i := 0; i < len(w.final); i += len(w.final)/sampled + 1 {
			c := &w.final[i]
			doc := w.load.shape.appendDoc(nil, c.key, c.version[:])
			if err := w.target.has(ctx, collection(int(c.key)%w.load.collections), doc, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// has checks one document, byte for byte, as it is after a rule.
func (s *side) has(ctx context.Context, in string, doc bson.Raw, r ruled) (err error) {
	id := doc.Lookup("_id")
	raw, err := s.direct.Command(ctx, dataDB, bson.D{
		{Key: "find", Value: in}, {Key: "singleBatch", Value: true}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}},
	})
	if err != nil {
		return err
	}
	if r.becomes != nil {
		if doc, err = r.becomes(doc); err != nil {
			return err
		}
	}
	got, ok := raw.Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok || !bytes.Equal(got, doc) {
		return fmt.Errorf("document %s of the target differs from what it should be", id)
	}
	return nil
}
