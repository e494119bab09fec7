package job

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// wayBackTime bounds how long finalize tries to store the way back: users wait for the cut-over.
// shardTime is how long a shard of the target is looked for.
const (
	wayBackTime = 20 * time.Second
	shardTime   = 5 * time.Second
)

// keepWayBack stores where another job can follow the target from. All that this job has written is
// at or before end, or was acknowledged by a majority. It returns the position, and why there is
// none: a target that cannot be read does not keep the job from its end.
func (s *session) keepWayBack(ctx context.Context, end mongo.OpTime) (at mongo.OpTime, why string, err error) {
	if s.spec.Mode == ModeStructure { // there is nothing to go on from
		return mongo.OpTime{}, "", nil
	}
	trying, cancel := context.WithTimeout(ctx, wayBackTime)
	defer cancel()
	s.progress.Wait("the way back to be stored")
	defer s.progress.Wait("")
	var way state.WayBack
	tries := retry.Backoff{Waiting: func(error, time.Duration) {}}
	failed := tries.Try(trying, wayBackTime, func() (err error) {
		way, err = s.wayBack(trying, end)
		return err
	})
	if failed != nil {
		if ctx.Err() != nil {
			return end, "", context.Cause(ctx)
		}
		s.log.Warn("the way back could not be stored", "error", failed,
			"hint", "millrace reverse needs it; see docs/guides/fall-back.md")
		if s.placer != nil { // of a sharded cluster one time is no position
			end = mongo.OpTime{}
		}
		return end, mongo.Brief(failed), nil
	}
	return way.Position.At, "", s.store.SaveWayBack(ctx, way)
}

// wayBack lists the target's collections as they stand at a position at or after end, from which
// all that others do there can be read.
func (s *session) wayBack(ctx context.Context, end mongo.OpTime) (way state.WayBack, err error) {
	scope := schema.Scope{DB: s.rules.MatchTargetDB, NamesOnly: true, Readable: true,
		NS: func(ns string) bool { _, ours := s.source.Names.Target(ns); return ours }}
	var snap schema.Snapshot
	if s.dst.Info.Kind == mongo.KindSharded {
		to, err := s.targetShards(ctx)
		if err != nil {
			return way, err
		}
		defer to.Close()
		snap, way.Position, err = to.Snapshot(ctx, scope)
		if err != nil {
			return way, err
		}
	} else {
		snap, err = schema.TakeSnapshotFrom(ctx, s.dst, scope, oplog.Changes(s.dst), end)
		if err != nil {
			return way, err
		}
		way.Position = oplog.Position(snap.At, snap.At)
	}
	for _, c := range snap.Collections {
		name, _ := s.source.Names.Target(c.NS)
		way.Names = append(way.Names, schema.Name{NS: c.NS, Target: name.NS, Type: c.Type, UUID: c.UUID})
	}
	return way, nil
}

func (s *session) targetShards(ctx context.Context) (*origin.Sharded, error) {
	to, err := openShards(ctx, s.dst, shards.Options{URI: s.spec.Target, Shards: s.spec.TargetShards,
		Mongo: mongo.Options{AppName: "millrace-wayback", ServerSelectionTimeout: shardTime}, Connect: s.spec.Connect})
	return to, mongo.Wrap(err, "open the target's shards")
}

// prepareBack has the job begin where another one ended, which it leads back: with the collections
// of that position. What the target has is as of then, but for documents that it has expired since.
func (p *preparer) prepareBack(ctx context.Context, name string) error {
	f, err := state.LoadFinished(ctx, p.source.cluster, name)
	if err != nil {
		return fmt.Errorf("--start-at %s: %w", p.spec.StartAt, err)
	}
	if f.Reason != "" {
		return fmt.Errorf("--start-at %s: %s", p.spec.StartAt, f.Reason)
	}
	fields := bson.D{{Key: "reverses", Value: name}, {Key: "returns", Value: f.Rules}}
	if !f.HasNames() {
		return p.beginAt(ctx, p.source.StartAt(f.Position.At), nil, fields...)
	}
	if p.source.shards != nil {
		if _, err := p.source.shards.Refresh(ctx, f.Position); err != nil {
			return err
		}
	}
	names := slices.Clone(f.Names)
	for i := range names {
		names[i].Target = p.rules.Target(names[i].NS)
	}
	if p.source.streamed != nil { // the stored position is one of oplogs
		f.Position = p.source.StartAt(f.Position.At)
	}
	return p.beginAt(ctx, f.Position, names, fields...)
}

// beginAt has a job that copies nothing begin at a position, with the names as of then. Nil are
// those of now.
func (p *preparer) beginAt(ctx context.Context, pos stream.Position, names []schema.Name, fields ...bson.E) error {
	newest, err := p.source.Newest(ctx)
	if err == nil && names == nil {
		names, err = schema.FindNames(ctx, p.source.cluster, p.dst, p.rules)
	}
	if err != nil {
		return err
	}
	// What the target holds at that position is not known exactly, so up to
	// now it may be ahead.
	return p.begin(ctx, pos, names, newest, fields...)
}

// begin has a job that copies nothing begin at a position, with the names as of then. The target may be ahead up to
// another position.
func (p *preparer) begin(ctx context.Context, pos stream.Position, names []schema.Name, ahead mongo.OpTime,
	fields ...bson.E) error {
	mapped := make([]state.Mapped, len(names))
	for i, n := range names {
		mapped[i] = state.Mapped{Collection: schema.Collection{NS: n.NS, Type: n.Type, UUID: n.UUID,
			Options: bson.Raw{5, 0, 0, 0, 0}}, Target: n.Target}
	}
	if err := p.store.SaveCatalog(ctx, mapped); err != nil {
		return err
	}
	p.catalog = mapped
	fields = append(fields, bson.E{Key: "start", Value: pos.At}, bson.E{Key: "consistent", Value: ahead},
		bson.E{Key: "copied", Value: ahead})
	return p.SavePhase(ctx, PhaseOverlap, append(state.PositionFields(pos), fields...)...)
}

// WayLeft is how far the way back of a finalized job is from the end of an oplog.
type WayLeft struct {
	Position, Oldest mongo.OpTime // what a reversed job reads first, and what the oplogs all still have
	// Forgets says that an oplog is so full that it gives up its oldest entries.
	Forgets bool
}

// Left is the time of the oplogs between their oldest entry and the position.
func (l WayLeft) Left() time.Duration {
	return time.Duration(int64(l.Position.TS.T)-int64(l.Oldest.TS.T)) * time.Second
}

// Lost reports that the position cannot be read any more.
func (l WayLeft) Lost() bool { return l.Position.First().Before(l.Oldest) }

// LookBack returns how long a finalized job can still be reversed. uri and at name its target, and
// shards of that. It connects for each look.
func LookBack(ctx context.Context, uri string, at map[string]string, name string) (l WayLeft, err error) {
	c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: "millrace-reverse"})
	if err != nil {
		return l, mongo.Wrap(err, "target of job %s", name)
	}
	defer c.Close()
	f, err := state.LoadFinished(ctx, c, name)
	if err != nil {
		return l, err
	}
	if f.Reason != "" {
		return l, fmt.Errorf("job %s has no way back: %s", name, f.Reason)
	}
	var read oplogs = origin.Set{Cluster: c}
	if c.Info.Kind == mongo.KindSharded {
		all, err := openShards(ctx, c, shards.Options{URI: uri, Shards: at,
			Mongo: mongo.Options{AppName: "millrace-reverse"}})
		if err != nil {
			return l, err
		}
		defer all.Close()
		read = all
	}
	var w oplog.Window
	if l.Position, err = read.ReadFrom(f.Position); err == nil {
		w, err = read.Window(ctx)
	}
	l.Oldest, l.Forgets = w.Oldest, w.Full()
	return l, err
}
