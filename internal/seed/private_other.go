//go:build !linux

package seed

import "syscall"

// withGuardian adds nothing: this system does not tie a process to the one that started it.
func withGuardian() *syscall.SysProcAttr { return nil }
