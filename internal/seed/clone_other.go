//go:build !linux

package seed

import "os"

func cloneFile(_, _ *os.File) error { return errCannotClone }
