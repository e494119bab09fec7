package mongosink_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/stream/sinktest"
)

// An Engine is a sink, with all that one may have.
var (
	_ stream.SchemaSink   = (*mongosink.Engine)(nil)
	_ stream.ConflictSink = (*mongosink.Engine)(nil)
)

// served is a target on a server.
type served struct {
	t       *testing.T
	dst     *mongo.Cluster
	options func() mongosink.Options
}

func (s *served) Open(pos stream.Position, overlap mongo.OpTime) (stream.Sink, error) {
	// Nothing that the sink before has under way may take effect any more.
	app := fmt.Sprint("conformance ", time.Now().UnixNano())
	if err := s.dst.RenewConnections(s.t.Context(), app); err != nil {
		return nil, err
	}
	earlier := func(name string) bool { return strings.HasPrefix(name, "conformance ") && name != app }
	if _, err := s.dst.EndConnections(s.t.Context(), earlier, func([]mongo.Connection) {}, bson.D{{Key: "isMaster", Value: 1}}); err != nil {
		return nil, err
	}
	o := s.options()
	if txn := o.Write.Transactions; txn != nil {
		if err := s.dst.KillSession(s.t.Context(), txn.SessionID()); err != nil {
			return nil, err
		}
	}
	o.Overlap.End = overlap
	o.Names.Traits = func(context.Context, string) (mongosink.Traits, error) { return mongosink.Traits{}, nil }
	o.Schema = func(ctx context.Context, ev *stream.Event, _ mongo.OpTime, _ bool) error {
		db, coll := mongo.SplitNS(ev.Change.NS)
		return s.dst.Client.Database(db).Collection(coll).Drop(ctx)
	}
	return mongosink.New(s.dst, pos, o), nil
}

func (s *served) Documents(ctx context.Context, ns string) (docs []bson.Raw, err error) {
	db, coll := mongo.SplitNS(ns)
	cur, err := s.dst.Client.Database(db).Collection(coll).Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	return docs, cur.All(ctx, &docs)
}

// TestConformance runs the suite of all sinks on a server, with one partition of
// single operations, and with many that fold, coalesce and send transactions.
func TestConformance(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	txn, err := p.dst.NewTransactions()
	if err != nil {
		t.Fatal(err)
	}
	defer txn.End(context.WithoutCancel(t.Context()))
	for name, options := range map[string]func() mongosink.Options{
		"single": func() mongosink.Options {
			return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1, BatchOps: 1, Coalesce: -1}}
		},
		"many": func() mongosink.Options {
			return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1 + rand.IntN(8), BatchOps: 1 + rand.IntN(50), Coalesce: 1 << rand.IntN(16), InFlight: 1 << rand.IntN(20)},
				Write: write.Options{Transactions: txn, TransactionOps: 2}}
		},
		"letters": func() mongosink.Options {
			return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 3, BatchOps: 10}, Policy: mongosink.Policy{Letters: deadletter.New(p.dst, "conform", nil), OnConflict: deadletter.Skip}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Target {
				if err := p.dst.Client.Database("sinktest").Drop(t.Context()); err != nil {
					t.Fatal(err)
				}
				return &served{t: t, dst: p.dst, options: options}
			})
		})
	}
}
