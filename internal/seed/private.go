package seed

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/millrace/millrace/internal/spawn"
)

// Private is the guardian of a private mongod, a process of its own: it starts the command
// and shuts it down cleanly when in ends, as it does when the parent is killed. It returns
// when the mongod has ended, with its exit code. The mongod keeps open what the parent gave
// to the guardian.
//
// A guardian that is killed as well cannot do that. The kernel shuts the mongod down then,
// where it offers to (see withGuardian).
func Private(in io.Reader, command []string) (code int, err error) {
	if len(command) == 0 {
		return 0, errors.New("seed: the guardian of a private mongod has no command")
	}
	runtime.LockOSThread() // whose end is the guardian's to the kernel
	defer runtime.UnlockOSThread()
	cmd := spawn.Command(command[0], command[1:]...) // shut down below, never killed while it may write its checkpoint
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, withGuardian()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() { // ends with this process at the latest
		_, _ = io.Copy(io.Discard, in)
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", command[0], err)
	}
	return 0, nil
}
