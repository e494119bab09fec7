// Package wire is the hot path to a server: OP_MSG framing over the driver's own connections.
// So TLS, SCRAM, X.509 and compression stay the driver's work while documents pass as bytes.
//
// It is the only package that imports the driver's unstable x/ tree. One goroutine at a time
// uses a Conn. Any number may use a Pool.
package wire
