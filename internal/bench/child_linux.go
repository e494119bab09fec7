package bench

import "syscall"

// childAttr lets a child die with the bench, and keeps the terminal's
// interrupts from it: the bench ends it.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
