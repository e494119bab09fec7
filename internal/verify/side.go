package verify

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// access is how one side's documents are walked in _id order.
type access uint8

const (
	// byIndex: min, max and hint {_id:1} on the _id index, or on the cluster
	// key of a collection clustered by _id (6.0 treats both alike).
	byIndex access = iota
	// byFilter: a range filter on a natural scan. Buckets of 5.0 are clustered
	// by _id but refuse the hint; their ids are all ObjectIDs and the filter
	// becomes bounds of the record id.
	byFilter
	// bySort: no _id index; the server sorts the whole collection.
	bySort
)

// side is one of the two collections of a pair, as its server describes it.
type side struct {
	cluster   *mongo.Cluster
	ns        string
	db, coll  string
	exists    bool
	capped    bool
	clustered bool
	access    access
	collation bson.Raw
	docs      int64 // estimates
	bytes     int64
	position  *position
}

// position is what a side's reads have to see at least. Zero is nothing.
type position struct {
	at atomic.Pointer[bson.Timestamp]
}

// advance waits until all that the primary has now is majority-committed: from
// then on reads see it.
func (p *position) advance(ctx context.Context, c *mongo.Cluster, log *slog.Logger) error {
	if c.Info.Kind != mongo.KindReplicaSet {
		return nil
	}
	const patience = 10 * time.Second
	slow := time.AfterFunc(patience, func() {
		log.Warn("still waiting until what the primary has is majority-committed", "cluster", c.Address())
	})
	defer slow.Stop()
	return retry(ctx, log, "learn the position of "+c.Address(), func() error {
		at, err := c.Committed(ctx)
		if err == nil {
			p.at.Store(&at.TS)
		}
		return err
	})
}

// describe reads what listCollections, listIndexes and collStats know.
func describe(ctx context.Context, c *mongo.Cluster, ns string) (side, error) {
	s := side{cluster: c, ns: ns}
	s.db, s.coll = mongo.SplitNS(ns)
	raw, err := c.Command(ctx, s.db, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "name", Value: s.coll}}}})
	if err != nil {
		return s, fmt.Errorf("describe %s on %s: %w", ns, c.Address(), err)
	}
	info, err := raw.LookupErr("cursor", "firstBatch", "0")
	if err != nil {
		return s, nil //nolint:nilerr // an empty listing: there is no such collection
	}
	doc, _ := info.DocumentOK()
	if typ, _ := doc.Lookup("type").StringValueOK(); typ != "collection" {
		return s, mongo.WithHint(fmt.Errorf("%s on %s is a %s", ns, c.Address(), typ),
			"compare the collections that hold documents; of a time-series collection that is system.buckets.<name>")
	}
	s.exists = true
	s.capped, _ = doc.Lookup("options", "capped").BooleanOK()
	s.collation, _ = doc.Lookup("options", "collation").DocumentOK()
	_, cerr := doc.LookupErr("options", "clusteredIndex")
	s.clustered = cerr == nil
	if err := s.chooseAccess(ctx); err != nil {
		return s, err
	}
	return s, s.measure(ctx)
}

func (s *side) chooseAccess(ctx context.Context) error {
	if s.clustered {
		if !s.cluster.Info.Version.AtLeast(5, 3) {
			s.access = byFilter
		}
		return nil
	}
	raw, err := s.cluster.Command(ctx, s.db, bson.D{{Key: "listIndexes", Value: s.coll},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 1000}}}})
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		s.exists = false
		return nil
	}
	if err != nil {
		return fmt.Errorf("list indexes of %s on %s: %w", s.ns, s.cluster.Address(), err)
	}
	s.access = bySort
	arr, _ := raw.Lookup("cursor", "firstBatch").ArrayOK()
	vals, err := arr.Values()
	for _, v := range vals {
		ix, _ := v.DocumentOK()
		if name, _ := ix.Lookup("name").StringValueOK(); name == "_id_" {
			s.access = byIndex
		}
	}
	return err
}

func (s *side) measure(ctx context.Context) error {
	raw, err := s.cluster.Command(ctx, s.db, bson.D{{Key: "collStats", Value: s.coll}})
	if err != nil {
		return fmt.Errorf("size of %s on %s: %w", s.ns, s.cluster.Address(), err)
	}
	s.bytes, _ = raw.Lookup("size").AsInt64OK()
	s.docs, _ = raw.Lookup("count").AsInt64OK()
	if n, ok := raw.Lookup("timeseries", "bucketCount").AsInt64OK(); ok && s.docs == 0 {
		s.docs = n
	}
	return nil
}

// averageSize of a document in bytes, never 0.
func (s *side) averageSize() int { return int(max(s.bytes/max(s.docs, 1), 16)) }

// majority adds the read concern where the server knows it. A majority read
// alone may be behind what was acknowledged long ago.
func (s *side) majority(cmd bson.D) bson.D {
	if s.cluster.Info.Kind == mongo.KindStandalone {
		return cmd
	}
	concern := bson.D{{Key: "level", Value: "majority"}}
	if s.position != nil {
		if at := s.position.at.Load(); at != nil {
			concern = append(concern, bson.E{Key: "afterClusterTime", Value: *at})
		}
	}
	return append(cmd, bson.E{Key: "readConcern", Value: concern})
}

// bounds is a range of _id: from min, or the beginning, up to but without max,
// or to the end. Given min but no max, a server stops before a document whose
// _id is MaxKey if it walks an index and includes it if the collection is
// clustered; so MaxKey bounds the last range, and is a range of its own.
type bounds struct {
	min, max *bson.RawValue
	maxKey   bool
}

func lastObjectID() bson.ObjectID {
	var id bson.ObjectID
	for i := range id {
		id[i] = 0xFF
	}
	return id
}

func maxKey() bson.RawValue { return bson.RawValue{Type: bson.TypeMaxKey} }

func idDoc(v bson.RawValue) bson.D { return bson.D{{Key: "_id", Value: v}} }

// rangeCommand reads a range of this side in _id order.
func (s *side) rangeCommand(b bounds, batch int) bson.D {
	if s.access == bySort {
		return s.majority(bson.D{{Key: "aggregate", Value: s.coll},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}}},
			{Key: "allowDiskUse", Value: true},
			{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: batch}}}})
	}
	cmd := bson.D{{Key: "find", Value: s.coll}, {Key: "batchSize", Value: batch}}
	if s.access == byFilter {
		f := bson.D{}
		if b.min != nil {
			f = append(f, bson.E{Key: "$gte", Value: *b.min})
		}
		if b.max != nil && b.max.Type != bson.TypeMaxKey { // ids are ObjectIDs
			f = append(f, bson.E{Key: "$lt", Value: *b.max})
		}
		if b.maxKey { // an empty range, cheap to find empty
			f = bson.D{{Key: "$gt", Value: lastObjectID()}}
		}
		if len(f) > 0 {
			cmd = append(cmd, bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: f}}})
		}
		return s.majority(append(cmd, bson.E{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}))
	}
	cmd = append(cmd, bson.E{Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}})
	if b.maxKey {
		return s.majority(append(cmd, bson.E{Key: "filter", Value: idDoc(maxKey())}))
	}
	if b.min != nil {
		cmd = append(cmd, bson.E{Key: "min", Value: idDoc(*b.min)})
	}
	if b.max != nil {
		cmd = append(cmd, bson.E{Key: "max", Value: idDoc(*b.max)})
	}
	return s.majority(cmd)
}

func sameCollation(a, b *side) bool { return bytes.Equal(a.collation, b.collation) }

// checkout takes a connection to the member that serves this side's reads.
func (s *side) checkout(ctx context.Context) (*wire.Conn, error) {
	conn, err := s.cluster.Pool.Checkout(ctx, s.cluster.Reader())
	if err != nil {
		return nil, fmt.Errorf("read %s on %s: %w", s.ns, s.cluster.Address(), err)
	}
	return conn, nil
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

// idValue is the _id behind a key made by appendID.
func idValue(key string) bson.RawValue {
	return bsonraw.RawValue(bsonraw.KeyID(key))
}
