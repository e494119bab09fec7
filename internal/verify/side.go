package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/wire"
)

type side struct {
	schema.Collection // NS is where the documents are
	e                 *Engine
	i                 int // source or target
	exists            bool
	unsized           bool          // Count and Bytes are not known
	order             scan.Strategy // in the order of _id

	on     *shards.Shard                         // the side is what this shard has; nil is all of the cluster
	owned  *ownership.Filter                     // and owns; nil is all that it has
	chosen func(doc []byte) bool                 // nil keeps all
	mapped func(dst, doc []byte) ([]byte, error) // nil takes them as they are

	history bool // it holds versions, the newest of which are its documents
	sharded bool

	asOf bson.Timestamp // it is read as it was at that time; zero is now
	uuid bson.Binary    // of a sharded cluster's collection: its routers take names alone
}

func (s *side) choose(p *Pair) {
	mapped, stripped := p.Comparer()
	if s.i == source {
		s.chosen, s.mapped = p.Keep(nil), mapped
		return
	}
	s.chosen, s.mapped, s.history = p.Unmarked(), stripped, p.History
}

func (s *side) cluster() *mongo.Cluster {
	if s.on != nil {
		return s.on.Cluster
	}
	return s.e.clusters[s.i]
}

// advance makes all further reads see at least what both sides have now. It waits until that is
// majority-committed.
func (e *Engine) advance(ctx context.Context) error {
	return both(ctx, func(ctx context.Context, i int) error {
		c := e.clusters[i]
		var at bson.Timestamp
		var err error
		switch c.Info.Kind {
		case mongo.KindReplicaSet:
			at, err = e.committed(ctx, c)
		case mongo.KindSharded:
			at, err = e.routersTime(ctx, i)
		default:
			return nil
		}
		if err != nil {
			return err
		}
		e.at[i].Store(&at)
		if of := e.shards[i].Load(); of != nil {
			at := map[string]bson.Timestamp{}
			var mu sync.Mutex
			err := of.Cluster().Each(ctx, func(ctx context.Context, n int) error {
				now, err := e.committed(ctx, of.Cluster().Shards[n].Cluster)
				mu.Lock()
				defer mu.Unlock()
				at[of.Cluster().Shards[n].Name] = now
				return err
			})
			if err == nil {
				e.shardsAt[i].Store(&at)
			}
			return err
		}
		return nil
	})
}

func (e *Engine) committed(ctx context.Context, c *mongo.Cluster) (at bson.Timestamp, err error) {
	slow := time.AfterFunc(10*time.Second, func() {
		e.o.Log.Warn("still waiting until what the primary has is majority-committed", "cluster", c.Address())
	})
	defer slow.Stop()
	err = again(ctx, e.o.Log, "learn the position of "+c.Address(), func() error {
		now, err := c.Committed(ctx)
		at = now.TS
		return err
	})
	return at, err
}

// side describes one of a pair. A missing collection may be one whose drop rolls back: its absence
// has to be seen for good.
func (e *Engine) side(ctx context.Context, i int, ns string) (s side, err error) {
	if s, err = e.describe(ctx, i, ns); err == nil && !s.exists {
		err = e.clusters[i].Seen(ctx, func() error {
			s, err = e.describe(ctx, i, ns)
			return err
		})
	}
	return s, err
}

// errNoDocuments is for views, and for time series by their own names.
var errNoDocuments = errors.New("holds no documents itself")

func (e *Engine) describe(ctx context.Context, i int, ns string) (side, error) {
	s := e.newSide(i, ns)
	c := e.clusters[i]
	db, coll := mongo.SplitNS(ns)
	infos, err := e.listed(ctx, i, db, coll)
	if err != nil || len(infos) == 0 {
		return s, mongo.Wrap(err, "describe %s on %s", ns, c.Address())
	}
	if err := s.takes(infos[0]); err != nil {
		return s, err
	}
	return s, s.measure(ctx)
}

func (e *Engine) newSide(i int, ns string) side {
	return side{e: e, i: i, Collection: schema.Collection{NS: ns, Type: schema.TypeCollection}}
}

// listed lists collections by a condition on their names. One reply has all of describedAtOnce names.
func (e *Engine) listed(ctx context.Context, i int, db string, name any) (infos []bson.Raw, err error) {
	raw, err := e.clusters[i].Command(ctx, db, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "name", Value: name}}}, {Key: "cursor", Value: bson.D{
			{Key: "batchSize", Value: describedAtOnce + 1}}}})
	if err != nil {
		return nil, err
	}
	batch, _ := raw.Lookup("cursor", "firstBatch").ArrayOK()
	values, err := batch.Values()
	for _, v := range values {
		info, _ := v.DocumentOK()
		infos = append(infos, info)
	}
	return infos, err
}

// takes takes over what a listing says of the collection.
func (s *side) takes(info bson.Raw) error {
	c := s.cluster()
	if typ, _ := info.Lookup("type").StringValueOK(); typ != "collection" {
		return mongo.WithHint(fmt.Errorf("%s on %s is a %s, which %w", s.NS, c.Address(), typ, errNoDocuments),
			"compare the collections that hold documents; of a time-series collection that is system.buckets.<name>")
	}
	s.exists = true
	s.Options, _ = info.Lookup("options").DocumentOK()
	if c.Info.Kind == mongo.KindSharded {
		s.uuid.Subtype, s.uuid.Data, _ = info.Lookup("info", "uuid").BinaryOK()
	}
	_, s.IDIndex = info.Lookup("idIndex").DocumentOK()
	s.order = scan.ByOrder(&s.Collection, c.Info)
	return nil
}

func (s *side) measure(ctx context.Context) (err error) {
	c := s.cluster()
	s.unsized = false
	if c.Info.Kind != mongo.KindSharded {
		s.Count, s.Bytes, err = c.DataSize(ctx, s.NS)
		return err
	}
	db, coll := mongo.SplitNS(s.NS)
	raw, err := c.Command(ctx, db, bson.D{{Key: "collStats", Value: coll}})
	if err != nil {
		return fmt.Errorf("size of %s on %s: %w", s.NS, c.Address(), err)
	}
	s.Bytes, s.Count = scan.SizeOf(raw)
	s.sharded, _ = raw.Lookup("sharded").BooleanOK()
	return nil
}

// averageSize is in bytes, never 0.
func (s *side) averageSize() int { return int(max(s.Bytes/max(s.Count, 1), 16)) }

// concern is the read concern, if the server knows it. A majority read alone may be behind what was
// acknowledged long ago.
func (s *side) concern() bson.D {
	if s.cluster().Info.Kind == mongo.KindStandalone {
		return nil
	}
	if !s.asOf.IsZero() {
		return bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: s.asOf}}
	}
	var after bson.Timestamp
	if s.on != nil {
		if at := s.e.shardsAt[s.i].Load(); at != nil {
			after = (*at)[s.on.Name]
		}
	} else if at := s.e.at[s.i].Load(); at != nil {
		after = *at
	}
	return scan.Majority(after)
}

// read runs fn over a connection to the given member, which record ids belong to, or to any that
// serves reads. A missing collection is not read.
func (s *side) read(ctx context.Context, m scan.Member, fn func(r *scan.Reader) error) error {
	if !s.exists {
		return nil
	}
	r, err := s.reader(ctx, m)
	if err == nil {
		defer r.Conn.Release()
		err = fn(r)
	}
	return s.failed(err)
}

func (s *side) failed(err error) error {
	return mongo.Wrap(err, "read %s on %s", s.NS, s.cluster().Address())
}

// reader takes a connection, which the caller releases. A primary knows for certain what its shard
// owns, and keeps what it gave away as long as a cursor reads it.
func (s *side) reader(ctx context.Context, m scan.Member) (*scan.Reader, error) {
	to := s.cluster().Reader()
	switch {
	case m != (scan.Member{}):
		to = wire.ByAddress(m.Node)
	case s.owned != nil:
		to = wire.Primary()
	}
	conn, err := s.cluster().Checkout(ctx, to)
	if err != nil {
		return nil, err
	}
	if m != (scan.Member{}) {
		if err := m.Lives(ctx, conn); err != nil {
			conn.Release()
			return nil, err
		}
	}
	r := &scan.Reader{Conn: conn, Concern: s.concern(), Owned: s.owned, Reopened: func(cause error) {
		s.e.o.Log.Warn("cursor opened again", "ns", s.NS, "cause", cause)
	}}
	if s.routed() {
		r.Routers, r.Fresh = s.e.routers[s.i], s.fresh(r)
	}
	return r, nil
}

func (s *side) want(bytes int, idsOnly bool) scan.Want {
	size := s.averageSize()
	if idsOnly {
		size = min(size, 64)
	}
	return scan.Want{Batch: max(bytes/size, 2), IDsOnly: idsOnly, Keep: s.chosen, Map: s.mapped}
}

func (s *side) walk(ctx context.Context, sl scan.Slice, want scan.Want, fn func(p *scan.Part) error) error {
	return s.forgotten(s.read(ctx, sl.Member, func(r *scan.Reader) error {
		w := r.Walk(&s.Collection, &sl, want)
		defer w.Close(ctx)
		return s.handOver(ctx, w, fn)
	}))
}

func (s *side) handOver(ctx context.Context, w *scan.Walk, fn func(p *scan.Part) error) error {
	for {
		p, err := w.Next(ctx)
		if err != nil || p == nil {
			return err
		}
		if err := s.e.rate.Wait(ctx, 0, int64(p.Size)); err != nil {
			return err
		}
		if err := fn(p); err != nil || p.Last {
			return err
		}
	}
}

func errMalformed(ns string) error {
	return mongo.WithHint(fmt.Errorf("a document of %s is malformed or has no _id", ns),
		"run validate on the collection; the server's storage may be damaged")
}

// appendID appends the key of a document's _id: its type byte and its bytes.
func appendID(dst, doc []byte) ([]byte, bool) {
	id := bsonraw.IDOf(doc)
	if id.Type == 0 {
		return dst, false
	}
	return bsonraw.AppendID(dst, id), true
}

func idValue(key string) bson.RawValue {
	return bsonraw.RawValue(bsonraw.KeyID(key))
}

func keyOf(a, b []byte) string {
	if a == nil {
		a = b
	}
	key, _ := appendID(nil, a)
	return string(key)
}

func sideName(i int) string { return [...]string{"source", "target"}[i] }

// openShards opens the shards behind a router, unless the side is to be read through its routers.
func (e *Engine) openShards(ctx context.Context, i int, spec *Spec) (*origin.Sharded, error) {
	c := e.clusters[i]
	uri, given := [...]string{spec.Source, spec.Target}[i], [...]map[string]string{spec.SourceShards, spec.TargetShards}[i]
	if c.Info.Kind != mongo.KindSharded {
		if len(given) > 0 {
			return nil, mongo.WithHint(fmt.Errorf("the %s has no shards: it is a %s", sideName(i), c.Info.Kind),
				"leave out --"+sideName(i)+"-shard")
		}
		return nil, nil
	}
	e.via[i] = [...]origin.Via{spec.SourceVia, spec.TargetVia}[i]
	of, why, err := origin.OpenShards(ctx, c, e.via[i], shards.Options{URI: uri, Shards: given,
		Left: spec.ShardsLeft && i == source, Mongo: mongo.Options{AppName: appName}, Data: true})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", sideName(i), err)
	case of == nil:
		e.routed(i, why)
		return nil, nil
	}
	e.o.Log.Info("shards are read directly", "side", sideName(i), "shards", len(of.Cluster().Shards))
	e.shards[i].Store(of)
	return of, nil
}

// errUnread reports that shards cannot be read directly.
type errUnread struct{ error }

func (e errUnread) Unwrap() error { return e.error }

// unread makes the next tries read a side through its routers if a shard refuses what they allow.
func (e *Engine) unread(i int, err error) error {
	_, joined := errors.AsType[errUnread](err)
	if !joined && !mongo.IsCode(err, mongo.CodeUnauthorized) || e.via[i] == origin.ViaShards {
		return err
	}
	if e.shards[i].Swap(nil) != nil {
		e.routed(i, err)
	}
	return mongo.Retry("shards cannot be read directly", err, "")
}

func (e *Engine) note(text string) {
	e.findings.mu.Lock()
	defer e.findings.mu.Unlock()
	e.findings.notes = append(e.findings.notes, text)
}

func sameShards(a, b *origin.Sharded) bool {
	if a == nil || b == nil {
		return false
	}
	for _, x := range a.Cluster().Shards {
		for _, y := range b.Cluster().Shards {
			if x.Same(y.Cluster) {
				return true
			}
		}
	}
	return false
}
