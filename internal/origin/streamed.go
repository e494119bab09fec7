package origin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// Streamed is a replica set, or a sharded cluster behind its routers, that is read by change streams and
// ordinary reads alone. It is safe for concurrent use.
type Streamed struct {
	*mongo.Cluster
	Log     *slog.Logger
	Waiting func(reason string) // gets what opening a stream waits for; may be nil

	mu      sync.Mutex
	support *changestream.Support // nil until it was asked
	moves   *moves                // of the latest run behind routers; nil before
}

// routed reports a sharded cluster.
func (s *Streamed) routed() bool { return s.Info.Kind == mongo.KindSharded }

// Support asks once what the deployment's change streams report. The user must be allowed to open one.
func (s *Streamed) Support(ctx context.Context) (changestream.Support, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.support == nil {
		found, err := changestream.Probe(ctx, s.Cluster)
		if err != nil {
			return found, err
		}
		s.support = &found
	}
	return *s.support, nil
}

func (s *Streamed) options(ctx context.Context, keep func(ns string) bool) (o changestream.Options, err error) {
	o = changestream.Options{Keep: keep, Log: s.Log, Waiting: s.Waiting}
	o.Support, err = s.Support(ctx)
	return o, err
}

// StartAt returns the position of a consumer that has applied everything up to at.
func (s *Streamed) StartAt(at mongo.OpTime) stream.Position { return stream.Position{At: at} }

// ReadFrom returns the first change needed from a position on.
func (s *Streamed) ReadFrom(p stream.Position) (mongo.OpTime, error) {
	if p.Mark != "" && !changestream.IsToken(p.Mark) {
		return p.At, errOtherCapture(p)
	}
	return p.At, nil
}

// errOtherCapture rejects a position in oplogs.
func errOtherCapture(p stream.Position) error {
	return mongo.WithHint(fmt.Errorf("position %s is one of oplogs, and no change stream begins there", p.At),
		"continue with --capture oplog, or start again with --restart")
}

// Changes returns the changes of the deployment.
func (s *Streamed) Changes(o oplog.Options, names func() []schema.Name, noted mongo.OpTime) stream.Source {
	return &streaming{of: s, o: o, names: names, noted: noted}
}

// streaming is a changestream.Source that is made when it runs: only then is known what servers report.
type streaming struct {
	of    *Streamed
	o     oplog.Options
	names func() []schema.Name // at the position of a run
	noted mongo.OpTime         // time of a stored schema change; the names may be as after it

	mu   sync.Mutex
	made *changestream.Source
}

// Run implements stream.Source.
func (r *streaming) Run(ctx context.Context, pos stream.Position,
	emit func(context.Context, *stream.Batch) error) error {
	if _, err := r.of.ReadFrom(pos); err != nil {
		return err
	}
	o, err := r.of.options(ctx, r.o.Keep)
	if err != nil {
		return err
	}
	o.BatchBytes, o.ReadAheadBytes, o.Log = r.o.BatchBytes, r.o.ReadAheadBytes, r.o.Log
	o.JoinRenames = r.o.JoinRenames
	made := changestream.New(r.of.Cluster, o)
	r.mu.Lock()
	r.made = made
	r.mu.Unlock()
	if r.of.routed() {
		m := newMoves(r.of, r.names(), pos, r.noted)
		r.of.mu.Lock()
		r.of.moves = m
		r.of.mu.Unlock()
		emit = m.wrap(emit)
	}
	return made.Run(ctx, pos, emit)
}

// Stats implements stream.Source.
func (r *streaming) Stats() stream.SourceStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil {
		return stream.SourceStats{}
	}
	return r.made.Stats()
}

// Window reads what the oplog holds, if the user may read it. Without, as of routers, the window is zero: it is
// unknown how far back change streams can begin.
func (s *Streamed) Window(ctx context.Context) (oplog.Window, error) {
	if s.routed() {
		return oplog.Window{}, nil
	}
	w, err := oplog.ReadWindow(ctx, s.Cluster)
	if err != nil && mongo.Reported(err) && mongo.Classify(err) != mongo.ClassRetry {
		return oplog.Window{}, nil //nolint:nilerr // the user may not read it, or a service has none
	}
	return w, err
}

// Newest returns a position that is not before any write acknowledged before the call, on any shard.
func (s *Streamed) Newest(ctx context.Context, readable string) (mongo.OpTime, error) {
	if !s.routed() {
		return s.Cluster.Newest(ctx, readable)
	}
	at, err := s.settled(ctx)
	return at, mongo.Wrap(err, "read the newest position of %s", s.Address())
}

// nothing matches no event: only the stream's time is read.
const nothing = "millrace reads no event"

// settled returns a time that no write acknowledged before the call is after, on any shard, and waits
// until every shard has committed something later.
//
// A change stream has a cursor on the primary of each shard. A shard tells its clock in the reply that opens
// it, and the router's reply has the latest of all: clocks spread with each message. A primary's clock is
// never before a write that it has acknowledged, or that it has from the primary before it. So the time of
// the reply follows all writes that the primaries asked know of.
//
// One of them may have been deposed without knowing it, and its successor may have acknowledged later writes.
// It cannot commit anything any more. The stream passes a time only when each of these cursors has seen
// something committed after it. Then each member was primary, or followed the one that was, after the call.
// An idle shard writes a no-op every ten seconds.
func (s *Streamed) settled(ctx context.Context) (mongo.OpTime, error) {
	const poll = 100 * time.Millisecond
	conn, err := s.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return mongo.OpTime{}, err
	}
	defer conn.Release()
	reply, err := conn.Run(ctx, "admin", bson.D{{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: nothing}}}}}},
		{Key: "cursor", Value: bson.D{}}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}})
	if err != nil {
		return mongo.OpTime{}, err
	}
	t, i, ok := bson.Raw(reply).Lookup("$clusterTime", "clusterTime").TimestampOK()
	id, open := bson.Raw(reply).Lookup("cursor", "id").AsInt64OK()
	if !ok || !open || id == 0 {
		return mongo.OpTime{}, fmt.Errorf("the change stream of %s tells no cluster time", s.Address())
	}
	at := mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}
	defer func() {
		_, _ = conn.Run(context.WithoutCancel(ctx), "admin", bson.D{{Key: "killCursors", Value: "$cmd.aggregate"},
			{Key: "cursors", Value: bson.A{id}}})
	}()
	for !at.Before(changestream.TimeOf(bson.Raw(reply))) {
		reply, err = conn.Run(ctx, "admin", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "$cmd.aggregate"},
			{Key: "maxTimeMS", Value: poll.Milliseconds()}})
		if err != nil {
			return mongo.OpTime{}, err
		}
		if err := pace.Pause(ctx, time.Millisecond); err != nil { // a server may reply at once
			return mongo.OpTime{}, err
		}
	}
	return at, nil
}

// Positions returns the present positions. Behind routers they are the latest time that the router and the
// client know: nothing that the client has read is later.
func (s *Streamed) Positions(ctx context.Context) (mongo.Positions, error) {
	if !s.routed() {
		return s.Cluster.Positions(ctx)
	}
	p, err := s.Cluster.Positions(ctx)
	if err != nil {
		return p, err
	}
	at, err := s.latest(ctx)
	p.Last, p.Majority = at, at
	return p, err
}

// Recent returns the present positions.
func (s *Streamed) Recent(ctx context.Context) (mongo.Positions, error) { return s.Positions(ctx) }

// Reached waits until everything up to a position is committed. Behind routers it waits for their time:
// positions are those of a change stream, which shows what is committed, in order over all shards.
func (s *Streamed) Reached(ctx context.Context, at mongo.OpTime) (p mongo.Positions, err error) {
	if !s.routed() {
		return s.Cluster.Reached(ctx, at)
	}
	err = pace.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		p, err = s.Positions(ctx)
		return !p.Last.Before(at), err
	})
	p.Majority = mongo.OpTime{TS: at.TS, Term: -1}
	return p, err
}

// Holds returns nil: one stream has everything.
func (s *Streamed) Holds(context.Context, mongo.OpTime) error { return nil }

// Look calls fn for the events of collections within a span and for all schema changes.
func (s *Streamed) Look(ctx context.Context, collections []string, span oplog.Span,
	fn func(*stream.Event) error) error {
	known := map[string]bool{}
	for _, ns := range collections {
		known[ns] = true
	}
	o, err := s.options(ctx, func(ns string) bool { return known[ns] })
	if err != nil {
		return err
	}
	return changestream.Look(ctx, s.Cluster, o, span, fn)
}

// Building lists the index builds under way, as schema.Building does. Routers tell those of one shard.
func (s *Streamed) Building(ctx context.Context, rules *transform.Set) ([]schema.Collection, error) {
	return schema.Building(ctx, s.Cluster, rules)
}

// ListOne finds a collection by its UUID, as schema.ListOne does.
func (s *Streamed) ListOne(ctx context.Context, db string, uuid bson.Binary) (coll schema.Collection, found bool,
	err error) {
	err = s.seen(ctx, func() (string, error) {
		coll, found, err = schema.ListOne(ctx, s.Cluster, db, uuid)
		return fmt.Sprint(found, coll.NS), err
	})
	return coll, found && err == nil, err
}

// Vanished reports whether the collection with a UUID is gone from a database for good.
func (s *Streamed) Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error) {
	if !s.routed() {
		return s.Cluster.Vanished(ctx, db, uuid)
	}
	name := ""
	err := s.seen(ctx, func() (_ string, err error) {
		name, err = s.name(ctx, db, uuid)
		return name, err
	})
	return name == "" && err == nil, err
}

// seen runs look, which returns what it saw as text, until it sees the same twice. Behind routers all shards
// have committed something between that is later than all that the first can have shown: what rolls back is
// gone by the second. Replica sets are looked at once, as look itself waits.
func (s *Streamed) seen(ctx context.Context, look func() (string, error)) error {
	const most = 10
	was, err := look()
	if !s.routed() || err != nil {
		return err
	}
	for range most {
		if _, err := s.settled(ctx); err != nil {
			return err
		}
		now, err := look()
		if now == was || err != nil {
			return err
		}
		was = now
	}
	return mongo.Retry("the catalog of "+s.Address()+" changes with each look", nil, "")
}

// name is that of the documents' collection with a UUID, or of the one that it has moved to; "" for none.
func (s *Streamed) name(ctx context.Context, db string, uuid bson.Binary) (string, error) {
	s.mu.Lock()
	m := s.moves
	s.mu.Unlock()
	return m.name(ctx, s, db, uuid)
}

// history implements asked.
func (s *Streamed) history(ctx context.Context) (read schema.Changes, until mongo.OpTime, err error) {
	support, err := s.Support(ctx)
	if err != nil {
		return nil, until, err
	}
	until, err = s.latest(ctx)
	return changestream.Changes(s.Cluster, support), until, err
}

// listed implements asked.
func (s *Streamed) listed(ctx context.Context, db string, filter bson.D) (name string, uuid bson.Binary, err error) {
	specs, err := s.Client.Database(db, options.Database().SetReadPreference(readpref.Primary())).
		ListCollectionSpecifications(ctx, filter)
	if err != nil || len(specs) == 0 {
		return "", uuid, err
	}
	if specs[0].UUID != nil {
		uuid = *specs[0].UUID
	}
	return specs[0].Name, uuid, nil
}

// Find reads documents by their _ids, as lookup.Find does. Routers know no UUIDs: the name is asked before and
// after.
func (s *Streamed) Find(ctx context.Context, of lookup.Collection, q lookup.Question) ([]bson.Raw, error) {
	if !s.routed() {
		return lookup.Find(ctx, s.Cluster, of, q)
	}
	const looks = 5 // at what is there twice: the reads of several shards have no common time
	for twice := 0; ; {
		name, err := s.name(ctx, of.DB, of.UUID)
		if err == nil && name == "" {
			err = errNotFound(of.DB, of.UUID)
		}
		if err != nil {
			return nil, err
		}
		of.Name = name
		docs, err := lookup.FindByClient(ctx, s.Cluster, of, q)
		if twice++; errors.Is(err, lookup.ErrTwice) && twice < looks {
			if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if now, err := s.name(ctx, of.DB, of.UUID); err != nil || now == name {
			return docs, err
		}
	}
}

// errNotFound is what servers say of an unknown UUID.
func errNotFound(db string, uuid bson.Binary) error {
	return driver.CommandError{Code: mongo.CodeNamespaceNotFound, Name: "NamespaceNotFound",
		Message: fmt.Sprintf("database %s has no collection with the UUID %x", db, uuid.Data)}
}
