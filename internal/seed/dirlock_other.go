//go:build !unix

package seed

import (
	"errors"
	"io/fs"
	"math"
	"os"
)

func lockDirectory(directory, bool) (*os.File, error) {
	return nil, errors.New("seed: this system is not supported; seed works on Unix systems")
}

func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

// tryLock is not known here.
func tryLock(*os.File) error { return errors.ErrUnsupported }

// openAtOnce is not known here.
const openAtOnce = 0

// sameOwner is not known here.
func sameOwner(fs.FileInfo, fs.FileInfo) bool { return true }

// ownedByUs is not known here.
func ownedByUs(fs.FileInfo) bool { return false }
