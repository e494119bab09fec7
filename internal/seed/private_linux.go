package seed

import "syscall"

// withGuardian has a process be shut down when the thread that started it ends.
func withGuardian() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
