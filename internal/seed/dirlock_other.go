//go:build !unix

package seed

import (
	"errors"
	"io/fs"
	"math"
	"os"
)

func lockDirectory(*os.Root, bool) (*os.File, error) {
	return nil, errors.New("seed: this system is not supported; seed works on Unix systems")
}

func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

// tryLock is not known here.
func tryLock(*os.File) error { return errors.ErrUnsupported }

// ownedByUs is not known here.
func ownedByUs(fs.FileInfo) bool { return false }
