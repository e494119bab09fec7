package seed

import "sync"

// blocks are what everybody who reads a round's blocks shares. Safe for
// concurrent use.
type blocks struct {
	size blockSize
	// zeros is a block of zeros, to be compared with, and zero its checksum.
	zeros []byte
	zero  Sum
	// buffers hold a chunk each: there may be very many small files.
	buffers sync.Pool
}

func newBlocks(size blockSize) *blocks {
	b := &blocks{size: size, zeros: make([]byte, size)}
	b.zero = sumOf(b.zeros)
	b.buffers.New = func() any {
		buf := make([]byte, max(int(size), chunkBytes))
		return &buf
	}
	return b
}

// perChunk is how many blocks are read at once.
func (b *blocks) perChunk() int { return max(chunkBytes/int(b.size), 1) }

// buffer lends room for a chunk; free takes it back.
func (b *blocks) buffer() (buf []byte, free func()) {
	p, _ := b.buffers.Get().(*[]byte)
	return *p, func() { b.buffers.Put(p) }
}
