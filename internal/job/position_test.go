package job

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

// TestPositionOf: a position is what was stored, in the format of now and the one before.
func TestPositionOf(t *testing.T) {
	applied, from := mongo.OpTime{TS: bson.Timestamp{T: 9, I: 2}, Term: 4}, mongo.OpTime{TS: bson.Timestamp{T: 7, I: 1},
		Term: 3}
	for name, doc := range map[string]bson.D{
		"format 3": state.PositionFields(oplog.Position(applied, from)),
		"format 3, once 2": append(state.PositionFields(oplog.Position(applied, from)),
			bson.E{Key: "readFrom", Value: mongo.OpTime{TS: bson.Timestamp{T: 1}}}),
		"format 2": {{Key: "version", Value: 2}, {Key: "applied", Value: applied},
			{Key: "readFrom", Value: from}},
		"format 2, opened by 3": {{Key: "version", Value: 3}, {Key: "applied", Value: applied}, {Key: "mark", Value: ""},
			{Key: "readFrom", Value: from}},
	} {
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		var job state.Job
		if err := bson.Unmarshal(raw, &job); err != nil {
			t.Fatal(err)
		}
		got := positionOf(job)
		if at, err := oplog.ReadFrom(got); err != nil || got.At != applied || at != from {
			t.Errorf("%s: at %s, read from %s, %v", name, got.At, at, err)
		}
	}
}
