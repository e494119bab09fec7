package job

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
)

// grantsAlone is an assigner without a target.
type grantsAlone struct{ *assigner }

func (grantsAlone) Closed() string                       { return "" }
func (grantsAlone) Terms() any                           { return copyTerms{} }
func (grantsAlone) Note(context.Context, []string) error { return nil }
func (a grantsAlone) Revoke(_ context.Context, m *assign.Member[*copy.Assignment]) error {
	a.forgetGrants(m)
	return nil
}

// TestGrantsOfRevoked: nothing stays of the grants of an assistant that was revoked before it got
// them.
func TestGrantsOfRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules, err := transform.New(transform.Config{})
		if err != nil {
			t.Fatal(err)
		}
		gates := throttle{pace.New(pace.Rates{Docs: 1}), pace.NewGate(pace.Normal), pace.NewGate(pace.Normal)}
		w := &assigner{throttle: gates, counted: map[string][]int64{}, grants: map[grantOf]chan struct{}{},
			log: slog.New(slog.DiscardHandler)}
		answers := make(chan func(context.Context, []byte) []byte, 1)
		offer := assign.Offer{Version: "test", Lease: time.Minute,
			Serve: func(ctx context.Context, answer func(context.Context, []byte) []byte) error {
				answers <- answer
				<-ctx.Done()
				return nil
			}}
		common := assign.Common{Source: &mongo.Cluster{}, Target: &mongo.Cluster{}, Rules: rules, Keys: &transform.Keys{}}
		w.Owner = assign.NewOwner(offer, common, grantsAlone{w}, w.log, map[string]*assign.Figures{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }) }()
		answer := <-answers
		ask := func(request bson.D) bson.Raw {
			raw, err := bson.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			return answer(ctx, raw)
		}
		token := ask(bson.D{{Key: "kind", Value: "join"}, {Key: "worker", Value: "w"}, {Key: "version", Value: "test"}}).
			Lookup("terms", "token").StringValue()
		request := bson.D{{Key: "kind", Value: "report"}, {Key: "token", Value: token},
			{Key: "report", Value: copyReport{Grant: &grant{Seq: 1, Docs: 1000, Bytes: 1000}}}}
		if more, _ := ask(request).Lookup("more").BooleanOK(); !more || len(w.grants) != 1 {
			t.Errorf("granted at once; %d wait", len(w.grants))
		}
		ask(bson.D{{Key: "kind", Value: "leave"}, {Key: "token", Value: token}})
		synctest.Wait()
		w.mu.Lock()
		if len(w.grants) != 0 {
			t.Errorf("%d grants of a revoked assistant wait", len(w.grants))
		}
		w.mu.Unlock()
		stop()
		<-ended
	})
}
