package ycsb

import (
	"hash/fnv"
	"math/big"
	"testing"
)

// byDefinition is FNV-1a for 64 bits as it is defined, in whole numbers without
// a limit: start with the offset basis; for each byte, exclusive or, then
// multiply by the prime, modulo 2^64.
func byDefinition(data []byte) uint64 {
	basis, _ := new(big.Int).SetString("14695981039346656037", 10)
	prime := new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 40), big.NewInt(1<<8+0xb3))
	modulus := new(big.Int).Lsh(big.NewInt(1), 64)
	h := basis
	for _, b := range data {
		h = new(big.Int).Xor(h, big.NewInt(int64(b)))
		h = h.Mul(h, prime).Mod(h, modulus)
	}
	return h.Uint64()
}

// The first keys stand in published dumps of YCSB databases.
func TestKnownKeys(t *testing.T) {
	for n, want := range map[int64]string{
		0: "user6284781860667377211", 1: "user8517097267634966620", 2: "user1820151046732198393",
		3:    "user4052466453699787802",
		1000: "user5952875239596136740", 1<<32 + 5: "user5918643547491040335",
	} {
		if got := string(keys{pad: 1}.append(nil, n)); got != want {
			t.Errorf("key of %d is %s, want %s", n, got, want)
		}
	}
}

func TestHashIsFNV1a(t *testing.T) {
	for _, n := range []int64{0, 1, 255, 256, 65_537, 1 << 40, 1<<63 - 1} {
		bytes := make([]byte, 8)
		for i := range bytes {
			bytes[i] = byte(n >> (8 * i))
		}
		defined := byDefinition(bytes)
		library := fnv.New64a()
		_, _ = library.Write(bytes)
		if got := hash(n); got != abs(int64(defined)) || got != abs(int64(library.Sum64())) {
			t.Errorf("hash of %d is %d; by definition %d, by the standard library %d", n, got, defined, library.Sum64())
		}
	}
}

func TestKeyForms(t *testing.T) {
	for _, c := range []struct {
		keys keys
		n    int64
		want string
	}{
		{keys{ordered: true, pad: 1}, 7, "user7"},
		{keys{ordered: true, pad: 8}, 42, "user00000042"},
		{keys{ordered: true, pad: 2}, 12345, "user12345"},
		{keys{pad: 21}, 2, "user001820151046732198393"},
	} {
		if got := string(c.keys.append([]byte{}, c.n)); got != c.want {
			t.Errorf("%+v of %d is %s, want %s", c.keys, c.n, got, c.want)
		}
	}
}
