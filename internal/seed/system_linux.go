package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneFile makes to share all of from's blocks, in a moment and without a
// byte read. Its error is errCannotClone where the file system cannot.
func cloneFile(to, from *os.File) error {
	err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	for _, cannot := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, cannot) {
			return errCannotClone
		}
	}
	if err != nil {
		return fmt.Errorf("seed: clone %s: %w", from.Name(), explain(err))
	}
	return nil
}

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

// identity is a file's change time in nanoseconds, its inode and its device.
func identity(info fs.FileInfo) (ctime int64, inode, device uint64, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 0, false
	}
	return st.Ctim.Nano(), st.Ino, uint64(st.Dev), true //nolint:unconvert // of other types on other processors
}

// settlesWrites reports whether awaitWrites does its work on the file system of a file.
func settlesWrites(name string) bool {
	var st unix.Statfs_t
	if unix.Statfs(name, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// startWriting has the kernel begin to write a range to disk, so that the fsync
// at the end finds little to do. It is a hint only.
func startWriting(f *os.File, at, length int64) {
	_ = unix.SyncFileRange(int(f.Fd()), at, length, unix.SYNC_FILE_RANGE_WRITE)
}

// nextHole is where the data end that begin at an offset; at when that is not
// told, so that it is asked for each block.
func nextHole(f *os.File, at int64) int64 {
	next, err := f.Seek(at, unix.SEEK_HOLE)
	if err != nil {
		return at
	}
	return next
}

// nextData is the first offset from at on that holds anything but a hole; size
// when none does.
func nextData(f *os.File, at, size int64) int64 {
	next, err := f.Seek(at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, syscall.ENXIO):
		return size
	case err != nil:
		return at // not told: read it
	}
	return next
}

// withGuardian has a process be shut down when the thread that started it ends.
func withGuardian() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
