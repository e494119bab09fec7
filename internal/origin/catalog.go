package origin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/stream"
)

// Snapshot lists the catalog as of a position to follow from.
//
// What the stream does not report, or what rolls back behind a router, shows in a second listing. It has to
// agree with the first but for the changes that the stream reports between. Before 6.0 the stream reports
// neither creations nor indexes. So a collection or index that appears after the second listing is missing on
// the target until finalize compares the catalogs.
func (s *Streamed) Snapshot(ctx context.Context, scope schema.Scope) (snap schema.Snapshot, from stream.Position,
	err error) {
	if s.Info.Kind == mongo.KindStandalone {
		snap.Collections, err = schema.List(ctx, s.Cluster, scope)
		return snap, from, err
	}
	support, err := s.Support(ctx)
	if err != nil {
		return snap, from, err
	}
	const tries = 20
	for range tries {
		if snap, from, err = s.list(ctx, scope, support); err != nil || support.Expanded && !s.routed() {
			return snap, from, err
		}
		same, err := s.stands(ctx, scope, snap, support)
		if same || err != nil {
			return snap, from, err
		}
		if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
			return snap, from, err
		}
	}
	return snap, from, mongo.WithHint(
		fmt.Errorf("the catalog of %s changed during each of %d attempts to list it, by what change streams do not report",
			s.Address(), tries),
		"start when no collections or indexes are being created")
}

func (s *Streamed) list(ctx context.Context, scope schema.Scope, support changestream.Support) (snap schema.Snapshot,
	from stream.Position, err error) {
	var term int64
	snap, err = schema.TakeSnapshotOf(ctx, []*mongo.Cluster{s.Cluster}, scope, schema.History{
		Before: func(ctx context.Context) (mongo.OpTime, error) {
			if !s.routed() && term == 0 {
				p, err := s.Cluster.Positions(ctx)
				if err != nil {
					return p.Last, err
				}
				term = p.Last.Term
			}
			from, err = changestream.Start(ctx, s.Cluster)
			return from.At, err
		},
		After: func(ctx context.Context) (mongo.OpTime, error) {
			end, err := s.seenUntil(ctx)
			if err == nil && !s.routed() && end.Term != term {
				err = mongo.Retry(s.Address()+" has elected another primary while its catalog was listed", nil, "")
			}
			return end, err
		},
		Changes: changestream.Changes(s.Cluster, support),
	})
	return snap, from, err
}

// latest is the latest time that the client knows: the client has seen nothing that is later.
func (s *Streamed) latest(ctx context.Context) (mongo.OpTime, error) {
	at, err := s.ClusterTime(ctx)
	at.Term = -1
	return at, err
}

// seenUntil is a position that nothing read so far is after. What a replica set has shown is committed then.
func (s *Streamed) seenUntil(ctx context.Context) (mongo.OpTime, error) {
	if s.routed() {
		return s.latest(ctx)
	}
	return s.CommittedSeen(ctx)
}

// stands reports that the catalog is still as listed, but for changes that the stream reports since.
func (s *Streamed) stands(ctx context.Context, scope schema.Scope, was schema.Snapshot,
	support changestream.Support) (bool, error) {
	if s.routed() {
		if _, err := s.settled(ctx); err != nil {
			return false, err
		}
	}
	now, err := schema.List(ctx, s.Cluster, scope)
	if err != nil {
		return false, err
	}
	end, err := s.seenUntil(ctx)
	if err != nil {
		return false, err
	}
	changed := map[string]bool{}
	err = changestream.Changes(s.Cluster, support)(ctx, was.At, end, func(ch *stream.Change, _ mongo.OpTime) error {
		changed[ch.NS], changed[ch.To] = true, true
		return nil
	})
	if err != nil {
		return false, err
	}
	for _, pair := range [][2][]schema.Collection{{was.Collections, now}, {now, was.Collections}} {
		other := map[string]schema.Collection{}
		for _, c := range pair[1] {
			other[c.NS] = c
		}
		for _, c := range pair[0] {
			if db, _ := mongo.SplitNS(c.NS); !changed[c.NS] && !changed[db] && !sameCollection(c, other[c.NS]) {
				return false, nil
			}
		}
	}
	return true, nil
}

func sameCollection(a, b schema.Collection) bool {
	return a.NS == b.NS && a.Type == b.Type && a.UUID.Equal(b.UUID) && bytes.Equal(a.Options, b.Options) &&
		slices.EqualFunc(a.Indexes, b.Indexes, func(x, y stream.Index) bool { return bytes.Equal(x.Spec, y.Spec) })
}
