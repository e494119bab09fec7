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

// openDirect is not known here.
func openDirect(*os.Root, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func preallocate(*os.File, int64, int64) error { return errors.ErrUnsupported }

func directBuffer(n int) []byte { return make([]byte, n) }

// identity is not known here: every file is compared by its content.
func identity(fs.FileInfo) (ctime int64, inode, device uint64, ok bool) { return 0, 0, 0, false }

// settlesWrites is not known here.
func settlesWrites(string) bool { return false }

// startWriting is not known here.
func startWriting(*os.File, int64, int64) {}

// nextHole is not known here.
func nextHole(_ *os.File, at int64) int64 { return at }

// nextData is not known here.
func nextData(_ *os.File, at, _ int64) int64 { return at }

// withGuardian adds nothing: this system does not tie a process to the one that started it.
func withGuardian() *syscall.SysProcAttr { return nil }
