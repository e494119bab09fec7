package fold

import (
	"bytes"
	"math/bits"
)

// memory allocates bytes that are freed together, to spare the garbage collector many small objects of
// one lifetime. It keeps its size until trim.
type memory struct {
	pieces  [][]byte // of pieceBytes each; what is given out is their length
	at      int      // the piece that is given out of
	free    [classes][][]byte
	scratch []byte // for results before their size is known
}

const (
	pieceBytes = 64 << 10
	// Sizes are 64, 96, 128, 192, … bytes up to maxPart, so that freed parts can be reused. Larger parts
	// are allocated separately.
	classes    = 17
	maxPart    = 16 << 10
	maxScratch = 1 << 20
)

// class returns the smallest class that holds n bytes.
func class(n int) int {
	if n <= 64 {
		return 0
	}
	b := bits.Len(uint(n - 1))
	if c := 2 * (b - 6); n > 3<<(b-2) {
		return c
	}
	return 2*(b-6) - 1
}

func classSize(c int) int {
	if c%2 == 0 {
		return 64 << (c / 2)
	}
	return 96 << (c / 2)
}

// take returns n bytes, not cleared, and frees room.
func (m *memory) take(n int, room []byte) []byte {
	if k := cap(room); k >= classSize(0) && k <= maxPart {
		c := class(k)
		if classSize(c) > k {
			c--
		}
		m.free[c] = append(m.free[c], room)
	}
	if n > maxPart {
		return make([]byte, n)
	}
	c := class(n)
	if k := len(m.free[c]); k > 0 {
		b := m.free[c][k-1]
		m.free[c] = m.free[c][:k-1]
		return b[:n]
	}
	return m.cut(classSize(c))[:n]
}

func (m *memory) cut(n int) []byte {
	if m.at < len(m.pieces) && len(m.pieces[m.at])+n > pieceBytes {
		m.at++
	}
	if m.at == len(m.pieces) {
		m.pieces = append(m.pieces, make([]byte, 0, pieceBytes))
	}
	p := m.pieces[m.at]
	start, end := len(p), len(p)+n
	m.pieces[m.at] = p[:end]
	return p[start:end:end]
}

// copy copies b, which will not grow.
func (m *memory) copy(b []byte) []byte {
	if len(b) > maxPart {
		return bytes.Clone(b)
	}
	return append(m.cut(len(b))[:0], b...)
}

// place copies b into room if it fits, else into new memory.
func (m *memory) place(room, b []byte) []byte {
	if cap(room) < len(b) {
		room = m.take(len(b), room)
	}
	return append(room[:0], b...)
}

// result keeps a buffer that began as scratch.
func (m *memory) result(b []byte) {
	if cap(b) <= maxScratch {
		m.scratch = b[:0]
	}
}

func (m *memory) reset() {
	for i := range m.pieces[:min(m.at+1, len(m.pieces))] {
		m.pieces[i] = m.pieces[i][:0]
	}
	for c := range m.free {
		m.free[c] = m.free[c][:0]
	}
	m.at = 0
}

// trim, called after reset, frees all but one piece.
func (m *memory) trim() {
	if len(m.pieces) > 1 {
		*m = memory{pieces: m.pieces[:1:1], scratch: m.scratch}
	}
}
