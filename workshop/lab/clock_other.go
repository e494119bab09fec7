//go:build !linux || !amd64

package lab

import (
	"os/exec"
	"time"
)

// Clock is not to be had here.
type Clock struct{}

// StartClocked starts nothing here.
func StartClocked(*exec.Cmd) (*Clock, error) { return nil, ErrNoClock }

// Set does nothing here.
func (*Clock) Set(time.Duration) error { return ErrNoClock }

// Close does nothing here.
func (*Clock) Close() error { return nil }
