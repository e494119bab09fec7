//go:build !linux

package main

import "syscall"

// childAttr keeps the terminal's Ctrl-C from the child, whose end is the
// demo's business. Only Linux can end a child with its parent.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
