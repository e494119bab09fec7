package seed

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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
