// Package wire is the hot path to a server: OP_MSG framing over the driver's
// own connections, so that TLS, SCRAM, X.509 and compression stay the
// driver's work while documents pass as bytes.
//
// It is the only package that imports the driver's unstable x/ tree. A Conn is
// used by one goroutine at a time; a Pool by any number.
package wire
