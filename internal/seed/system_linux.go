package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneFile makes to share all of from's blocks without reading them. It returns
// errCannotClone where the file system cannot.
func cloneFile(to, from *os.File) error {
	err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	for _, cannot := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, cannot) {
			return errCannotClone
		}
	}
	if err != nil {
		return fmt.Errorf("seed: cannot clone %s: %w", from.Name(), explain(err))
	}
	return nil
}

// directAlign divides offset, length and memory of a direct write, as large as any disk's sector (open(2), O_DIRECT).
const directAlign = 4096

// openDirect opens a file for writes without page cache: a copy would evict the pages of other servers.
func openDirect(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_WRONLY|unix.O_DIRECT, 0)
}

// preallocate allocates a range, without which direct writes to one file are serial. It sets the file's size.
func preallocate(f *os.File, at, length int64) error {
	return unix.Fallocate(int(f.Fd()), 0, at, length)
}

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

// settlesWrites reports a file system on which awaitWrites works.
func settlesWrites(name string) bool {
	var st unix.Statfs_t
	if unix.Statfs(name, &st) != nil {
		return false
	}
	return slices.Contains([]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC},
		int64(st.Type)) //nolint:unconvert // of other types on other processors
}

// startWriting starts to write a range to disk, which shortens the final fsync. It is only a hint.
func startWriting(f *os.File, at, length int64) {
	_ = unix.SyncFileRange(int(f.Fd()), at, length, unix.SYNC_FILE_RANGE_WRITE)
}

// nextHole returns the end of the data at an offset, at if that is unknown.
func nextHole(f *os.File, at int64) int64 {
	next, err := f.Seek(at, unix.SEEK_HOLE)
	if err != nil {
		return at
	}
	return next
}

// nextData returns the first offset from at on outside a hole, size for none.
func nextData(f *os.File, at, size int64) int64 {
	next, err := f.Seek(at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, syscall.ENXIO):
		return size
	case err != nil:
		return at // unknown: read it
	}
	return next
}

// withGuardian makes the kernel shut down a process when the thread that started it ends.
func withGuardian() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
