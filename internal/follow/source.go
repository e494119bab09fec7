package follow

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/versions"
	"github.com/millrace/millrace/internal/wire"
)

// targetVersions reads the histories of documents on the target. It implements
// transform.Versions.
type targetVersions struct {
	target *mongo.Cluster
	sink   Sink
}

func (v targetVersions) Settle(ctx context.Context) error { return v.sink.Drain(ctx) }

func (v targetVersions) Applied() mongo.OpTime { return v.sink.Applied().At }

// together is the number of documents per command: a pipeline has at most 1000 stages.
const together = 200

func (v targetVersions) Before(ctx context.Context, target string, asked []versions.Asked,
	most int) (found []bson.Raw, err error) {
	found = make([]bson.Raw, len(asked))
	size := 0
	for from := 0; from < len(asked); from += together {
		some := asked[from:min(from+together, len(asked))]
		where := make(map[string]int, len(some))
		for i, one := range some {
			where[delta.KeyOf(one.Key)] = from + i
		}
		err := v.read(ctx, target, func(coll string) bson.D {
			return bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: versions.Before(coll, some)},
				{Key: "cursor", Value: bson.D{}}}
		}, func(doc []byte) error {
			one, err := versions.Parse(doc)
			i, ok := where[delta.KeyOf(one.Key)]
			if err != nil || !ok {
				return err
			}
			if size += len(doc); size > most && len(asked) > 1 {
				return transform.ErrTooMuch
			}
			found[i] = bytes.Clone(doc)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (v targetVersions) Last(ctx context.Context, target string, before versions.Position,
	fn func(version bson.Raw) error) error {
	newest := versions.NewNewest(before)
	err := v.read(ctx, target, func(coll string) bson.D {
		return bson.D{{Key: "find", Value: coll}, {Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "projection", Value: versions.ShapeFields()}, {Key: "noCursorTimeout", Value: true}}
	}, func(doc []byte) error {
		last, err := newest.Add(doc)
		if err != nil || last == nil {
			return err
		}
		return fn(last)
	})
	if last := newest.End(); err == nil && last != nil {
		err = fn(last)
	}
	return err
}

// read calls fn for the results of a command on the target's primary, which has all writes.
func (v targetVersions) read(ctx context.Context, target string, command func(coll string) bson.D,
	fn func(doc []byte) error) error {
	conn, err := v.target.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return err
	}
	defer conn.Release()
	db, coll := mongo.SplitNS(target)
	cur, err := conn.OpenCursor(ctx, db, command(coll), wire.CursorOptions{})
	if err != nil {
		return fmt.Errorf("read %s on the target: %w", target, err)
	}
	defer cur.Close(ctx)
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return fmt.Errorf("read %s on the target: %w", target, err)
		}
		if err := b.Each(fn); err != nil || b.Done {
			return err
		}
	}
}

// sourceIDs returns the source's _ids of target documents: _ids of versions contain them.
func (s *Source) sourceIDs(from stream.Origin, ids []bson.RawValue) []bson.RawValue {
	if !s.route(from).History {
		return ids
	}
	out := make([]bson.RawValue, len(ids))
	for i, id := range ids {
		key, _, _ := versions.IsID(bsonraw.FromRaw(id))
		out[i] = bsonraw.RawValue(key)
	}
	return out
}

// Deployment is a source: a replica set or a sharded cluster.
type Deployment interface {
	// Newest returns a position that follows all acknowledged writes. readable is a namespace that the
	// user may read.
	Newest(ctx context.Context, readable string) (mongo.OpTime, error)
	// Positions returns the present positions.
	Positions(ctx context.Context) (mongo.Positions, error)
	// Reached waits until everything up to a position is committed.
	Reached(ctx context.Context, at mongo.OpTime) (mongo.Positions, error)
	// ListOne finds a collection by its UUID, as schema.ListOne does.
	ListOne(ctx context.Context, db string, uuid bson.Binary) (schema.Collection, bool, error)
	// Building lists the index builds under way, as schema.Building does.
	Building(ctx context.Context, rules *transform.Set) ([]schema.Collection, error)
	// Find reads documents by their _ids, as lookup.Find does.
	Find(ctx context.Context, of lookup.Collection, q lookup.Question) ([]bson.Raw, error)
	// Vanished reports whether a collection is gone for good.
	Vanished(ctx context.Context, db string, uuid bson.Binary) (bool, error)
	// Holds returns an error if events up to at may be missing.
	Holds(ctx context.Context, at mongo.OpTime) error
	// Look calls fn for the events of collections within a span and for all schema
	// changes, as oplog.Look does.
	Look(ctx context.Context, collections []string, span oplog.Span, fn func(*stream.Event) error) error
}

// Source reads what the changes of the source do not contain. Its results cannot roll back.
type Source struct {
	Deployment
	// Readable is a namespace that the user may read. It need not exist.
	Readable string
	Rules    *transform.Set
	// Leaves keeps documents that the rules cannot map; with nil they end the job.
	Leaves   transform.LeftOut
	Names    *schema.Names // of the job's collections at the present position
	Progress *progress.Progress

	unclear int // undecided conflicts of all runs
}

// Newest returns the source's newest position, by a linearizable read.
func (s *Source) Newest(ctx context.Context) (mongo.OpTime, error) {
	return s.Deployment.Newest(ctx, s.Readable)
}

// waiting names the wait in status if fn takes longer than a second.
func (s *Source) waiting(what string, fn func() error) error {
	const limit = time.Second
	say := sync.OnceFunc(func() { s.Progress.Wait(what) })
	late := time.AfterFunc(limit, say)
	defer func() {
		if !late.Stop() {
			say()
			s.Progress.Wait("")
		}
	}()
	return fn()
}

// Committed waits until the source's primary has committed everything up to a position.
func (s *Source) Committed(ctx context.Context, at mongo.OpTime) (pos mongo.Positions, err error) {
	err = s.waiting("the source to commit "+at.String(), func() (err error) {
		pos, err = s.Reached(ctx, at)
		return err
	})
	return pos, err
}

// FindRenamed finds the collection that a rename at a position brought inside the filter, under its
// present name. It is still in that database: renames between databases create another collection.
func (s *Source) FindRenamed(
	ctx context.Context, ch *stream.Change, at mongo.OpTime,
) (coll schema.Collection, found bool, err error) {
	if _, err := s.Committed(ctx, at); err != nil {
		return coll, false, err
	}
	db, _ := mongo.SplitNS(ch.To)
	err = s.waiting("the source to commit its catalog", func() (err error) {
		coll, found, err = s.ListOne(ctx, db, ch.UUID)
		return err
	})
	return coll, found, err
}

// Reread reads a document from the source by its collection's UUID: the name
// may be that of another collection by now.
func (s *Source) Reread(ctx context.Context, from stream.Origin, id bsoncore.Value,
	at mongo.OpTime) (resolve.Reread, error) {
	of, err := s.identify(from)
	if err != nil {
		return resolve.Reread{}, err
	}
	if r := s.route(from); r.History {
		return resolve.Reread{}, mongo.WithHint(
			fmt.Errorf("the target rejects a version of a document of %s", r.Source),
			"stop other writers to the versions on the target, then start again with --restart")
	}
	before, err := s.Committed(ctx, at)
	if err != nil {
		return resolve.Reread{}, err
	}
	out := resolve.Reread{From: mongo.MaxOpTime(before.Majority, at)}
	docs, gone, err := s.find(ctx, of, lookup.Question{IDs: []bson.RawValue{bsonraw.RawValue(id)}, At: out.From})
	if err != nil {
		return resolve.Reread{}, fmt.Errorf("read a document of %s from the source: %w", from.NS, err)
	}
	if gone {
		return resolve.Reread{Gone: true}, nil
	}
	if out.Doc, err = s.made(from, docs[0], out.From); err != nil {
		return resolve.Reread{}, err
	}
	after, err := s.Positions(ctx)
	if err != nil {
		return resolve.Reread{}, err
	}
	out.Until = after.Last
	return out, nil
}

// made applies the rules to a document of the source: nil if the target should have none. The stream
// reports documents that cannot be mapped.
func (s *Source) made(from stream.Origin, doc bson.Raw, at mongo.OpTime) (bson.Raw, error) {
	r := s.route(from)
	if doc == nil || r.Filter != nil && !r.Filter.Match(doc) {
		return nil, nil
	}
	to := r.Mapper(at.TS, nil)
	if to == nil {
		return doc, nil
	}
	out, err := to(nil, doc)
	if _, unmapped := transform.Unmappable(err); unmapped && s.Leaves != nil {
		return nil, nil
	}
	return out, err
}

func (s *Source) route(from stream.Origin) *transform.Route {
	name, _ := s.Names.Target(from.NS)
	return s.Rules.Route(cmp.Or(from.Source, name.NS))
}

func (s *Source) identify(from stream.Origin) (of lookup.Collection, err error) {
	name, _ := s.Names.Target(mongo.SeriesNS(from.NS))
	source := cmp.Or(from.Source, name.NS)
	if of.UUID = name.UUID; len(from.UUID.Data) > 0 {
		of.UUID = from.UUID
	}
	if of.DB, _ = mongo.SplitNS(source); of.DB == "" || len(of.UUID.Data) == 0 {
		err = mongo.WithHint(
			fmt.Errorf("unknown source collection for %s: the job has seen no change of it", from.NS),
			"remove the conflict on the target by hand, then start again")
	}
	return of, err
}

// find reads documents of a collection of the source. gone reports that it was dropped for good.
func (s *Source) find(
	ctx context.Context, of lookup.Collection, q lookup.Question,
) (docs []bson.Raw, gone bool, err error) {
	for {
		docs, err = s.Find(ctx, of, q)
		if !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return docs, false, err
		}
		err = s.waiting("the source to commit a drop", func() (err error) {
			gone, err = s.Vanished(ctx, of.DB, of.UUID)
			return err
		})
		if gone || err != nil {
			return nil, gone, err
		}
	}
}

// Read is the transform.Read of the source. Replica sets from 5.0 on return the documents as of the exact
// position while they keep that snapshot, five minutes by default. Otherwise the present documents are
// returned.
func (s *Source) Read(
	ctx context.Context, of *stream.Event, ids []bson.RawValue, at mongo.OpTime, most int,
) (docs []bson.Raw, until mongo.OpTime, err error) {
	from, err := s.identify(of.Origin())
	if err != nil {
		return nil, at, err
	}
	q := lookup.Question{IDs: ids, At: at, Most: most, Exact: true}
	if docs, err = s.Find(ctx, from, q); err == nil {
		return docs, at, nil
	}
	gone := false
	if q.Exact = false; errors.Is(err, lookup.ErrForgotten) {
		if _, err = s.Committed(ctx, at); err == nil {
			docs, gone, err = s.find(ctx, from, q)
		}
	}
	switch {
	case gone:
		return nil, at, nil
	case errors.Is(err, lookup.ErrTooMuch):
		return nil, at, transform.ErrTooMuch
	case err != nil:
		return nil, at, err
	}
	after, err := s.Positions(ctx)
	return docs, mongo.MaxOpTime(after.Last, at), err
}

// OnSource reports which documents the source has at a position or later.
func (s *Source) OnSource(
	ctx context.Context, from stream.Origin, ids []bson.RawValue, at mongo.OpTime,
) ([]bool, error) {
	of, err := s.identify(from)
	if err != nil {
		return nil, err
	}
	has := make([]bool, len(ids))
	partial := s.route(from).Partial(s.Leaves != nil)
	docs, err := s.Find(ctx, of, lookup.Question{IDs: s.sourceIDs(from, ids), At: at, OnlyIDs: !partial})
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		return has, nil
	}
	for i, doc := range docs {
		if has[i] = doc != nil; !partial || err != nil {
			continue
		}
		var made bson.Raw
		made, err = s.made(from, doc, at)
		has[i] = made != nil
	}
	return has, err
}
