package placing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/test/testseed"
)

func value(n int) bound {
	typ, raw, _ := bson.MarshalValue(int32(n))
	return bound{{Type: typ, Value: raw}}
}

func values(cuts []bound) (out []int) {
	for _, c := range cuts {
		out = append(out, int(c[0].Int32()))
	}
	return out
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

// TestCut: ranges weigh about the same, and lie between the source's chunks where
// these are enough.
func TestCut(t *testing.T) {
	var sample []point
	for i := range 100 {
		sample = append(sample, point{value(i), 10})
	}
	rand.New(rand.NewPCG(testseed.Of(t), 0)).Shuffle(len(sample),
		func(i, j int) { sample[i], sample[j] = sample[j], sample[i] })
	cuts, weights := cut(nil, sample, 4)
	equal(t, "sampled", fmt.Sprint(values(cuts), weights), "[25 50 75] [250 250 250 250]")

	chunks := []bound{value(-50), value(10), value(20), value(30), value(40), value(52), value(60), value(70), value(90),
		value(500)}
	cuts, weights = cut(chunks, slices.Clone(sample), 4)
	equal(t, "between chunks", fmt.Sprint(values(cuts), weights), "[20 52 70] [200 320 180 300]")

	cuts, weights = cut(chunks, nil, 4)
	equal(t, "chunks alone", fmt.Sprint(len(cuts), weights), "3 [3 2 3 3]")

	cuts, weights = cut([]bound{value(50)}, nil, 4)
	equal(t, "few chunks", fmt.Sprint(values(cuts), weights), "[50] [1 1]")

	cuts, weights = cut(nil, nil, 4)
	equal(t, "nothing known", fmt.Sprint(len(cuts), weights), "0 [1]")

	for i := range sample { // nearly all have one key
		if i < 90 {
			sample[i].key = value(7)
		} else {
			sample[i].key = value(i)
		}
	}
	cuts, weights = cut(nil, sample, 4)
	equal(t, "one key", fmt.Sprint(values(cuts), weights), "[90] [900 100]")
}

// TestCutAnything: bounds ascend, and no range is without documents of the sample.
func TestCutAnything(t *testing.T) { testseed.Each(t, cutAnything) }

func cutAnything(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		var given []bound
		var sample []point
		for range r.IntN(40) {
			given = append(given, value(r.IntN(100)))
		}
		for range r.IntN(200) {
			sample = append(sample, point{value(r.IntN(1 + r.IntN(100))), 1 + r.Float64()})
		}
		n := 1 + r.IntN(20)
		cuts, weights := cut(given, sample, n)
		if len(cuts) >= n || len(weights) != len(cuts)+1 {
			t.Fatalf("seed %d: %d cuts and %d weights of %d ranges", seed, len(cuts), len(weights), n)
		}
		for i, w := range weights {
			if w <= 0 && len(sample) > 0 {
				t.Fatalf("seed %d: range %d weighs %g", seed, i, w)
			}
			if i > 0 && i < len(cuts) && shardkey.CompareKeys(cuts[i-1], cuts[i]) >= 0 {
				t.Fatalf("seed %d: cuts %v", seed, values(cuts))
			}
		}
	}
}

// anyOf are ranges that both shards may have.
func anyOf(n int) (of [][]string) {
	for range n {
		of = append(of, []string{"a", "b"})
	}
	return of
}

// TestOwners: shards get the same share, equal ranges in turn.
func TestOwners(t *testing.T) {
	equal(t, "equal", owners([]float64{1, 1, 1, 1}, anyOf(4)), "[a b a b]")
	equal(t, "heavy", owners([]float64{1, 1, 6, 1, 1, 2}, anyOf(6)), "[b b a b b b]")
	equal(t, "zones", owners([]float64{1, 2, 1, 1}, [][]string{{"a", "b"}, {"b"}, {"a", "b"}, {"a"}}), "[a b b a]")
}

// TestRules: both forms of a key mean the same.
func TestRules(t *testing.T) {
	r, err := ParseRules([]string{"d.a=x:1, y.z:hashed", `d.b={"x": 1.0, "y.z": "hashed"}`, "d.c=none", "d.d=_id"})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := r.Of("d.a")
	b, _ := r.Of("d.b")
	c, ruled := r.Of("d.c")
	d, _ := r.Of("d.d")
	if !SameKey(a, b) || SameKey(a, d) || c != nil || !ruled || shardkey.Text(d) != "_id:1" ||
		shardkey.Text(a) != "x:1,y.z:hashed" {
		t.Errorf("%s, %s, %s, %s", shardkey.Text(a), shardkey.Text(b), shardkey.Text(c), shardkey.Text(d))
	}
	if _, ok := r.Of("d.e"); ok {
		t.Error("a rule for d.e")
	}
}
