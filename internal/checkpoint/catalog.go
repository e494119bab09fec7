package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// collectionDoc is a document of collection "collections": one namespace of
// the source that the job has on the target. At first it is the catalog at the job's
// start; schema changes keep the names in it true.
type collectionDoc struct {
	ID         string             `bson:"_id"`
	Job        string             `bson:"job"`
	Order      int                `bson:"order"`
	Target     string             `bson:"target"`
	Collection catalog.Collection `bson:"collection"`
	Gone       bool               `bson:"gone,omitempty"`
}

// Mapped is a collection of the source with its name on the target.
type Mapped struct {
	catalog.Collection
	Target string
}

// SaveCatalog replaces the job's catalog. It is called before the first
// document is copied.
func (s *Store) SaveCatalog(ctx context.Context, colls []Mapped) error {
	c := s.db.Collection("collections")
	if _, err := c.DeleteMany(ctx, bson.D{{Key: "job", Value: s.job}}); err != nil {
		return fmt.Errorf("save catalog of job %s: %w", s.job, err)
	}
	docs := make([]any, 0, len(colls))
	for i, m := range colls {
		docs = append(docs, collectionDoc{ID: s.job + "/" + m.NS, Job: s.job, Order: i, Target: m.Target, Collection: m.Collection})
	}
	if len(docs) == 0 {
		return nil
	}
	if _, err := c.InsertMany(ctx, docs); err != nil {
		return fmt.Errorf("save catalog of job %s: %w", s.job, err)
	}
	return nil
}

// LoadCatalog returns the catalog that SaveCatalog wrote, in its order.
func (s *Store) LoadCatalog(ctx context.Context) ([]Mapped, error) {
	docs, err := s.loadCollections(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Mapped, len(docs))
	for i, d := range docs {
		out[i] = Mapped{Collection: d.Collection, Target: d.Target}
	}
	return out, nil
}

// LoadNames returns the names in the catalog as the last schema change left them.
func (s *Store) LoadNames(ctx context.Context) (*catalog.Names, error) {
	docs, err := s.loadCollections(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]catalog.Name, len(docs))
	for i, d := range docs {
		list[i] = catalog.Name{NS: d.Collection.NS, Target: d.Target, Type: d.Collection.Type, UUID: d.Collection.UUID, Gone: d.Gone}
	}
	return catalog.NewNames(list), nil
}

func (s *Store) loadCollections(ctx context.Context) ([]collectionDoc, error) {
	cur, err := s.db.Collection("collections", localRead()).Find(ctx, bson.D{{Key: "job", Value: s.job}})
	if err != nil {
		return nil, fmt.Errorf("load catalog of job %s: %w", s.job, err)
	}
	var docs []collectionDoc
	if err := cur.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("load catalog of job %s: %w", s.job, err)
	}
	// Sorted here: the server bounds what it sorts in memory.
	slices.SortFunc(docs, func(a, b collectionDoc) int { return a.Order - b.Order })
	return docs, nil
}

// NoteNames stores what a schema change does to the names. Like Note it does not
// wait for the write concern: a crash before it leaves the intent of the change,
// which is then applied once more. What is to go goes last, so that
// a change that is told once more still finds it.
func (s *Store) NoteNames(ctx context.Context, change catalog.NameChange) error {
	var puts, removes bson.A
	put := map[string]bool{}
	for _, one := range change.Put {
		put[one.NS] = true
		doc := collectionDoc{ID: s.job + "/" + one.NS, Job: s.job, Target: one.Target, Gone: one.Gone,
			Collection: catalog.Collection{NS: one.NS, Type: one.Type, UUID: one.UUID, Options: bson.Raw{5, 0, 0, 0, 0}}}
		puts = append(puts, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: doc.ID}}}, {Key: "u", Value: doc}, {Key: "upsert", Value: true}})
	}
	for _, ns := range change.Removed {
		if !put[ns] {
			removes = append(removes, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: s.job + "/" + ns}}}, {Key: "limit", Value: 1}})
		}
	}
	if err := s.bulk(ctx, "collections", "update", "updates", puts); err != nil {
		return err
	}
	return s.bulk(ctx, "collections", "delete", "deletes", removes)
}

// localRead sees what a write with write concern 1 left.
func localRead() *options.CollectionOptionsBuilder {
	return options.Collection().SetReadConcern(readconcern.Local())
}

// bulk runs a write on one of the store's collections with write concern 1.
func (s *Store) bulk(ctx context.Context, coll, command, field string, ops bson.A) error {
	for part := range slices.Chunk(ops, 1000) {
		raw, err := s.c.Command(ctx, mongo.StateDB, bson.D{{Key: command, Value: coll}, {Key: field, Value: part},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}})
		if err != nil {
			return fmt.Errorf("save %[2]s of job %[1]s: %[3]w", s.job, coll, err)
		}
		res := wire.ParseWriteResult([]byte(raw))
		if err := mongo.WriteInterrupted(res); err != nil {
			return fmt.Errorf("save %[2]s of job %[1]s: %[3]w", s.job, coll, err)
		}
		if len(res.Errors) > 0 {
			return fmt.Errorf("save %[2]s of job %[1]s: %[3]s (code %[4]d)", s.job, coll, res.Errors[0].Message, res.Errors[0].Code)
		}
		s.ObserveTerm(res.Term)
	}
	return nil
}
