package verify

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
)

// owned is a sharded collection of which each shard returns what it owns.
//
// A scan must return all documents and no orphan: a missed document of the source, or a counted
// orphan of the target, would hide a loss that no sum shows. So all shards are read with one
// ownership.
//
// A cursor keeps what its shard owned when it was opened. A shard opens it only for its own
// version, and each move of a chunk gives donor and recipient new versions. So when all shards take
// the versions of one table, each returns exactly what the table says. All cursors are opened
// before anything is read. If one shard refuses, all are opened again with a newer table. Reading
// moved chunks again, as a copy does, does not help: a document cannot be removed from the sums.
//
// A user may change a shard key meanwhile, and so move a document to a shard that was read. So
// while writes go on, all shards are read as of one time, as long as they keep history (five
// minutes by default). After that they are read as they are, and the report says so.
type owned struct {
	side
	of      *origin.Sharded
	readers int
	cuts    map[string][]scan.Slice // slices of shards
}

// cut splits what each shard owns. All slices are read at the same time: servers end cursors that
// wait.
func (l *owned) cut(ctx context.Context, table *ownership.Table) error {
	owners := table.Owners()
	readers := (min(l.readers, l.e.readersOf(l.Bytes)) + len(owners) - 1) / len(owners)
	cuts := make([][]scan.Slice, len(owners))
	err := l.each(ctx, owners, func(ctx context.Context, i int, on *shards.Shard) (err error) {
		cuts[i], err = l.shard(on, l.of.Owned(on.Name, l.uuid), len(owners)).cut(ctx, readers)
		return err
	})
	for i, name := range owners {
		l.cuts[name] = cuts[i]
	}
	return err
}

func (l *owned) each(ctx context.Context, names []string,
	do func(ctx context.Context, i int, on *shards.Shard) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, name := range names {
		on, err := shardNamed(l.of, name)
		if err != nil {
			return err
		}
		g.Go(func() error { return mongo.Wrap(do(ctx, i, on), "shard %s", name) })
	}
	return g.Wait()
}

// time returns the time as of which shards are read; zero is none. It is later than the loaded
// table: a shard that takes its version had at that time what the table says.
func (l *owned) time(ctx context.Context) (at bson.Timestamp, err error) {
	if l.of.Cluster().Before(5, 0) && l.e.o.Online && l.e.live[l.i].CompareAndSwap(false, true) {
		l.e.noteLive(l.i, ", older than 5.0,")
	}
	if !l.e.o.Online || l.e.live[l.i].Load() {
		return at, nil
	}
	newest, err := l.of.Cluster().Committed(ctx)
	if err == nil {
		err = l.of.Cluster().Each(ctx, func(ctx context.Context, i int) error {
			return l.of.Cluster().Pass(ctx, l.of.Cluster().Shards[i], newest)
		})
	}
	return newest.TS, err
}

type open struct {
	*side
	slice  scan.Slice
	reader *scan.Reader
	walk   *scan.Walk
}

func (o *open) close(ctx context.Context) {
	if o.walk != nil {
		o.walk.Close(ctx)
	}
	if o.reader != nil {
		o.reader.Conn.Release()
	}
}

// staleTimeout bounds the search for versions that all shards take. It succeeds at once unless
// chunks move all the time.
const staleTimeout = time.Minute

func (l *owned) scan(ctx context.Context, _ int, begin func() reading) error {
	return l.e.unread(l.i, l.read(ctx, begin))
}

func (l *owned) read(ctx context.Context, begin func() reading) error {
	var all []*open
	defer func() {
		for _, o := range all {
			o.close(ctx)
		}
	}()
	for began := time.Now(); ; {
		table, err := l.of.Table(ctx, l.uuid)
		if err != nil {
			return l.changed(err)
		}
		at, err := l.time(ctx)
		if err != nil {
			return err
		}
		if all, err = l.openAll(ctx, table, at, begin); err == nil {
			break
		}
		switch {
		case !ownership.Stale(err):
			return l.changed(err)
		case time.Since(began) > staleTimeout:
			return mongo.Retry(l.NS+" moves from shard to shard all the time", err, "")
		}
		if err := pace.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, o := range all {
		g.Go(func() error { return o.failed(o.handOver(ctx, o.walk, o.scanned(begin()))) })
	}
	return l.changed(g.Wait())
}

// openAll opens the cursors of all slices, or none. If a shard refuses the table's version,
// [ownership.Stale] reports the error.
func (l *owned) openAll(ctx context.Context, table *ownership.Table, at bson.Timestamp,
	begin func() reading) ([]*open, error) {
	all, err := l.parts(ctx, table, at)
	if err != nil {
		return nil, err
	}
	// Together they hold what the readers of another collection do.
	limit := l.e.limits.scan * l.readers / max(l.readers, len(all))
	want := l.want(limit, begin().idsOnly)
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, o := range all {
		wg.Go(func() { errs[i] = o.failed(o.begin(ctx, want)) })
	}
	wg.Wait()
	var stale error
	for _, err := range errs {
		if err != nil && (stale == nil || ownership.Stale(stale)) {
			stale = err
		}
	}
	if stale != nil {
		for _, o := range all {
			o.close(ctx)
		}
		return nil, stale
	}
	return all, nil
}

func (l *owned) parts(ctx context.Context, table *ownership.Table, at bson.Timestamp) (all []*open, err error) {
	owners := table.Owners()
	byShard := make([][]*open, len(owners))
	err = l.each(ctx, owners, func(ctx context.Context, i int, on *shards.Shard) error {
		one := l.shard(on, table.Filter(on.Name), 1)
		one.asOf = at
		parts, err := one.rejoin(ctx, l.cuts[on.Name])
		for _, sl := range parts {
			byShard[i] = append(byShard[i], &open{side: one, slice: sl})
		}
		return err
	})
	return slices.Concat(byShard...), err
}

// rejoin joins the slices of a cut at bounds whose documents have moved: documents around such a
// bound would be read twice.
func (s *side) rejoin(ctx context.Context, cut []scan.Slice) (parts []scan.Slice, err error) {
	if len(cut) == 0 { // it owned nothing when the others were cut
		return []scan.Slice{s.entire()}, nil
	}
	if len(cut) == 1 {
		return cut, nil
	}
	err = s.read(ctx, cut[0].Member, func(r *scan.Reader) (err error) {
		parts, err = r.Rejoin(ctx, &s.Collection, cut)
		return err
	})
	return parts, err
}

func (o *open) begin(ctx context.Context, want scan.Want) (err error) {
	if o.reader, err = o.side.reader(ctx, o.slice.Member); err != nil {
		return err
	}
	o.walk = o.reader.Walk(&o.Collection, &o.slice, want)
	return o.walk.Open(ctx)
}

// changed makes err one that is retried if the collection, or the owners of its chunks, changed.
func (l *owned) changed(err error) error {
	if scan.Forgotten(err) {
		return l.e.forgotten(l.i, l.NS, err)
	}
	if ownership.Stale(err) || mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return mongo.Retry(l.NS+" has changed its shards", err, "")
	}
	return err
}
