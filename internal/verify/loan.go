package verify

import (
	"context"
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/scan"
)

// Ask sends a request to the lender, and returns its reply.
type Ask func(ctx context.Context, request []byte) (reply []byte, err error)

// What a borrower asks of the lender.
const (
	askSlice = "slice" // for one to read
	askAlive = "alive" // to leave it what it has
	askSums  = "sums"  // to take a piece of what a slice sums up to
	askBack  = "back"  // to take a slice back
)

// loanAsk is a request of a borrower.
type loanAsk struct {
	Kind     string `bson:"kind"`
	Worker   string `bson:"worker"`
	Borrower string `bson:"borrower"`          // one life of a worker
	Version  string `bson:"version,omitempty"` // slice
	Loan     string `bson:"loan,omitempty"`    // sums, back
	// From is the first group of a piece, Groups are the piece: of each its sums and its
	// number of documents, of 8 bytes each, little-endian.
	From   int    `bson:"from,omitempty"`
	Groups []byte `bson:"groups,omitempty"`
	// Docs and Bytes are those of the whole slice.
	Docs  int64 `bson:"docs,omitempty"`
	Bytes int64 `bson:"bytes,omitempty"`
}

// loanReply is the lender's.
type loanReply struct {
	// Refused says why the borrower has to end.
	Refused string     `bson:"refused,omitempty"`
	Slice   *lentSlice `bson:"slice,omitempty"` // nil: none waits
	// More says that there may be a slice later, or that the piece is to be sent again.
	More bool `bson:"more,omitempty"`
	// Gone says that the loan is over, whatever it comes to.
	Gone bool `bson:"gone,omitempty"`
}

// lentSlice is a slice on loan, and how it is summed up.
type lentSlice struct {
	Loan      string         `bson:"loan"`
	Side      int            `bson:"side"`
	SourceNS  string         `bson:"sourceNs"`
	Slice     scan.Slice     `bson:"slice"`
	At        bson.Timestamp `bson:"at"`     // reads see at least this
	Seed      int64          `bson:"seed"`   // of the hashes
	Groups    int            `bson:"groups"` // a power of two
	SourceSet bson.ObjectID  `bson:"sourceSet"`
	TargetSet bson.ObjectID  `bson:"targetSet"`
	Rules     string         `bson:"rules"` // see transform.Keys
	Lease     time.Duration  `bson:"lease"`
}

// pieceGroups is how many groups a request carries: less than half a megabyte, and NATS
// takes one.
const pieceGroups = 16 << 10

// mostGroups bounds the table of a loan; a lender's own memory bounds it earlier.
const mostGroups = 4 << 20

func appendGroups(dst []byte, groups []group) []byte {
	for _, g := range groups {
		dst = binary.LittleEndian.AppendUint64(dst, g.x)
		dst = binary.LittleEndian.AppendUint64(dst, g.y)
		dst = binary.LittleEndian.AppendUint64(dst, g.n)
	}
	return dst
}

// takeGroups fills groups with a piece, and reports whether it is one of so many.
func takeGroups(groups []group, piece []byte) bool {
	if len(piece) != len(groups)*groupCost {
		return false
	}
	for i := range groups {
		g := piece[i*groupCost:]
		groups[i] = group{binary.LittleEndian.Uint64(g), binary.LittleEndian.Uint64(g[8:]), binary.LittleEndian.Uint64(g[16:])}
	}
	return true
}
