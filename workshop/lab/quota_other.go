//go:build !linux

package lab

// LimitProcess is not possible here.
func LimitProcess(int, float64) (release func() error, err error) { return nil, ErrNoQuota }
