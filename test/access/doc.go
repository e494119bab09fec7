// Package access tests who may do what: jobs with authentication and
// encryption on both sides, users with the least privileges that the
// documentation names, and that secrets stay secret.
package access
