package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/mongo"
)

// collectionDoc is a document of collection "collections": one namespace of
// the catalog at the job's start.
type collectionDoc struct {
	ID         string             `bson:"_id"`
	Job        string             `bson:"job"`
	Order      int                `bson:"order"`
	Target     string             `bson:"target"`
	Collection catalog.Collection `bson:"collection"`
}

// Mapped is a collection of the source with its name on the target.
type Mapped struct {
	catalog.Collection
	Target string
}

// SaveCatalog replaces the job's catalog. It is called before the first
// document is copied.
func (s *Store) SaveCatalog(ctx context.Context, colls []Mapped) error {
	const perCommand = 100
	fail := func(err error) error { return fmt.Errorf("save catalog of job %s: %w", s.job, err) }
	if err := s.deleteMany(ctx, "collections", bson.D{{Key: "job", Value: s.job}}); err != nil {
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
	out := make([]Mapped, len(docs))
	for i, d := range docs {
		out[i] = Mapped{Collection: d.Collection, Target: d.Target}
	}
	return out, nil
}
