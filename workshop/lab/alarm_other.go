//go:build !linux

package lab

import "time"

// alarm waits as exactly as the runtime can.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) wait(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func (*alarm) close() {}
