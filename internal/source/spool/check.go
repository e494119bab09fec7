package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Check looks whether a spool could be kept in dir, and how many bytes are free
// there. It writes nothing: of a directory that does not exist yet, it asks the
// one that it would be made in.
func Check(dir string) (free uint64, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("find the directory of the spool: %w", err)
	}
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return 0, fmt.Errorf("%s: %w", at, syscall.ENOTDIR)
		}
		if err == nil {
			break
		}
		if up := filepath.Dir(at); up != at && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
			at = up
			continue
		}
		return 0, err
	}
	if err := unix.Access(at, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return 0, fmt.Errorf("write to %s: %w", at, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return 0, fmt.Errorf("ask for the room on the disk of %s: %w", at, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
