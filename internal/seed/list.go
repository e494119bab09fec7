package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// stamp reports whether a file may have changed. The change time cannot be set
// by a program, so that equal stamps mean an untouched file; but two changes
// within one tick of the kernel's clock look alike, which is why a stamp counts
// only when it was older than settle at the moment it was taken.
type stamp struct {
	size, mtime, ctime int64
	inode, device      uint64
	taken              time.Time
}

// settle is far above the tick of any kernel's clock where a file system keeps
// fractions of seconds, settleCoarse above the two seconds of one that keeps none.
const (
	settle       = 100 * time.Millisecond
	settleCoarse = 3 * time.Second
)

// unchangedSince reports whether nothing was written since the earlier stamp.
func (s stamp) unchangedSince(earlier stamp) bool {
	if earlier.taken.IsZero() || s.size != earlier.size || s.mtime != earlier.mtime ||
		s.ctime != earlier.ctime || s.inode != earlier.inode || s.device != earlier.device {
		return false
	}
	wait := settle
	if earlier.mtime%1e9 == 0 || earlier.ctime%1e9 == 0 {
		wait = settleCoarse
	}
	newest := time.Unix(0, max(earlier.mtime, earlier.ctime))
	return earlier.taken.Sub(newest) > wait
}

func stampOf(info fs.FileInfo, now time.Time) stamp {
	s := stamp{size: info.Size(), mtime: info.ModTime().UnixNano(), taken: now}
	var ok bool
	if s.ctime, s.inode, s.device, ok = identity(info); !ok {
		s.taken = time.Time{} // never trusted
	}
	return s
}

// listCopy lists the files of a copy. It follows no links: there are none in it.
func listCopy(root *os.Root) ([]File, error) {
	var files []File
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went between two looks
		}
		if d != nil && d.IsDir() && neverTables(d.Name()) {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() || checkPath(p) != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files = append(files, File{Path: p, Size: info.Size()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("seed: list %s: %w", root.Name(), err)
	}
	return files, nil
}
