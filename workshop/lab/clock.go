package lab

import "errors"

// ErrNoClock says that the wall clock of a single process cannot be set on this machine.
var ErrNoClock = errors.New("lab: the wall clock of one process cannot be set here (Linux on amd64)")
