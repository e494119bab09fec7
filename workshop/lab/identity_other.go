//go:build !linux

package lab

import (
	"errors"
	"syscall"
)

// errOnlyLinux says that clusters which outlive their starter are not to be had.
var errOnlyLinux = errors.New("processes can be told apart on Linux only")

func startTime(int) (uint64, error) { return 0, errOnlyLinux }

func hasArgument(int, string) bool { return false }

func (id Identity) signal(syscall.Signal) error { return errOnlyLinux }

func (id Identity) exited() bool { return true }
