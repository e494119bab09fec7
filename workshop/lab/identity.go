package lab

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Identity names a process beyond doubt, also after its pid has gone to
// another one.
type Identity struct {
	// Pid is the process id.
	Pid int `json:"pid"`
	// Started is when the process started, in the kernel's clock ticks since boot.
	Started uint64 `json:"started"`
	// Mark is an argument of its command line.
	Mark string `json:"mark"`
}

// identify takes down who a running process is; mark must be one of its arguments.
func identify(pid int, mark string) (Identity, error) {
	started, err := startTime(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("lab: identify process %d: %w", pid, err)
	}
	return Identity{Pid: pid, Started: started, Mark: mark}, nil
}

// Running reports whether the process has not ended.
func (id Identity) Running() bool {
	if id.Pid <= 0 {
		return false
	}
	started, err := startTime(id.Pid)
	return err == nil && started == id.Started && hasArgument(id.Pid, id.Mark)
}

// end asks the process to end and waits; it kills it when it does not end
// within grace, and at once when grace is 0.
func (id Identity) end(ctx context.Context, grace time.Duration) error {
	if !id.Running() {
		return nil
	}
	if grace > 0 {
		if err := id.signal(syscall.SIGTERM); err != nil {
			return err
		}
		soft, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		if err := id.waitGone(soft); err == nil || ctx.Err() != nil {
			return err
		}
	}
	if err := id.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return id.waitGone(ctx)
}

// waitGone waits until the process has ended and let go of all that it held.
// That it is not Running is too early: an ending process loses its arguments
// before it closes its sockets, and its port would be found taken.
func (id Identity) waitGone(ctx context.Context) error {
	err := Poll(ctx, 10*time.Millisecond, func() (bool, error) { return id.exited(), nil })
	if err != nil {
		return fmt.Errorf("lab: wait for the end of process %d: %w", id.Pid, err)
	}
	return nil
}
