package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/ownership"
)

// table of chunks, each "min-max shard version".
func table(t *testing.T, chunks ...string) *ownership.Table {
	t.Helper()
	var all []ownership.Chunk
	for _, one := range chunks {
		var from, to int32
		var shard string
		var version uint32
		readChunk(t, one, &from, &to, &shard, &version)
		all = append(all, ownership.Chunk{Min: bound(t, from), Max: bound(t, to), Shard: shard,
			Version: bson.Timestamp{T: version}})
	}
	return &ownership.Table{Chunks: all}
}

func bound(t *testing.T, k int32) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(bson.D{{Key: "k", Value: k}})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func readChunk(t *testing.T, text string, into ...any) {
	t.Helper()
	if n, err := fmt.Sscanf(strings.ReplaceAll(text, "-", " "), "%d %d %s %d", into...); n != len(into) {
		t.Fatalf("%q: %v", text, err)
	}
}

func reported(parts []ownership.Part) []string {
	var all []string
	for _, p := range parts {
		all = append(all, fmt.Sprintf("%d-%d %s", p.Min.Lookup("k").Int32(), p.Max.Lookup("k").Int32(), p.Shard))
	}
	return all
}

// TestOwed: what moves after the reading has ended is not read again, else chunks that
// never rest keep a copy from its end. What moved before is, wherever it goes and
// however it is split.
func TestOwed(t *testing.T) {
	o := &owed{since: ownership.Stand{Version: bson.Timestamp{T: 5}}, read: map[string]bool{}}
	expect := func(of *ownership.Table, want ...string) []ownership.Part {
		t.Helper()
		parts := o.of(of)
		if have := reported(parts); !slices.Equal(have, want) {
			t.Fatalf("owed are %q, want %q", have, want)
		}
		return parts
	}
	parts := expect(table(t, "0-10 a 3", "10-20 b 6", "20-30 b 5", "30-40 a 7"), "10-20 b", "30-40 a")
	o.done(parts[0])
	// The one that was read moves on, the other is split and half of it moves; one that had
	// rested moves.
	parts = expect(table(t, "0-10 b 9", "10-20 a 8", "20-30 c 12", "30-35 a 10", "35-40 b 11"), "30-35 a", "35-40 b")
	o.done(parts[0])
	parts = expect(table(t, "0-10 b 9", "10-20 a 8", "20-30 c 12", "30-35 c 13", "35-40 b 11"), "35-40 b")
	o.done(parts[0])
	expect(table(t, "0-10 a 14", "10-20 c 15", "20-30 b 16", "30-35 c 13", "35-40 a 17"))
}
