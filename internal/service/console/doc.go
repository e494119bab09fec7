// Package console is the web console of the service: pages that the server renders, one
// style sheet and one script. What may be done, the desk decides; this package shows and
// asks. It runs nothing, and stores nothing but who is logged in.
package console
