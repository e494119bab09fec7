package seed

import "syscall"

// apart starts a process in a session of its own, where no signal to this
// one's group or terminal reaches it.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
