//go:build !linux

package state

import "time"

func newClock() func() time.Duration { return stopwatch() }
