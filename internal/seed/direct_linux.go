package seed

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directAlign is what the offset, length and memory of a write past the page
// cache have to be multiples of: as much as any disk's sector (open(2), O_DIRECT).
const directAlign = 4096

// openDirect opens a file for writes that do not go through the page cache. A
// copy is as large as the member's data, and nobody reads it soon: its pages
// would push out those of the servers beside it.
func openDirect(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_WRONLY|unix.O_DIRECT, 0)
}

// preallocate gives a range its blocks, and the file the size for it: only then
// do direct writes to one file go on side by side.
func preallocate(f *os.File, at, length int64) error {
	return unix.Fallocate(int(f.Fd()), 0, at, length)
}

// directBuffer is memory for direct writes.
func directBuffer(n int) []byte {
	b := make([]byte, n+directAlign)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (directAlign - 1))
	return b[skip : skip+n : skip+n]
}
