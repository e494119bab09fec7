// Package server has what servers and clients of an API over HTTP share: TLS, the exchange of JSON, and the
// records of running syncs. The API is in service/api.
package server
