package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// seedCase is one place of the matrix.
type seedCase struct{ collections, indexes int }

func (c seedCase) String() string { return itoa(c.collections) + "x" + itoa(c.indexes) }

// seedMatrix varies the indexes of one collection, and the collections of five indexes each.
func seedMatrix() []seedCase { return []seedCase{{1, 1}, {1, 2}, {1, 5}, {1, 10}, {10, 5}, {100, 5}} }

// seedCells are the places named as 1x5, five indexes on one collection; all of the matrix if none is.
func seedCells(names []string) ([]seedCase, error) {
	if len(names) == 0 {
		return seedMatrix(), nil
	}
	var cells []seedCase
	for _, name := range names {
		var c seedCase
		collections, indexes, _ := strings.Cut(name, "x")
		var errs [2]error
		c.collections, errs[0] = strconv.Atoi(collections)
		c.indexes, errs[1] = strconv.Atoi(indexes)
		if errors.Join(errs[:]...) != nil || c.collections < 1 || c.indexes < 0 || c.indexes > ycsbFields ||
			c.collections > 1000 {
			return nil, mongo.WithHint(fmt.Errorf("cell %q cannot be measured", name),
				"name cells as collections x indexes, such as 1x5: 1 to 1000 collections, up to "+itoa(ycsbFields)+" indexes")
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// The contenders of the scenario.
const (
	seedOnePass   = "one pass under the lock"
	seedTwoPass   = "millrace seed"
	seedLogical   = "logical initial sync"
	valueLocked   = "locked s"
	valueCopied   = "copied MB"
	valueCaught   = "caught up with MB"
	valueAgain    = "changed MB"
	valueCompared = "compared MB"
	valueStall    = "source stalled s"
)

// seeding is the experiment of a set that gets a new member, in each place of the matrix.
type seeding struct{}

func (seeding) run(ctx context.Context, b *bench, s scenario) error {
	if b.o.Servers.given() {
		return mongo.WithHint(
			errors.New("this measurement copies the files of servers and adds members, which is not done to given clusters"),
			"run it without --source-uri and --target-uri, on lab clusters")
	}
	if len(b.o.Seeds) > 0 {
		return b.reseed(ctx, s)
	}
	cells, err := seedCells(b.o.Cells)
	if err != nil {
		return err
	}
	for _, c := range cells {
		if err := b.seed(ctx, s, c); err != nil {
			return err
		}
	}
	return nil
}

// seed measures one case: a set of two members under light writes gets a third.
func (b *bench) seed(ctx context.Context, s scenario, sc seedCase) (err error) {
	data := dataset{ycsb(), b.o.Scale.of(seedDocs), sc.collections}
	indexes := fieldIndexes(sc.indexes)
	c := Case{
		Scenario: s.name, Variant: sc.String(), Ceiling: s.ceiling, Unit: "documents", Count: data.docs, Bytes: data.bytes(),
		Collections: sc.collections, Indexes: sc.indexes,
		Work: "a new member for a set that holds " + data.describe() + ", " + itoa(sc.indexes) + " secondary indexes on " +
			"100-byte fields in each, " + lightText + ", until it is SECONDARY and has applied what the primary had then",
	}
	b.say("%s: starting servers", c.Name())
	w := &seedWork{bench: b, data: data, indexes: indexes, cacheGB: b.cacheGB(data.bytes() * (2 + sc.indexes) / 2)}
	w.site = &site{source: &side{}, target: &side{}}
	defer func() { err = errors.Join(err, w.site.close()) }()
	err = w.source.open(ctx, false, lab.Options{Version: b.o.Servers.Version, Topology: "rs:2", CacheGB: w.cacheGB,
		OplogMB: seedOplogMB(data), Logger: b.o.Log})
	if err != nil {
		return err
	}
	b.say("%s: loading %s", c.Name(), data.describe())
	if err := w.source.load(ctx, data, indexes); err != nil {
		return err
	}
	if err := w.age(ctx); err != nil {
		return err
	}
	if c.DataBytes, c.DiskBytes, err = w.stored(ctx); err != nil {
		return err
	}
	stop := startLight(ctx, w.source, data)
	err = b.compete(ctx, w.site, c, w.contenders())
	err = errors.Join(err, stop(), w.dismiss(context.WithoutCancel(ctx)))
	if err == nil {
		b.report.Cases[len(b.report.Cases)-1].noteSeed()
	}
	return err
}

func (w *seedWork) contenders() []contender {
	all := []contender{w.onePass(), w.twoPasses(), w.logical()}
	for i := range all {
		all[i].run = w.stalls(all[i].run)
	}
	return all
}

const seedDocs = 200_000

// seedOplogMB is a tenth of the data, as in a set that has grown for years. A set just loaded would have as much
// oplog as data, which a seed copies and an initial sync does not.
func seedOplogMB(d dataset) int {
	const least = 100
	return max(d.bytes()/10>>20, least)
}

type seedWork struct {
	*bench
	*site
	data    dataset
	indexes []index
	cacheGB float64
	from    int // the member whose files are copied: the secondary
	new     *newcomer
	// replaces says that the new member is one of the set that has lost its data, and stays in it.
	replaces bool
}

// age makes a set just loaded look weeks old: the oplog's file shrinks, and pages are cached as they are on disk. A
// page that was filled in memory has megabytes, and each update rewrites much of it (130 MB a checkpoint, not 27).
func (w *seedWork) age(ctx context.Context) error {
	if err := w.chooseMember(ctx); err != nil {
		return err
	}
	if err := w.shrinkOplog(ctx); err != nil {
		return err
	}
	if err := w.source.restart(ctx); err != nil {
		return err
	}
	for _, n := range w.source.nodes {
		for c := range w.data.collections {
			_, err := n.Command(ctx, dataDB, bson.D{{Key: "aggregate", Value: collection(c)}, {Key: "cursor", Value: bson.D{}},
				{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "none", Value: 1}}}}}}})
			if err != nil {
				return fmt.Errorf("read %s into the cache: %w", collection(c), err)
			}
		}
	}
	return w.chooseMember(ctx)
}

func (w *seedWork) chooseMember(ctx context.Context) error {
	primary, err := w.source.lab.Primary(ctx)
	w.from = 1 - primary
	return err
}

// shrinkOplog gives back what the oplog's file does not need.
func (w *seedWork) shrinkOplog(ctx context.Context) error {
	if !w.source.Info.Version.AtLeast(4, 4) {
		return nil // takes it of no oplog
	}
	if _, err := w.source.nodes[w.from].Command(ctx, "local", bson.D{{Key: "compact", Value: "oplog.rs"}}); err != nil {
		return fmt.Errorf("compact the oplog: %w", err)
	}
	return nil
}

func (w *seedWork) member() *lab.Member { return w.source.lab.Members()[w.from] }

// prepare removes or stops the last round's member and takes checkpoints, so that each round begins alike.
func (w *seedWork) prepare(ctx context.Context) error {
	leave := w.dismiss
	if w.replaces {
		leave = w.stop
	}
	if err := leave(ctx); err != nil {
		return err
	}
	if err := w.caughtUp(ctx, w.source.nodes[w.from]); err != nil {
		return err
	}
	return w.source.settle(ctx)
}

// onePass copies the files under one lock, as is done by hand.
func (w *seedWork) onePass() contender {
	return contender{
		name: seedOnePass, kind: KindCeiling,
		how: "fsyncLock of the secondary, its files copied once (4 ranges of 8 MiB at a time, holes kept), " +
			"fsyncUnlock, fsync of the copy; no mongod is started on it", prepare: w.prepare,
		run: func(ctx context.Context, m *meter) error {
			to := filepath.Join(w.dir, "copy")
			defer os.RemoveAll(to)
			var copied int64
			err := m.part("copy under the lock", func() (err error) {
				return w.locked(ctx, m, func() error {
					copied, err = copyFiles(ctx, w.member().DBPath, to)
					return err
				})
			})
			if err != nil {
				return err
			}
			m.value(valueCopied, float64(copied)/1e6)
			return m.part("fsync", func() error { return syncFiles(to) })
		},
	}
}

func (w *seedWork) twoPasses() contender {
	joins := []string{"--join", "(its address)", "--join-votes", "0", "--join-priority", "0"}
	if w.replaces {
		joins = []string{"--replace", "(its address)"}
	}
	how := slices.Concat([]string{"seed", "local", "--from-uri", "(the secondary)", "--start"}, joins,
		[]string{"--", "mongod …"})
	return contender{
		name: seedTwoPass, kind: KindMillrace, how: commandLine(how), prepare: w.prepare, check: w.complete,
		run: func(ctx context.Context, m *meter) error {
			n, err := w.announce(ctx)
			if err != nil {
				return err
			}
			report := n.dir + ".json"
			joins[1] = n.host
			args := slices.Concat([]string{"seed", "local", "--from-uri", w.source.lab.DirectURI(w.from), "--from-dbpath",
				w.member().DBPath, "--to-dbpath", n.dir, "--set-uri", w.source.uri, "--start", "--report", report,
				"--output", "json", "--log-level", "warn"}, joins, []string{"--", n.program}, n.args)
			began := time.Now()
			err = toEnd(ctx, m, program{name: w.o.Millrace, args: args, disk: w.o.SeedDisk,
				env: append(n.env, "XDG_STATE_HOME="+w.dir)})
			err = errors.Join(err, n.adopt(report, m, time.Since(began).Seconds()))
			m.newMember(processCPU([]int{n.pid}))
			return err
		},
	}
}

// logical is the server's own way: an empty member copies documents and builds indexes.
func (w *seedWork) logical() contender {
	how := "a mongod is started on an empty directory and added to the set as soon as it listens, without vote and " +
		"priority"
	if w.replaces {
		how = "the stopped member's directory is emptied, and its mongod is started again"
	}
	return contender{
		name: seedLogical, kind: KindPeer, how: how, prepare: w.prepare, check: w.complete,
		run: func(ctx context.Context, m *meter) error {
			n, err := w.announce(ctx)
			if err != nil {
				return err
			}
			if err := m.part("empty", func() error { return os.RemoveAll(n.dir) }); err != nil {
				return err
			}
			if err := m.part("start", func() error { return n.start(ctx, w.o.SeedDisk) }); err != nil {
				return err
			}
			if !w.replaces {
				if err := m.part("add", func() error { return w.add(ctx, n.host) }); err != nil {
					return err
				}
			}
			err = m.part("initial sync", func() error {
				c, err := connectWhenUp(ctx, n.uri())
				if err != nil {
					return err
				}
				defer c.Close()
				return w.caughtUp(ctx, c)
			})
			m.round.ToolCPU = 0 // that of the bench, which only waits
			m.newMember(processCPU([]int{n.pid}))
			return err
		},
	}
}

func (w *seedWork) complete(ctx context.Context) error {
	c, err := connectWhenUp(ctx, w.new.uri())
	if err != nil {
		return err
	}
	defer c.Close()
	if ok, err := isSecondary(ctx, c); err != nil || !ok {
		return errors.Join(errors.New("the new member is not a secondary"), err)
	}
	if err := (&side{direct: c}).holds(ctx, "the new member", w.data); err != nil {
		return err
	}
	for i := range w.data.collections {
		n, err := (&side{direct: c}).built(ctx, i)
		if err != nil || n != len(w.indexes)+1 {
			return errors.Join(fmt.Errorf("%s of the new member has %d indexes, not %d", collection(i), n, len(w.indexes)+1),
				err)
		}
	}
	return nil
}

func (c *Case) noteSeed() {
	faster, _ := c.against(seedLogical, seedTwoPass)
	c.Notes = append(c.Notes, "logical initial sync takes "+figure(faster.Median)+" times as long as millrace seed ("+
		figure(faster.Min)+"-"+figure(faster.Max)+")")
	_, lock := c.against(seedTwoPass, seedOnePass)
	one, two := c.contender(seedOnePass), c.contender(seedTwoPass)
	c.Notes = append(c.Notes, "the lock of two passes is "+strconv.FormatFloat(lock.Median*100, 'f', 1, 64)+
		" % of that of one pass; the secondary applied nothing for "+
		figure(two.Values[valueStall].Median)+" s and "+figure(one.Values[valueStall].Median)+" s at most")
}

// against is how many times as long x took as y, and how many times as long it locked, over the rounds.
func (c *Case) against(x, y string) (time, locked Stat) {
	a, b := c.contender(x), c.contender(y)
	return StatOf(a.beside(b, func(a, b Round) float64 { return per(a.Seconds, b.Seconds) })),
		StatOf(a.beside(b, func(a, b Round) float64 { return per(a.Values[valueLocked], b.Values[valueLocked]) }))
}

// contender finds one by name; one without rounds when there is none.
func (c *Case) contender(name string) *Contender {
	if i := slices.IndexFunc(c.Contenders, func(x Contender) bool { return x.Name == name }); i >= 0 {
		return &c.Contenders[i]
	}
	return &Contender{}
}

const lightText = "while 100 documents a second are updated all over, and 100 inserted elsewhere"

// startLight updates a dataset's documents slowly until stop, and inserts into another collection.
func startLight(ctx context.Context, to *side, d dataset) (stop func() error) {
	return beside(ctx, func(ctx context.Context) error {
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for n := uint32(0); ; n++ {
			select {
			case <-ctx.Done():
				return nil
			case <-ticks.C:
			}
			if err := lightWrite(ctx, to, d, n); err != nil {
				return fmt.Errorf("write to the source: %w", err)
			}
		}
	})
}

func lightWrite(ctx context.Context, to *side, d dataset, n uint32) error {
	key := uint32(mix(uint64(n)) % uint64(d.docs))
	version := n + 1
	id, field := bson.Raw(d.shape.appendDoc(nil, key, nil)).Lookup("_id"), int(n)%d.shape.fields
	i, set := bsoncore.AppendDocumentStart(nil)
	set, err := bsoncore.AppendDocumentEnd(d.shape.field(d.shape, set, key, field, version), i)
	if err != nil {
		return err
	}
	concern := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}
	raw, err := to.direct.Command(ctx, dataDB,
		bson.D{{Key: "update", Value: collection(int(key) % d.collections)}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: id}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: bson.Raw(set)}}},
		}}}, concern})
	if err != nil {
		return err
	}
	if n, _ := raw.Lookup("n").AsInt64OK(); n != 1 {
		return fmt.Errorf("document %s is not in %s", id, collection(int(key)%d.collections))
	}
	_, err = to.direct.Command(ctx, dataDB, bson.D{{Key: "insert", Value: "light"}, {Key: "documents", Value: bson.A{
		bson.D{{Key: "pad", Value: bson.Binary{Data: d.shape.bytes(key, 0, version, ycsbFieldSize)}}}}}, concern})
	return err
}
