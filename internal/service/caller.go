package service

import (
	"path"
	"slices"
)

// Role is what somebody may do; each may do what those before it may.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // looks
	Operator Role = "operator" // has jobs paused, resumed, slowed down, finalized
	Admin    Role = "admin"    // makes and removes jobs, drains workers, reads the audit trail
)

// Roles are all of them, the least first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// May reports whether the role includes another one.
func (r Role) May(needed Role) bool {
	return slices.Index(Roles(), r) >= max(slices.Index(Roles(), needed), 0)
}

// Caller is who asks for something.
type Caller struct {
	Name string
	Role Role
	// Jobs are patterns (path.Match) of the names that the caller sees; none is all.
	Jobs []string
	// From is the address of the client.
	From string
}

// Sees reports whether a job is one of the caller's.
func (c *Caller) Sees(job string) bool { return MatchJob(c.Jobs, job) }

// MatchJob reports whether one of the patterns (path.Match) matches the name of a job. No patterns match all.
func MatchJob(patterns []string, job string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, job)
		return err == nil && ok
	})
}
