//go:build !linux

package bench

import "errors"

func processors() ([]int, error) { return nil, errors.ErrUnsupported }

func bindProcess(int, []int) error { return errors.ErrUnsupported }
