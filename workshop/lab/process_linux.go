package lab

import "syscall"

// childAttr gives a child its own process group, so that the terminal's
// Ctrl-C reaches only the starter. A child that is not detached dies with it.
func childAttr(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
