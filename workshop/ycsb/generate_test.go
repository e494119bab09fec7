package ycsb

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/test/testseed"
)

// random is a source with the test's seed.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testseed.Of(t), 0))
}

// near checks a count of n draws against its probability, within six standard
// deviations: a false alarm once in half a billion checks.
func near(t *testing.T, what string, got, n int, p float64) {
	t.Helper()
	want, dev := p*float64(n), math.Sqrt(float64(n)*p*(1-p))
	if math.Abs(float64(got)-want) > 6*dev+1 {
		t.Errorf("%s: %d of %d, want about %.0f (standard deviation %.1f)", what, got, n, want, dev)
	}
}

const draws = 200_000

func counts(g numbers, r *rand.Rand, n int) map[int64]int {
	c := map[int64]int{}
	for range n {
		c[g.next(r)]++
	}
	return c
}

func inRange(t *testing.T, c map[int64]int, low, high int64) {
	t.Helper()
	for n := range c {
		if n < low || n > high {
			t.Fatalf("drew %d, want %d to %d", n, low, high)
		}
	}
}

func TestUniform(t *testing.T) {
	c := counts(uniform{10, 29}, random(t), draws)
	inRange(t, c, 10, 29)
	for n := int64(10); n <= 29; n++ {
		near(t, fmt.Sprint(n), c[n], draws, 1.0/20)
	}
}

func TestSequential(t *testing.T) {
	s := &sequential{low: 5, high: 7}
	for i, want := range []int64{5, 6, 7, 5, 6} {
		if got := s.next(nil); got != want {
			t.Errorf("draw %d is %d, want %d", i, got, want)
		}
	}
}

func TestHarmonic(t *testing.T) {
	h := newHarmonic(zipfTheta)
	for _, n := range []int64{1, 2, 999, 1000, 1001, 50_000, 300_000} {
		var want float64
		for i := n; i >= 1; i-- { // the small ones first, for the sake of the sum
			want += math.Pow(float64(i), -zipfTheta)
		}
		if got := h.sum(n); math.Abs(got-want) > 1e-9 {
			t.Errorf("sum up to %d is %.12f, want %.12f", n, got, want)
		}
	}
	// The constant that YCSB was published with.
	if got := h.sum(scrambledRanks); math.Abs(got-26.46902820178302) > 1e-6 {
		t.Errorf("sum up to %d is %.12f", int64(scrambledRanks), got)
	}
}

// The algorithm draws the first two ranks exactly and approximates the others
// by a power law, whose sums are right within a few percent.
func TestZipfian(t *testing.T) {
	const n = 1000
	h := newHarmonic(zipfTheta)
	c := counts(newZipfian(n, h), random(t), draws)
	inRange(t, c, 0, n-1)
	near(t, "rank 0", c[0], draws, 1/h.sum(n))
	near(t, "rank 1", c[1], draws, math.Pow(2, -zipfTheta)/h.sum(n))
	for _, upto := range []int64{10, 100, 500} {
		var got int
		for rank := range upto {
			got += c[rank]
		}
		want := h.sum(upto) / h.sum(n)
		if share := float64(got) / draws; math.Abs(share-want) > 0.03 {
			t.Errorf("ranks below %d are %.3f of all, want %.3f", upto, share, want)
		}
	}
}

func TestZipfianOfFew(t *testing.T) {
	r := random(t)
	for n := int64(1); n <= 4; n++ {
		c := counts(newZipfian(n, newHarmonic(zipfTheta)), r, 10_000)
		inRange(t, c, 0, n-1)
		if len(c) != int(n) {
			t.Errorf("of %d ranks, %d were drawn", n, len(c))
		}
	}
}

// The most popular records are those that the hashes of the first ranks name.
func TestScrambledZipfian(t *testing.T) {
	const low, n = 100, 1000
	h := newHarmonic(zipfTheta)
	g := scrambled{newZipfian(scrambledRanks, h), low, n}
	c := counts(g, random(t), draws)
	inRange(t, c, low, low+n-1)
	hot := low + hash(0)%n
	// Its own rank, and its part of those that the hash spreads evenly.
	own := 1 / h.sum(scrambledRanks)
	near(t, "the most popular record", c[hot], draws, own+(1-own)/n)
	for record, count := range c {
		if record != hot && count >= c[hot] {
			t.Errorf("record %d is drawn %d times, the one of rank 0 (%d) %d times", record, count, hot, c[hot])
		}
	}
}

func TestLatest(t *testing.T) {
	const low = 50
	newest := int64(1049)
	h := newHarmonic(zipfTheta)
	g := &latest{harmonic: h, low: low, newest: func() int64 { return newest }}
	r := random(t)
	c := counts(g, r, draws)
	inRange(t, c, low, newest)
	near(t, "the newest", c[newest], draws, 1/h.sum(1000))
	near(t, "the one before", c[newest-1], draws, math.Pow(2, -zipfTheta)/h.sum(1000))
	newest = 2049
	c = counts(g, r, draws)
	near(t, "the newest of more", c[newest], draws, 1/h.sum(2000))
}

func TestHotspot(t *testing.T) {
	c := counts(newHotspot(0, 999, 0.2, 0.8), random(t), draws)
	inRange(t, c, 0, 999)
	var hot int
	for n := range int64(200) {
		hot += c[n]
	}
	near(t, "hot records", hot, draws, 0.8)
	near(t, "a hot record", c[7], draws, 0.8/200)
	near(t, "a cold record", c[700], draws, 0.2/800)
	inRange(t, counts(newHotspot(3, 3, 0, 1), random(t), 100), 3, 3)
	inRange(t, counts(newHotspot(3, 4, 1, 0), random(t), 100), 3, 4)
}

func TestExponential(t *testing.T) {
	const n, frac = 100_000, 0.5
	newest := int64(n - 1)
	g := newExponential(0, 95, n*frac, func() int64 { return newest })
	c := counts(g, random(t), draws)
	inRange(t, c, 0, newest)
	var recent int
	for number, count := range c {
		if number > newest-int64(n*frac) {
			recent += count
		}
	}
	// What would lie before the first record is drawn again: 0.05² of all.
	near(t, "within the newest half", recent, draws, 0.95/(1-0.05*0.05))
}

func TestHistogram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hist.txt")
	if err := os.WriteFile(file, []byte("BlockSize\t10\n0\t3\n4\t1\n9\t0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := readHistogram(file)
	if err != nil {
		t.Fatal(err)
	}
	c := counts(h, random(t), draws)
	near(t, "length 10", c[10], draws, 0.75)
	near(t, "length 50", c[50], draws, 0.25)
	if c[10]+c[50] != draws {
		t.Errorf("other lengths were drawn: %v", c)
	}
}

func TestRequestsOfAllDistributions(t *testing.T) {
	r := random(t)
	for _, name := range []string{"uniform", "zipfian", "latest", "hotspot", "sequential", "exponential"} {
		c, err := parse(Properties{"requestdistribution": name, "recordcount": "500", "insertstart": "100",
			"insertproportion": "0.5"}, Run)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorkload(c, nil)
		got := map[int64]int{}
		for range 20_000 {
			got[w.record(r)]++
		}
		inRange(t, got, 100, 499)
		n := w.inserts.take()
		w.inserts.acknowledge(n)
		if name == "latest" && w.record(r) > 500 || n != 500 {
			t.Errorf("the first insert is %d, want 500", n)
		}
	}
}

// A run that inserts a thousand times as many records as there are has records
// to work on at once.
func TestRecordsThatAreStillToCome(t *testing.T) {
	c, err := parse(Properties{"requestdistribution": "zipfian", "recordcount": "10", "operationcount": "1000000000",
		"insertproportion": "1", "readproportion": "1"}, Run)
	if err != nil {
		t.Fatal(err)
	}
	w, r, got := newWorkload(c, nil), random(t), map[int64]int{}
	for range 2000 {
		got[w.record(r)]++
	}
	inRange(t, got, 0, 9)
	if len(got) != 10 {
		t.Errorf("drew %v", got)
	}
}

func TestMixOfOperations(t *testing.T) {
	// Weights, not shares.
	c, err := parse(Properties{"readproportion": "5", "updateproportion": "3", "insertproportion": "1",
		"scanproportion": "1"}, Run)
	if err != nil {
		t.Fatal(err)
	}
	w, r := newWorkload(c, nil), random(t)
	got := map[kind]int{}
	for range draws {
		got[w.operation(r)]++
	}
	for k, p := range map[kind]float64{opRead: 0.5, opUpdate: 0.3, opInsert: 0.1, opScan: 0.1, opModify: 0} {
		near(t, k.String(), got[k], draws, p)
	}
}

func TestSequenceKnowsWhatIsThere(t *testing.T) {
	s := newSequence(10)
	a, b, c := s.take(), s.take(), s.take()
	s.acknowledge(c)
	s.acknowledge(b)
	if s.newest.Load() != 9 {
		t.Errorf("newest is %d while %d is under way", s.newest.Load(), a)
	}
	s.acknowledge(a)
	if s.newest.Load() != c || len(s.done) != 0 {
		t.Errorf("newest is %d, want %d; %d are kept", s.newest.Load(), c, len(s.done))
	}
}
