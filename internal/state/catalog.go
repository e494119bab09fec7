package state

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

// collectionDoc is a document of collection "collections": one namespace of
// the source that the job has on the target. At first it is the catalog at the job's
// start; schema changes keep the names in it true.
type collectionDoc struct {
	ID         string            `bson:"_id"`
	Job        string            `bson:"job"`
	Order      int               `bson:"order"`
	Target     string            `bson:"target"`
	Collection schema.Collection `bson:"collection"`
	Gone       bool              `bson:"gone,omitempty"`
}

// Mapped is a collection of the source with its name on the target.
type Mapped struct {
	schema.Collection
	Target string
}

// SaveCatalog replaces the job's catalog. It is called before the first
// document is copied.
func (s *Store) SaveCatalog(ctx context.Context, colls []Mapped) error {
	const perCommand = 100
	fail := func(err error) error { return fmt.Errorf("save catalog of job %s: %w", s.job, err) }
	if _, err := s.c.DeleteState(ctx, "collections", 1, bson.D{{Key: "job", Value: s.job}}); err != nil {
		return fail(err)
	}
	for from := 0; from < len(colls); from += perCommand {
		var docs bson.A
		for i, m := range colls[from:min(from+perCommand, len(colls))] {
			docs = append(docs, collectionDoc{ID: s.job + "/" + m.NS, Job: s.job, Order: from + i, Target: m.Target, Collection: m.Collection})
		}
		_, err := s.c.Write(ctx, mongo.StateDB, bson.D{{Key: "insert", Value: "collections"}, {Key: "documents", Value: docs},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}})
		if err != nil {
			return fail(err)
		}
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
func (s *Store) LoadNames(ctx context.Context) (*schema.Names, error) {
	docs, err := s.loadCollections(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]schema.Name, len(docs))
	for i, d := range docs {
		list[i] = schema.Name{NS: d.Collection.NS, Target: d.Target, Type: d.Collection.Type, UUID: d.Collection.UUID, Gone: d.Gone}
	}
	return schema.NewNames(list), nil
}

func (s *Store) loadCollections(ctx context.Context) ([]collectionDoc, error) {
	cur, err := s.db.Collection("collections").Find(ctx, bson.D{{Key: "job", Value: s.job}})
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
func (s *Store) NoteNames(ctx context.Context, change schema.NameChange) error {
	var puts, removes []bson.D
	put := map[string]bool{}
	for _, one := range change.Put {
		put[one.NS] = true
		doc := collectionDoc{ID: s.job + "/" + one.NS, Job: s.job, Target: one.Target, Gone: one.Gone,
			Collection: schema.Collection{NS: one.NS, Type: one.Type, UUID: one.UUID, Options: bson.Raw{5, 0, 0, 0, 0}}}
		puts = append(puts, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: doc.ID}}}, {Key: "u", Value: doc}, {Key: "upsert", Value: true}})
	}
	for _, ns := range change.Removed {
		if !put[ns] {
			removes = append(removes, bson.D{{Key: "_id", Value: s.job + "/" + ns}})
		}
	}
	term, err := s.c.UpdateState(ctx, "collections", 1, puts...)
	if err == nil {
		err = s.SameTerm(term)
	}
	if err == nil {
		term, err = s.c.DeleteState(ctx, "collections", 1, removes...)
	}
	if err == nil {
		err = s.SameTerm(term)
	}
	if err != nil {
		return fmt.Errorf("save the names of job %s: %w", s.job, err)
	}
	return nil
}
