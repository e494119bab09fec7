//go:build !unix

package seed

import (
	"errors"
	"math"
	"os"
)

func lockDirectory(*os.Root, bool) (*os.File, error) {
	return nil, errors.New("seed: this system is not supported; seed works on Unix systems")
}

func freeBytes(string) (int64, error) { return math.MaxInt64, nil }
