package bench

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// fullCase is a copy of a dataset.
type fullCase struct {
	variant string
	data    dataset
	indexes []index
	cold    bool          // the source's servers are restarted before each round
	cacheGB float64       // of the source when cold
	rtt     time.Duration // to the target
	notes   []string
}

func fullOne(ctx context.Context, b *bench, s scenario) error {
	return b.full(ctx, s, fullCase{data: dataset{ycsb(), b.o.Scale.of(1_000_000), 1}})
}

func fullCold(ctx context.Context, b *bench, s scenario) error {
	f := fullCase{data: dataset{ycsb(), b.o.Scale.of(1_000_000), 1}, cold: true}
	const least = 0.25 // of the server's setting
	f.cacheGB = max(least, float64(f.data.bytes())/5/(1<<30))
	f.notes = append(f.notes, fmt.Sprintf("source cache %.2f GB for %.2f GB of data; the operating system's cache stays warm", f.cacheGB, float64(f.data.bytes())/(1<<30)))
	if f.cacheGB == least && f.data.bytes() < 4<<28 {
		f.notes = append(f.notes, "at this scale the data fit into the smallest cache there is: only the restart makes it cold")
	}
	return b.full(ctx, s, f)
}

func fullMany(ctx context.Context, b *bench, s scenario) error {
	return b.full(ctx, s, fullCase{data: dataset{ycsb(), b.o.Scale.of(1_000_000), 5}})
}

func fullSmall(ctx context.Context, b *bench, s scenario) error {
	return b.full(ctx, s, fullCase{data: dataset{small(), b.o.Scale.of(4_000_000), 10}})
}

func fullMixed(ctx context.Context, b *bench, s scenario) error {
	return b.full(ctx, s, fullCase{data: dataset{mixedIDs(), b.o.Scale.of(1_000_000), 1}})
}

func fullWAN(ctx context.Context, b *bench, s scenario) error {
	return b.full(ctx, s, fullCase{
		data: dataset{ycsb(), b.o.Scale.of(300_000), 1}, rtt: 40 * time.Millisecond,
		notes: []string{"each answer of the target is held back for 40 ms by a proxy in the bench's own process; its bandwidth is not limited"},
	})
}

func fullIndexed(ctx context.Context, b *bench, s scenario) error {
	for _, n := range []int{1, 3, 5, 10} {
		f := fullCase{variant: itoa(n), data: dataset{ycsb(), b.o.Scale.of(300_000), 1}}
		for i := range n {
			f.indexes = append(f.indexes, index{field: "field" + itoa(i)})
		}
		if err := b.full(ctx, s, f); err != nil {
			return err
		}
	}
	return nil
}

// full measures the copy of a dataset.
func (b *bench) full(ctx context.Context, s scenario, f fullCase) (err error) {
	n := needs{
		sourceCacheGB: b.cacheGB(f.data.bytes()), targetCacheGB: b.cacheGB(f.data.bytes() * (2 + len(f.indexes)) / 2),
		targetProxy: f.rtt > 0, ownServers: f.cold, member: b.hasPeer(peerSecondary),
	}
	if f.cold {
		n.sourceCacheGB = f.cacheGB
	}
	b.say("%s: starting servers", s.name)
	st, err := b.open(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, st) }()

	c := Case{
		Scenario: s.name, Variant: f.variant, Work: "copy " + f.data.describe(), Ceiling: s.ceiling,
		Unit: "documents", Count: f.data.docs, Bytes: f.data.bytes(), Notes: f.notes,
	}
	if len(f.indexes) > 0 {
		c.Work += ", with " + itoa(len(f.indexes)) + " secondary indexes on 100-byte fields"
	}
	b.say("%s: loading %s", c.Name(), f.data.describe())
	if err := st.source.load(ctx, f.data, f.indexes); err != nil {
		return err
	}
	w := &fullWork{bench: b, site: st, fullCase: f}
	if err := w.calibrate(ctx, &c); err != nil {
		return err
	}
	return b.compete(ctx, st, c, w.contenders(ctx))
}

// load fills a cleared cluster. Every write waits for all members: none can fall
// behind what the oplog holds.
func (s *side) load(ctx context.Context, d dataset, indexes []index) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	if err := s.create(ctx, d.collections, nil); err != nil {
		return err
	}
	if err := insert(ctx, s, d, settings{4, 1 << 20, len(s.nodes)}); err != nil {
		return fmt.Errorf("load the source: %w", err)
	}
	for c := range d.collections {
		if err := s.index(ctx, c, indexes); err != nil {
			return err
		}
	}
	return s.settle(ctx)
}

// fullWork is a fullCase on its servers.
type fullWork struct {
	*bench
	*site
	fullCase
	read  reading
	write settings
}

// calibrate finds the best settings of the ceilings.
func (w *fullWork) calibrate(ctx context.Context, c *Case) (err error) {
	b := w.bench
	if w.rtt > 0 {
		w.target.delay(w.rtt)
	}
	if w.rtt == 0 {
		b.say("%s: finding the best way to read", c.Name())
		var note string
		part := w.data.part(mostRead)
		w.read, note, err = choose(ctx, part.docs, readings(w.data, w.source.Info.Version.AtLeast(4, 4)), func(ctx context.Context, r reading) (time.Duration, error) {
			began := time.Now()
			err := readAll(ctx, w.source, part, r)
			return time.Since(began), err
		})
		if err != nil {
			return err
		}
		c.Notes = append(c.Notes, fmt.Sprintf("reading, %d documents: %s", part.docs, note))
	}
	b.say("%s: finding the best way to insert", c.Name())
	part := w.data.part(trialSize(w.data.docs))
	connections := []int{2, 4, 8, 16}
	if w.rtt > 0 {
		connections = []int{8, 16, 32, 64}
	}
	var note string
	w.write, note, err = choose(ctx, part.docs, grid(connections, []int{128 << 10, 512 << 10, 2 << 20}), func(ctx context.Context, s settings) (time.Duration, error) {
		if err := w.empty(ctx, nil); err != nil {
			return 0, err
		}
		began := time.Now()
		err := insert(ctx, w.target, part, s)
		return time.Since(began), err
	})
	c.Notes = append(c.Notes, fmt.Sprintf("inserting, %d documents: %s", part.docs, note))
	return err
}

// empty makes the target's collections new and empty.
func (w *fullWork) empty(ctx context.Context, indexes []index) error {
	if err := w.target.clear(ctx); err != nil {
		return err
	}
	return w.target.create(ctx, w.data.collections, indexes)
}

// chill restarts the source's servers where the scenario wants them cold.
func (w *fullWork) chill(ctx context.Context) error {
	if !w.cold {
		return nil
	}
	return w.source.restart(ctx)
}

func (w *fullWork) contenders(ctx context.Context) []contender {
	var all []contender
	switch {
	case w.rtt > 0:
		all = append(all, w.insertOnly())
	case len(w.indexes) > 0:
		all = append(all, w.ceiling("ceiling, indexes after", nil, w.indexes), w.ceiling("ceiling, indexes before", w.indexes, nil))
	default:
		all = append(all, w.ceiling("ceiling", nil, nil))
		if w.target.lab != nil && !w.cold {
			all = append(all, w.withoutOplog())
		}
	}
	all = append(all, w.sync(ctx))
	for _, p := range w.o.Peers {
		if x, ok := w.peer(p); ok {
			all = append(all, x)
		}
	}
	return all
}

// ceiling reads and inserts, one after the other.
func (w *fullWork) ceiling(name string, before, after []index) contender {
	how := "read: " + w.read.String() + "; insert: " + w.write.String()
	if len(after) > 0 {
		how += "; then createIndexes, at most three at once"
	}
	return contender{
		name: name, kind: KindCeiling, how: how,
		prepare: func(ctx context.Context) error {
			if err := w.chill(ctx); err != nil {
				return err
			}
			return w.empty(ctx, before)
		},
		run: func(ctx context.Context, m *meter) error {
			if err := m.part("read", func() error { return readAll(ctx, w.source, w.data, w.read) }); err != nil {
				return err
			}
			if err := m.part("insert", func() error { return insert(ctx, w.target, w.data, w.write) }); err != nil {
				return err
			}
			if len(after) == 0 {
				return nil
			}
			return m.part("index", func() error {
				for c := range w.data.collections {
					if err := w.target.index(ctx, c, after); err != nil {
						return err
					}
				}
				return nil
			})
		},
		check: w.complete,
	}
}

// insertOnly is the ceiling of a slow link: reading goes on meanwhile.
func (w *fullWork) insertOnly() contender {
	return contender{
		name: "ceiling", kind: KindCeiling, how: "insert: " + w.write.String(),
		prepare: func(ctx context.Context) error { return w.empty(ctx, nil) },
		run: func(ctx context.Context, m *meter) error {
			return m.part("insert", func() error { return insert(ctx, w.target, w.data, w.write) })
		},
		check: w.complete,
	}
}

// unreplicatedDB is the database whose writes a server does not put into its
// oplog.
const unreplicatedDB = "local"

// withoutOplog inserts where the server writes no oplog, as a member in its
// initial sync does not either: no client of a replica set can be that cheap.
func (w *fullWork) withoutOplog() contender {
	return contender{
		name: "no oplog", kind: KindReference,
		how: "insert alone, into the database " + unreplicatedDB + ", whose writes make no oplog entries: " + w.write.String(),
		prepare: func(ctx context.Context) error {
			if err := w.dropUnreplicated(ctx); err != nil { // of a round that failed
				return err
			}
			return w.target.clear(ctx)
		},
		run: func(ctx context.Context, m *meter) error {
			return m.part("insert", func() error { return insertInto(ctx, w.target, unreplicatedDB, w.data, w.write) })
		},
		check: w.dropUnreplicated, // how many were inserted has been seen to; nobody else drops them
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

// complete checks the number of documents on the target.
func (w *fullWork) complete(ctx context.Context) error {
	n, err := w.target.count(ctx, w.data.collections)
	if err == nil && n != int64(w.data.docs) {
		err = fmt.Errorf("the target has %d of %d documents", n, w.data.docs)
	}
	return err
}

// sync is millrace.
func (w *fullWork) sync(context.Context) contender {
	args := w.millraceSync("--until", "caught-up")
	return contender{
		name: "millrace", kind: KindMillrace, how: w.commandLine(args),
		prepare: func(ctx context.Context) error {
			if err := w.chill(ctx); err != nil {
				return err
			}
			return w.target.clear(ctx)
		},
		run:   func(ctx context.Context, m *meter) error { return w.runMillrace(ctx, w.site, m, args) },
		check: w.complete,
	}
}
