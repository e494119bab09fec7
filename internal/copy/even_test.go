package copy

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/pace"
)

// TestEvenReplies: under a limit no reply has more than half a second of it, in documents and in bytes, also where
// the limit comes while a slice is read.
func TestEvenReplies(t *testing.T) {
	c := server(t, "6.0")
	docs := make([]any, 3000)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "p", Value: make([]byte, 500)}}
	}
	insert(t, c, "even", "c", docs)
	for target, limit := range map[string]pace.Rates{"docs": {Docs: 600}, "bytes": {Bytes: 300_000}} {
		must(
			t,
			c,
			"even",
			bson.D{{Key: "profile", Value: 2}, {Key: "filter", Value: bson.D{{Key: "ns", Value: "even.c"}}}},
		)
		o := small(t, c)
		o.BatchBytes, o.SliceBytes, o.Limit = 16<<20, 64<<20, pace.New(limit)
		task := taskOf(source(t, c, "even", "c"), "even_t."+target)
		if err := New(c, c, newStore(), o).Run(t.Context(), []Task{task}); err != nil {
			t.Fatal(err)
		}
		must(t, c, "even", bson.D{{Key: "profile", Value: 0}})
		same(t, dump(t, c, "even", "c"), dump(t, c, "even_t", target))
		replies := 0
		for _, raw := range dump(t, c, "even", "system.profile") {
			p := bson.Raw(raw)
			n, _ := p.Lookup("nreturned").AsInt64OK()
			size, _ := p.Lookup("responseLength").AsInt64OK()
			if n > 0 {
				replies++
			}
			if limit.Docs > 0 && n > limit.Docs/2 || limit.Bytes > 0 && size > limit.Bytes/2+20_000 {
				t.Errorf("%s: a reply has %d documents, %d bytes: %s", target, n, size, p)
			}
		}
		if replies < 3 {
			t.Errorf("%s: %d replies were seen", target, replies)
		}
		must(t, c, "even", bson.D{{Key: "drop", Value: "system.profile"}})
	}
}
