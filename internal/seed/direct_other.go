//go:build !linux

package seed

import (
	"errors"
	"os"
)

const directAlign = 4096

// openDirect is not known here.
func openDirect(*os.Root, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func preallocate(*os.File, int64, int64) error { return errors.ErrUnsupported }

func directBuffer(n int) []byte { return make([]byte, n) }
