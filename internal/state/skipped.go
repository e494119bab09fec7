package state

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// skippedDoc is a document of collection "skipped": a part of the job's list.
type skippedDoc struct {
	ID   string `bson:"_id"`
	Job  string `bson:"job"`
	N    int    `bson:"n"`
	Docs []Doc  `bson:"docs"`
}

// maxPartBytes keeps a part of the list far below the size of a document.
const maxPartBytes = 4 << 20

// SaveSkipped stores the documents that updates found missing where the target
// may be ahead, in place of the list before. A position that is saved
// afterwards stands on it.
func (s *Store) SaveSkipped(ctx context.Context, docs []Doc) error {
	parts := s.skippedParts(docs)
	for _, p := range parts { // each is large
		_, err := s.c.UpdateState(ctx, "skipped", 1, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: p.ID}}}, {Key: "u", Value: p}, {Key: "upsert", Value: true}})
		if err != nil {
			return fmt.Errorf("save skipped documents of job %s: %w", s.job, err)
		}
	}
	rest := bson.D{{Key: "job", Value: s.job}, {Key: "n", Value: bson.D{{Key: "$gte", Value: len(parts)}}}}
	if _, err := s.c.DeleteState(ctx, "skipped", 1, rest); err != nil {
		return fmt.Errorf("save skipped documents of job %s: %w", s.job, err)
	}
	return nil
}

func (s *Store) skippedParts(docs []Doc) (parts []skippedDoc) {
	size := maxPartBytes
	for _, d := range docs {
		if size += len(d.ID.Value) + len(d.NS) + 128; size > maxPartBytes {
			parts = append(parts, skippedDoc{ID: fmt.Sprintf("%s/%d", s.job, len(parts)), Job: s.job, N: len(parts)})
			size = len(d.ID.Value) + len(d.NS) + 128
		}
		last := &parts[len(parts)-1]
		last.Docs = append(last.Docs, d)
	}
	return parts
}

// LoadSkipped returns what SaveSkipped stored.
func (s *Store) LoadSkipped(ctx context.Context) ([]Doc, error) {
	cur, err := s.db.Collection("skipped").Find(ctx, bson.D{{Key: "job", Value: s.job}})
	var parts []skippedDoc
	if err == nil {
		err = cur.All(ctx, &parts)
	}
	if err != nil {
		return nil, fmt.Errorf("load skipped documents of job %s: %w", s.job, err)
	}
	var out []Doc
	for _, p := range parts {
		out = append(out, p.Docs...)
	}
	return out, nil
}
