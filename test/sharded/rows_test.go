package sharded_test

import (
	"testing"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/workshop/lab"
)

// TestRows: of a cluster whose chunks move, and on one, the documents of filters arrive
// that all writes bring in or take out, by fields, by the shard key and in transactions,
// with their fields mapped, also where the job is broken off.
func TestRows(t *testing.T) {
	for _, name := range []string{"from shards", "to shards", "shards"} {
		t.Run(name, func(t *testing.T) {
			if name != "shards" {
				lab.Nightly(t)
			}
			var b *bed
			var newSpec func() job.Spec
			if name == "from shards" {
				b = newBed(t)
				b.collections()
				newSpec = b.spec
			} else {
				to := newBedTo(t, "2x1", name == "shards")
				b, newSpec = to.bed, to.spec
			}
			b.filters = map[string]string{"ranged": `{"k":{"$bitsAnySet":1}}`, "hashed": `{"n":{"$bitsAllClear":1}}`,
				"plain": `{"$or":[{"m":{"$bitsAnySet":1}},{"f1":{"$gt":50}}]}`}
			b.fields = map[string]string{"ranged": `{"rename":{"f1":"first","n":"m"},"set":{"tenant":"a"}}`,
				"plain": `{"drop":["f2"],"from":{"copied":"m"},"mask":{"f1":"null"}}`}
			b.fill(times(300, 1500))
			end := b.writing()
			spec := newSpec()
			b.brokenOff(spec, times(2, 6))
			j, done := b.start(spec)
			b.following(j, done)
			b.applies(j, done, 1000)
			end()
			b.finish(j, done)
			if r := b.verify(verify.Spec{Source: b.sourceURI, Target: b.targetURI, Rules: spec.Rules}); r.Count > 0 {
				t.Errorf("seed %d: verify finds %d differences", b.seed, r.Count)
			}
		})
	}
}
