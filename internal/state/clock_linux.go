package state

import (
	"time"

	"golang.org/x/sys/unix"
)

// newClock counts the time since boot, sleep included: while this machine sleeps, another may take
// a job over. The wall clock does not matter.
func newClock() func() time.Duration {
	if _, err := uptime(); err != nil {
		return stopwatch()
	}
	return func() time.Duration {
		now, err := uptime()
		if err != nil { // it worked before
			panic(err)
		}
		return now
	}
}

func uptime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano()), err
}
