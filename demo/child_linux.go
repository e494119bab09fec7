package main

import "syscall"

// childAttr keeps the terminal's Ctrl-C from the child, whose end is the
// demo's business, and lets it die with the demo.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
