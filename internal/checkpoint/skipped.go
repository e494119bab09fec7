package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Skipped is a document of which an update met nothing on the target, while the
// target was allowed to be ahead: a later change has to explain that.
type Skipped struct {
	Source string   // namespace on the source
	UUID   [16]byte // of the source's collection
	ID     bsoncore.Value
}

// skippedDoc is a document of collection "skipped". It keeps the _id as bytes:
// some servers do not take each _id as a field.
type skippedDoc struct {
	ID     string `bson:"_id"`
	Job    string `bson:"job"`
	Source string `bson:"source"`
	UUID   []byte `bson:"uuid"`
	Type   int32  `bson:"type"`
	Data   []byte `bson:"data"`
}

func (s *Store) skippedDoc(k Skipped) skippedDoc {
	h := sha256.New()
	h.Write(k.UUID[:])
	h.Write([]byte{byte(k.ID.Type)})
	h.Write(k.ID.Data)
	return skippedDoc{ID: s.job + "/" + hex.EncodeToString(h.Sum(nil)[:16]), Job: s.job, Source: k.Source, UUID: k.UUID[:],
		Type: int32(k.ID.Type), Data: k.ID.Data}
}

// NoteSkipped remembers documents. Like Note it does not wait for the write
// concern: the next Save does, with the position that passes what was skipped.
func (s *Store) NoteSkipped(ctx context.Context, list []Skipped) error {
	var ops bson.A
	for _, k := range list {
		doc := s.skippedDoc(k)
		ops = append(ops, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: doc.ID}}}, {Key: "u", Value: doc}, {Key: "upsert", Value: true}})
	}
	return s.bulk(ctx, "skipped", "update", "updates", ops)
}

// LoadSkipped returns some of the documents remembered.
func (s *Store) LoadSkipped(ctx context.Context, limit int64) ([]Skipped, error) {
	var docs []skippedDoc
	cur, err := s.db.Collection("skipped", localRead()).Find(ctx, bson.D{{Key: "job", Value: s.job}}, options.Find().SetLimit(limit))
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		return nil, fmt.Errorf("read what job %s skipped: %w", s.job, err)
	}
	var out []Skipped
	for _, d := range docs {
		k := Skipped{Source: d.Source, ID: bsoncore.Value{Type: bsoncore.Type(d.Type), Data: d.Data}}
		copy(k.UUID[:], d.UUID)
		out = append(out, k)
	}
	return out, nil
}

// ForgetSkipped forgets documents that are explained.
func (s *Store) ForgetSkipped(ctx context.Context, list []Skipped) error {
	var ops bson.A
	for _, k := range list {
		ops = append(ops, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: s.skippedDoc(k).ID}}}, {Key: "limit", Value: 1}})
	}
	return s.bulk(ctx, "skipped", "delete", "deletes", ops)
}
