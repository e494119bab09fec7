package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// startTime reads when a process started.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses and may hold anything.
	_, rest, ok := strings.Cut(string(data[bytes.LastIndexByte(data, ')')+1:]), " ")
	fields := strings.Fields(rest)
	const started = 22 - 3 // field 22, and rest begins with field 3
	if !ok || len(fields) <= started {
		return 0, fmt.Errorf("read /proc/%d/stat: unknown form", pid)
	}
	return strconv.ParseUint(fields[started], 10, 64)
}

// hasArgument reports whether a process was started with an argument. One that
// has ended but was not waited for has none any more.
func hasArgument(pid int, arg string) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && slices.Contains(strings.Split(string(data), "\x00"), arg)
}

// signal sends a signal to exactly this process: the handle is opened before
// the check, so it cannot mean another process that got the pid in between.
func (id Identity) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(id.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: open process %d: %w", id.Pid, err)
	}
	defer unix.Close(fd)
	if !id.Running() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("lab: signal process %d: %w", id.Pid, err)
	}
	return nil
}

// exited reports whether the process, which was seen before, has no thread left.
// A zombie counts as exited (pidfd_open(2): readable when it terminates).
func (id Identity) exited() bool {
	fd, err := unix.PidfdOpen(id.Pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	if started, err := startTime(id.Pid); err != nil || started != id.Started {
		return true // the number is another process's by now
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}
