package ycsb

import "strconv"

// hash is the FNV-1a hash of a number's eight bytes, the lowest first, as a
// signed number without its sign: what YCSB scatters keys with.
//
// Definition: Fowler, Noll, Vo; offset basis and prime for 64 bits.
func hash(n int64) int64 {
	const basis, prime = 0xcbf29ce484222325, 0x100000001b3
	h, v := uint64(basis), uint64(n)
	for range 8 {
		h = (h ^ v&0xff) * prime
		v >>= 8
	}
	return abs(int64(h))
}

// abs leaves the smallest number as it is, as Java does.
func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// keys turns the number of a record into its key.
type keys struct {
	ordered bool // else hashed
	pad     int  // digits at least
}

// append writes the key of record n.
func (k keys) append(dst []byte, n int64) []byte {
	if !k.ordered {
		n = hash(n)
	}
	dst = append(dst, "user"...)
	var digits [20]byte
	d := strconv.AppendInt(digits[:0], n, 10)
	for i := len(d); i < k.pad; i++ {
		dst = append(dst, '0')
	}
	return append(dst, d...)
}
