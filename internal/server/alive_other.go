//go:build !unix

package server

// alive cannot be told here; whether the sync answers decides.
func alive(int) bool { return true }
