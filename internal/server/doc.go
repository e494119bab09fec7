// Package server has what the server and the clients of an API over HTTP share. That is TLS,
// the exchange of JSON, and the records by which the command line finds the running syncs of
// this machine. The API is in service/api.
package server
