package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a taken lock is tried again: flock cannot be waited
// for together with a context.
const lockPoll = 50 * time.Millisecond

// lockFile takes an exclusive lock on a file, which it creates, and returns
// the function that gives it back. The kernel frees it when the process dies.
func lockFile(ctx context.Context, name string) (func(), error) {
	var unlock func()
	err := Poll(ctx, lockPoll, func() (bool, error) {
		var err error
		unlock, err = tryLock(name)
		return unlock != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return unlock, nil
}

// tryLock takes the lock if it is free; a nil function means it is taken.
func tryLock(name string) (func(), error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { _ = f.Close() }, nil // closing gives the lock back
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, err
}

// Poll calls check until it says true, fails, or ctx ends. The error of an
// ended ctx carries nothing but itself; callers add what they waited for.
func Poll(ctx context.Context, every time.Duration, check func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
