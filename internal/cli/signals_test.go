package cli

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestSignalsAtOnce: timeout -s INT sends two signals, and means one.
func TestSignalsAtOnce(t *testing.T) {
	caught := make(chan os.Signal, 3)
	caught <- syscall.SIGINT
	caught <- syscall.SIGTERM // at once
	caught <- syscall.SIGHUP  // later
	moments := []time.Duration{time.Second, time.Second + 299*time.Millisecond, time.Second + 300*time.Millisecond}
	clock := func() time.Duration {
		now := moments[0]
		moments = moments[1:]
		return now
	}
	var first syscall.Signal
	if again := second(caught, clock, func(s syscall.Signal) { first = s }); first != syscall.SIGINT ||
		again != syscall.SIGHUP {
		t.Errorf("%v, %v", first, again)
	}
}
