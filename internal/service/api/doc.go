// Package api is the service of many jobs over HTTP: JSON, server-sent events and
// metrics, with tokens of roles. It says what operate says, and decides nothing itself.
package api
