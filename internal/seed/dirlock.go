package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/mongo"
)

// lockDirectory takes the lock that a mongod takes on its data directory, so
// that none runs on it meanwhile. Closing the file gives it back.
func lockDirectory(root directory, create bool) (*os.File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := root.OpenFile("mongod.lock", flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("seed: open the lock of %s: %w", root.Name(), err)
	}
	err = tryLock(f)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, mongo.WithHint(fmt.Errorf("seed: %s is in use by a mongod or another seed", root.Name()), "end it first")
	}
	return nil, fmt.Errorf("seed: lock %s: %w", root.Name(), err)
}

// checkFree refuses a directory in which a mongod runs.
func checkFree(root directory) error {
	lock, err := lockDirectory(root, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return lock.Close()
}

// tryLock takes a lock on a file that lasts until it is closed, by children that
// have it open too.
func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// openAtOnce is a flag with which opening what is no regular file waits for nobody.
const openAtOnce = unix.O_NONBLOCK

// sameOwner reports whether two files belong to one user.
func sameOwner(a, b fs.FileInfo) bool {
	x, ok1 := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return ok1 && ok2 && x.Uid == y.Uid
}

// ownedByUs reports whether a file belongs to the user whom this process runs as.
func ownedByUs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// freeBytes is the room on the file system of a directory.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("seed: ask for the free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // of other types on other systems
}
