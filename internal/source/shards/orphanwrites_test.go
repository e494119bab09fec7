package shards

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// TestAmong: what became of documents is told in its place; a transaction that the next
// batch goes on with stays at the end, though it is of an earlier time.
func TestAmong(t *testing.T) {
	events := func(times ...uint32) (list []stream.Event) {
		for _, one := range times {
			list = append(list, stream.Event{At: mongo.OpTime{TS: bson.Timestamp{T: one, I: 1}}})
		}
		return list
	}
	for _, c := range []struct {
		partial             bool
		batch, others, want []uint32
	}{
		{false, []uint32{50, 52, 49, 49}, []uint32{51}, []uint32{49, 49, 50, 51, 52}},
		{true, []uint32{50, 52, 49, 49}, []uint32{51}, []uint32{50, 51, 52, 49, 49}},
		{true, []uint32{49, 49}, []uint32{51, 40}, []uint32{40, 51, 49, 49}},
		{true, []uint32{50, 52, 49, 49}, nil, []uint32{50, 52, 49, 49}},
	} {
		var got []uint32
		for _, ev := range insertEvents(&stream.Batch{Events: events(c.batch...), Partial: c.partial}, events(c.others...)) {
			got = append(got, ev.At.TS.T)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v with %v, partial %t: %v, want %v", c.batch, c.others, c.partial, got, c.want)
		}
	}
}
