//go:build !unix

package seed

import "syscall"

func apart() *syscall.SysProcAttr { return nil }
