//go:build !unix

package spool

// lock does nothing here: the job's lease keeps a second process away.
func lock(string) (func() error, error) { return func() error { return nil }, nil }
