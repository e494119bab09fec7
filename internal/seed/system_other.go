//go:build !linux

package seed

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

func cloneFile(_, _ *os.File) error { return errCannotClone }

const directAlign = 4096

func openDirect(*os.Root, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func preallocate(*os.File, int64, int64) error { return errors.ErrUnsupported }

func directBuffer(n int) []byte { return make([]byte, n) }

// Without an identity, every file is compared by its content.
func identity(fs.FileInfo) (ctime int64, inode, device uint64, ok bool) { return 0, 0, 0, false }

func settlesWrites(string) bool { return false }

func startWriting(*os.File, int64, int64) {}

func nextHole(_ *os.File, at int64) int64 { return at }

func nextData(_ *os.File, at, _ int64) int64 { return at }

func withGuardian() *syscall.SysProcAttr { return nil }
