// Package seed makes a replica-set member by copying the files of another one
// instead of its documents.
//
// An [Agent] beside the source's files serves rounds: it lists the files, reads
// blocks of them while the member works, and then freezes: it locks the member
// while it finds the blocks that changed and puts them aside. [Pull] writes the
// files, asks for what changed, and makes the directory startable as its last step.
// Between them is a [Source]: the agent itself, or an HTTP client of it.
package seed
