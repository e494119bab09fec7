// Package wire is the hot path to a server: OP_MSG over the driver's own connections. TLS, authentication and
// compression stay the driver's work while documents pass as bytes.
//
// It alone imports the driver's unstable x/ tree. A Conn is for one goroutine at a time, a Pool for any number.
package wire
