//go:build !linux

package state

import "time"

// newClock counts time whatever the wall clock is set to.
func newClock() func() time.Duration { return stopwatch() }
