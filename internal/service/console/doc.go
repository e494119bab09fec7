// Package console is the web console of the service: pages that the server renders, with style sheets and scripts.
// The desk decides what a visitor may do. This package runs nothing, and stores only sessions.
package console
