//go:build !failpoint

package failpoint

// Hit does what the rules say at the point.
func Hit(string) {}

// HitOf is Hit at a point that is about something.
func HitOf(string, string) {}

// Err is Hit at a point that can fail.
func Err(string) error { return nil }
