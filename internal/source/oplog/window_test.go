package oplog

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

func second(n uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: n}} }

// TestLeft: an oplog with room has lost nothing, however young it is; the room counts at the write rate. A full
// one replaces what is older than the position. What a job is behind says nothing of the rate.
func TestLeft(t *testing.T) {
	const mb, hour = 1 << 20, 3600
	for _, c := range []struct {
		name   string
		window Window
		need   uint32
		want   time.Duration
	}{
		{"young and idle", Window{Oldest: second(100), Newest: second(110), Bytes: 10 * mb, MaxBytes: 1000 * mb}, 105,
			99 * 24 * time.Hour},
		{"young, with a load", Window{Oldest: second(100), Newest: second(110), Bytes: 10 * mb, MaxBytes: 1000 * mb,
			recent: mb}, 100, 990 * time.Second},
		{"half full after a month", Window{Oldest: second(0), Newest: second(720 * hour), Bytes: 500 * mb,
			MaxBytes: 1000 * mb}, 720 * hour, 1440 * time.Hour},
		{"full, newest", Window{Oldest: second(0), Newest: second(10 * hour), Bytes: 1010 * mb, MaxBytes: 1000 * mb},
			10 * hour, 10 * time.Hour},
		{"full, resumed far behind", Window{Oldest: second(0), Newest: second(10 * hour), Bytes: 1000 * mb,
			MaxBytes: 1000 * mb}, 2 * hour, 2 * time.Hour},
		{"full, written faster of late", Window{Oldest: second(0), Newest: second(10 * hour), Bytes: 1000 * mb,
			MaxBytes: 1000 * mb, recent: 1000.0 * mb / hour}, 2 * hour, 12 * time.Minute},
		{"lost", Window{Oldest: second(50), Newest: second(60), Bytes: 10 * mb, MaxBytes: 10 * mb}, 40, 0},
		{"of unknown size", Window{Oldest: second(50), Newest: second(60)}, 58, 8 * time.Second},
	} {
		if got := c.window.Left(second(c.need)); (got - c.want).Abs() > c.want/20 {
			t.Errorf("%s: %s left, want %s", c.name, got, c.want)
		}
	}
	w := Window{Shards: map[string]Window{"a": {Oldest: second(0), Newest: second(9)}, "b": {Oldest: second(5)}}}
	if shard, _ := w.First(second(7)); shard != "b" || w.Left(second(7)) != 2*time.Second {
		t.Errorf("shard %s, %s left", shard, w.Left(second(7)))
	}
}

// TestMeter: the rate is that of the last minute, also of shards; a server that has started again counts anew.
func TestMeter(t *testing.T) {
	var m Meter
	begin := time.Now()
	for i, written := range []int64{100, 700, 1300, 13_300, 5, 605} {
		one := Window{at: begin.Add(time.Duration(i) * time.Minute), written: written, Newest: second(1)}
		w := Window{at: one.at, Shards: map[string]Window{"a": one}}
		m.Add(&w)
		got, want := w.Shards["a"], []float64{0, 10, 10, 200, 0, 10}[i]
		if got.Rate() != want {
			t.Errorf("minute %d: %v bytes a second, want %v", i, got.Rate(), want)
		}
	}
}

// TestReadWindow: a server reports how full its oplog is and how much was written.
func TestReadWindow(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			l := lab.ForTest(t, lab.Options{Version: version})
			c, db := connect(t, l.URI()), kit.Client(t, l.URI()).Database("window")
			before, err := ReadWindow(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			pad := bson.D{{Key: "pad", Value: make([]byte, 1<<20)}}
			if _, err := db.Collection("c").InsertOne(t.Context(), pad); err != nil {
				t.Fatal(err)
			}
			w, err := ReadWindow(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			w.Since(&before)
			if w.Bytes-before.Bytes < 1<<20 || w.written-before.written < 1<<20 || w.MaxBytes < 900<<20 || w.recent == 0 {
				t.Errorf("%+v, before %+v", w, before)
			}
			if w.Full() || w.Left(w.Newest) < 24*time.Hour && w.recent*24*3600 < float64(w.MaxBytes) {
				t.Errorf("%s left of %+v", w.Left(w.Newest), w)
			}
		})
	}
}

// TestFullShards: the window of a cluster has no sizes of its own.
func TestFullShards(t *testing.T) {
	roomy, full := Window{Bytes: 1, MaxBytes: 100}, Window{Bytes: 99, MaxBytes: 100}
	for _, c := range []struct {
		shards map[string]Window
		want   bool
	}{
		{map[string]Window{"a": roomy, "b": roomy}, false},
		{map[string]Window{"a": roomy, "b": full}, true},
		{map[string]Window{"a": roomy, "b": {}}, true}, // unknown
	} {
		if w := (Window{Shards: c.shards}); w.Full() != c.want {
			t.Errorf("%v: full %v", c.shards, !c.want)
		}
	}
}
