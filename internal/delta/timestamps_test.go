package delta

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/test/testseed"
)

func TestHoldsZeros(t *testing.T) {
	testseed.Each(t, zerosAreFound)
}

func zerosAreFound(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	found := 0
	for range 20_000 {
		b := make([]byte, r.IntN(60))
		for i := range b {
			b[i] = byte(max(r.IntN(8)-6, 0)) // mostly zeros
		}
		n := 1 + r.IntN(12)
		want := bytes.Contains(b, make([]byte, n))
		if want {
			found++
		}
		if got := holdsZeros(b, n); got != want {
			t.Fatalf("%d zeros in %x: %v, want %v", n, b, got, want)
		}
	}
	if found < 1000 || found > 19_000 {
		t.Errorf("%d of 20000 held zeros: the test shows little", found)
	}
}
