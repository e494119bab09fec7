package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// waiting says what the job waits for if fn takes long.
func (j *Job) waiting(what string, fn func() error) error {
	const patience = time.Second
	done := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		select {
		case <-done:
		case <-time.After(patience):
			j.progress.wait(what)
			<-done
			j.progress.wait("")
		}
	})
	defer told.Wait()
	defer close(done)
	return fn()
}

// committed waits until the source has committed everything up to a position,
// and its primary says so.
func (j *Job) committed(ctx context.Context, at mongo.OpTime) (pos mongo.Positions, err error) {
	err = j.waiting("the source to commit "+at.String(), func() (err error) {
		pos, err = j.src.Reached(ctx, at)
		return err
	})
	return pos, err
}

// findRenamed finds the collection that a rename at a position brought inside
// the filter, under the name it has now. It is in the database it was renamed
// to: a rename between databases makes another collection.
func (j *Job) findRenamed(ctx context.Context, ch *stream.Change, at mongo.OpTime) (coll schema.Collection, found bool, err error) {
	if _, err := j.committed(ctx, at); err != nil {
		return coll, false, err
	}
	db, _ := mongo.SplitNS(ch.To)
	err = j.waiting("the source to commit what it shows", func() (err error) {
		coll, found, err = schema.ListOne(ctx, j.src, db, ch.UUID)
		return err
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
	for {
		out.Doc, err = j.findByUUID(ctx, db, uuid, id, out.From)
		if !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			break
		}
		var gone bool
		err = j.waiting("the source to commit a drop", func() (err error) {
			gone, err = j.src.Vanished(ctx, db, uuid)
			return err
		})
		if gone {
			return mongosink.Reread{Gone: true}, nil
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		return mongosink.Reread{}, fmt.Errorf("read a document of %s from the source: %w", from.Target, err)
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
