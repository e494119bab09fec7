// Package server is what those share who serve an API over HTTP, and who ask it: TLS, the
// exchange of JSON, and the records by which the command line finds the running syncs of
// this machine. The API is in service/api.
package server
