package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// committed waits until the source has committed everything up to a position,
// and its primary says so.
func (j *Job) committed(ctx context.Context, at mongo.OpTime) (mongo.Positions, error) {
	const pause, patience = 20 * time.Millisecond, time.Second
	told := false
	defer func() {
		if told {
			j.progress.wait("")
		}
	}()
	for began := time.Now(); ; {
		pos, err := j.src.Positions(ctx)
		if err != nil || !pos.Majority.Before(at) {
			return pos, err
		}
		if !told && time.Since(began) > patience {
			told = true
			j.progress.wait("the source to commit " + at.String() + "; its majority is at " + pos.Majority.String())
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return pos, context.Cause(ctx)
		}
	}
}

// certain looks for something on the source's primary, in a state at or after
// a position. That it is not there counts only when it can no longer roll back:
// the primary that said so has committed all that it had, in the same term.
func (j *Job) certain(ctx context.Context, at mongo.OpTime, look func(context.Context) (bool, error)) (bool, error) {
	for {
		before, err := j.committed(ctx, at)
		if err != nil {
			return false, err
		}
		if found, err := look(ctx); found || err != nil {
			return found, err
		}
		after, err := j.src.Positions(ctx)
		if err != nil {
			return false, err
		}
		settled, err := j.committed(ctx, after.Last)
		if err != nil {
			return false, err
		}
		if before.Last.Term == after.Last.Term && after.Last.Term == settled.Last.Term {
			return false, nil
		}
	}
}

// findRenamed finds the collection that a rename at a position brought inside
// the filter, under the name it has now. It is in the database it was renamed
// to: a rename between databases makes another collection.
func (j *Job) findRenamed(ctx context.Context, ch *stream.Change, at mongo.OpTime) (coll schema.Collection, found bool, err error) {
	db, _ := mongo.SplitNS(ch.To)
	found, err = j.certain(ctx, at, func(ctx context.Context) (ok bool, err error) {
		coll, ok, err = schema.ListOne(ctx, j.src, db, ch.UUID)
		return ok, err
	})
	return coll, found, err
}

// reread reads a document from the source by its collection's UUID: the name
// may be that of another collection by now.
func (j *Job) reread(ctx context.Context, from mongosink.Origin, id bsoncore.Value, at mongo.OpTime) (mongosink.Reread, error) {
	db, uuid, err := j.identify(from)
	if err != nil {
		return mongosink.Reread{}, err
	}
	before, err := j.committed(ctx, at)
	if err != nil {
		return mongosink.Reread{}, err
	}
	out := mongosink.Reread{From: mongo.MaxOpTime(before.Majority, at)}
	there, err := j.certain(ctx, at, func(ctx context.Context) (bool, error) {
		out.Doc, err = j.findByUUID(ctx, db, uuid, id, out.From)
		if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return mongosink.Reread{}, fmt.Errorf("read a document of %s from the source: %w", from.Target, err)
	}
	if !there {
		return mongosink.Reread{Gone: true}, nil
	}
	after, err := j.src.Positions(ctx)
	if err != nil {
		return mongosink.Reread{}, err
	}
	out.Until = after.Last
	return out, nil
}

// identify tells which collection of the source a target namespace is: as the
// event in hand has it, or as the job's names do, which are those of the
// same position.
func (j *Job) identify(from mongosink.Origin) (db string, uuid bson.Binary, err error) {
	tdb, coll := mongo.SplitNS(from.Target)
	name, _ := j.names.Target(tdb + "." + strings.TrimPrefix(coll, mongo.BucketsPrefix))
	source := from.Source
	if source == "" {
		source = name.NS
	}
	if uuid = name.UUID; from.UUID != nil {
		uuid = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: from.UUID[:]}
	}
	if db, _ = mongo.SplitNS(source); db == "" || len(uuid.Data) == 0 {
		return "", uuid, mongo.WithHint(fmt.Errorf("which collection of the source %s is cannot be told: the job has seen no change of it", from.Target),
			"remove the conflict on the target by hand, then start again")
	}
	return db, uuid, nil
}

// findByUUID reads one document in a committed state at or after a position;
// nil if there is none.
func (j *Job) findByUUID(ctx context.Context, db string, uuid bson.Binary, id bsoncore.Value, at mongo.OpTime) (bson.Raw, error) {
	concern := bson.D{{Key: "level", Value: "majority"}}
	if !at.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: at.TS})
	}
	raw, err := j.src.Command(ctx, db, bson.D{
		{Key: "find", Value: uuid},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bsonraw.RawValue(id)}}}}},
		{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}, {Key: "readConcern", Value: concern},
	})
	if err != nil {
		return nil, err
	}
	batch, ok := raw.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return nil, errors.New("the reply has no documents")
	}
	docs, err := batch.Values()
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	return docs[0].Document(), nil
}
