package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/catalog"
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
