package lab

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm waits for less than a millisecond as well as for more: the runtime's own
// timers wake an idle process by whole milliseconds.
type alarm struct{ file *os.File }

// newAlarm makes one, to be closed.
func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &alarm{os.NewFile(uintptr(fd), "timer")}, nil
}

// wait sleeps.
func (a *alarm) wait(d time.Duration) error {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}
	if err := raw.Control(func(fd uintptr) { set = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return err
	}
	if set != nil {
		return set
	}
	var expired [8]byte
	_, err = a.file.Read(expired[:])
	return err
}

func (a *alarm) close() { _ = a.file.Close() }
