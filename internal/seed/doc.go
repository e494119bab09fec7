// Package seed brings up a replica-set member by copying the files of another
// one instead of its documents.
//
// An [Agent] stands beside the source's files and serves rounds: in a round it
// reports which files there are, reads blocks of them while the member works,
// and then freezes: the member is locked for as long as it takes to find the
// blocks that changed since they were read and to put them aside. [Pull] is the
// other side: it writes the files, asks for what changed, and makes the
// directory startable as its very last step. Between them is a [Source]: the
// agent itself, or an HTTP client of one on another machine.
package seed
