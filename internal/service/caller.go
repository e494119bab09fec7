package service

import (
	"path"
	"slices"
)

// Role is a set of permissions. Each role includes those before it.
type Role string

const (
	Viewer   Role = "viewer"   // reads
	Operator Role = "operator" // pauses, resumes, throttles and finalizes jobs
	Admin    Role = "admin"    // creates and removes jobs, drains workers, reads the audit trail
)

// Roles returns all roles, the least first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// May reports whether the role includes another one.
func (r Role) May(needed Role) bool {
	return slices.Index(Roles(), r) >= max(slices.Index(Roles(), needed), 0)
}

// Caller is the origin of a request.
type Caller struct {
	Name string
	Role Role
	// Jobs are patterns (path.Match) of visible job names; none is all.
	Jobs []string
	// From is the client's address.
	From string
}

func (c *Caller) Sees(job string) bool { return MatchJob(c.Jobs, job) }

// MatchJob reports whether a pattern (path.Match) matches a job's name. No patterns match all.
func MatchJob(patterns []string, job string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, job)
		return err == nil && ok
	})
}
