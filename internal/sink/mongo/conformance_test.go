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
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/sinktest"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// An Engine is a sink.
var _ stream.Sink = (*mongosink.Engine)(nil)

// served is a target on a server.
type served struct {
	t       *testing.T
	dst     *mongo.Cluster
	options func() mongosink.Options
}

// conformance begins the names of connections over which this test writes.
const conformance = mongo.TargetApp + " conformance "

// alone has what earlier sinks may still have under way have no effect any more.
func alone(ctx context.Context, c *mongo.Cluster) error {
	app := fmt.Sprint(conformance, time.Now().UnixNano())
	if err := c.RenewConnections(ctx, app); err != nil {
		return err
	}
	earlier := func(name string) bool { return strings.HasPrefix(name, conformance) && name != app }
	_, err := c.EndConnections(ctx, earlier, func([]mongo.Connection) {}, bson.D{{Key: "isMaster", Value: 1}})
	return err
}

// empty is a target that holds nothing, and stays so: what was cut before would
// write into it.
func empty(t *testing.T, c *mongo.Cluster, options func() mongosink.Options) *served {
	t.Helper()
	if err := alone(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Database("sinktest").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &served{t: t, dst: c, options: options}
}

func (s *served) Open(pos stream.Position, overlap mongo.OpTime) (stream.Sink, error) {
	if err := alone(s.t.Context(), s.dst); err != nil {
		return nil, err
	}
	o := s.options()
	if txn := o.Write.Transactions; txn != nil {
		if err := s.dst.KillSession(s.t.Context(), txn.SessionID()); err != nil {
			return nil, err
		}
	}
	o.Overlap.End = overlap
	o.Targets = alike{}
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

// blockInsert has the target's server keep the next insert for a while before it
// works on it. The result waits until it does.
func blockInsert(t *testing.T, c *mongo.Cluster, ns string, d time.Duration) (reached func()) {
	t.Helper()
	raw, err := c.Command(t.Context(), "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "namespace", Value: ns},
			{Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: d.Milliseconds()}}}})
	if err != nil {
		t.Fatal(err)
	}
	count, _ := raw.Lookup("count").AsInt64OK()
	return func() {
		t.Helper()
		if _, err := c.Command(t.Context(), "admin",
			bson.D{{Key: "waitForFailPoint", Value: "failCommand"}, {Key: "timesEntered", Value: count + 1},
				{Key: "maxTimeMS", Value: 60_000}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEarlierSink: what a sink had under way when it was stopped has no effect on
// the empty target of the next test.
func TestEarlierSink(t *testing.T) {
	t.Parallel()
	c, err := mongo.Connect(t.Context(), lab.ForTest(t, lab.Options{TestCommands: true}).URI(), mongo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	target := func() *served {
		return empty(t, c, func() mongosink.Options { return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1}} })
	}
	first := sinktest.NewHistory(1, 1).Events[:1]
	ns := first[0].NS
	sink, err := target().Open(stream.Position{}, mongo.OpTime{})
	if err != nil {
		t.Fatal(err)
	}
	reached := blockInsert(t, c, ns, time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sink.Run(ctx) }()
	if err := sink.Feed(ctx, &stream.Batch{Events: first, End: first[0].At}); err != nil {
		t.Fatal(err)
	}
	reached()
	stop()
	<-ended
	next := target()
	for { // until the server has nothing under way
		raw, err := c.Command(t.Context(), "admin",
			bson.D{{Key: "currentOp", Value: 1}, {Key: "command.insert", Value: bson.D{{Key: "$exists", Value: true}}}})
		if err != nil {
			t.Fatal(err)
		}
		if ops, err := raw.Lookup("inprog").Array().Values(); err == nil && len(ops) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if docs, err := next.Documents(t.Context(), ns); err != nil || len(docs) > 0 {
		t.Errorf("the empty target holds %v, %v", docs, err)
	}
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
	rnd := rand.New(rand.NewPCG(testseed.Of(t), 17))
	for name, options := range map[string]func() mongosink.Options{
		"single": func() mongosink.Options {
			return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1, BatchOps: 1, Coalesce: -1}}
		},
		"many": func() mongosink.Options {
			return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1 + rnd.IntN(8), BatchOps: 1 + rnd.IntN(50),
				Coalesce: 1 << rnd.IntN(16), InFlight: 1 << rnd.IntN(20)},
				Write: write.Options{Transactions: txn, TransactionOps: 2}}
		},
		"letters": func() mongosink.Options {
			return mongosink.Options{Sizes: mongosink.Sizes{Partitions: 3, BatchOps: 10},
				Policy: resolve.Policy{Letters: deadletter.New(p.dst, "conform", nil), OnConflict: deadletter.Skip}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Target {
				return empty(t, p.dst, options)
			})
		})
	}
}
