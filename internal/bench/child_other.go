//go:build !linux

package bench

import "syscall"

// childAttr keeps the terminal's interrupts from a child: the bench ends it.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
