package state

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// FuzzJob: no stored document makes a start panic, and what can be read is
// written as the same.
func FuzzJob(f *testing.F) {
	full := Job{ID: "j", Version: 1, Source: "a", Phase: "copying", CreatedAt: time.Unix(1, 0), Fence: 3, Beat: 4,
		Owner: ThisProcess("r"),
		Start: mongo.OpTime{TS: bson.Timestamp{T: 1, I: 2}, Term: 3}, Paused: true,
		Refused: []stream.Place{{Origin: stream.Origin{NS: "d.c"}, ID: bson.RawValue{Type: bson.TypeNull}}}}
	for _, j := range []any{Job{}, full, bson.D{{Key: "version", Value: "x"}}, bson.D{{Key: "start", Value: 1}},
		bson.D{{Key: "owner", Value: nil}}} {
		b, err := bson.Marshal(j)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var j Job
		if bson.Unmarshal(b, &j) != nil {
			return
		}
		_ = j.Owner.String()
		again, err := bson.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		var k Job
		if err := bson.Unmarshal(again, &k); err != nil || k.Applied != j.Applied || k.ResumeAt() != j.ResumeAt() ||
			k.Fence != j.Fence || k.Owner != j.Owner {
			t.Errorf("%+v became %+v, %v", j, k, err)
		}
	})
}
