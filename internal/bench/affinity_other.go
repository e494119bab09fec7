//go:build !linux

package bench

import "errors"

func processors() ([]int, error) { return nil, errors.ErrUnsupported }

func bindProcess(int, []int) error { return errors.ErrUnsupported }

func limitProcess(int, float64) (func() error, error) { return nil, errors.ErrUnsupported }
