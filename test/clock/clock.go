// Package clock sets the wall clock of one process, for tests.
package clock

import "errors"

// ErrNone says that the wall clock of a single process cannot be set on this machine.
var ErrNone = errors.New("clock: the wall clock of one process cannot be set here (Linux on amd64)")
