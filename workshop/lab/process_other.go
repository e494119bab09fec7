//go:build !linux

package lab

import "syscall"

// childAttr gives a child its own process group, so that the terminal's
// Ctrl-C reaches only the starter. Only Linux can end a child with its parent.
func childAttr(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true}
}
