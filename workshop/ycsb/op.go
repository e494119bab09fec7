package ycsb

// kind is what is done, and what is measured under its name.
type kind uint8

const (
	opRead kind = iota
	opUpdate
	opInsert
	opScan
	opModify // read, modify, write: a read and an update together
	opCleanup
	opVerify
	kinds
)

// String is the kind's name in the output.
func (k kind) String() string {
	return [...]string{"READ", "UPDATE", "INSERT", "SCAN", "READ-MODIFY-WRITE", "CLEANUP", "VERIFY"}[k]
}

// status is how an operation ended.
type status uint8

const (
	statusOK status = iota
	statusNotFound
	statusError
	statusBatched    // waits in a batch
	statusUnexpected // other contents than were written
	statuses
)

// String is the status's name in the output.
func (s status) String() string {
	return [...]string{"OK", "NOT_FOUND", "ERROR", "BATCHED_OK", "UNEXPECTED_STATE"}[s]
}

// ok says that it counts as done.
func (s status) ok() bool { return s == statusOK || s == statusBatched }
