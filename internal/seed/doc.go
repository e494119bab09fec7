// Package seed makes a replica-set member by copying the files of another one instead of its documents.
//
// An [Agent] beside the source's files serves rounds. It lists the files and reads blocks of them while the member
// works. Then it locks the member, finds the blocks that changed and puts them aside. [Pull] writes the files and the
// changed blocks, and makes the directory startable as its last step. Between them is a [Source]: the agent or an HTTP
// client.
package seed
