package job

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
)

// Lending is how slices of a job's copy get to other processes, which borrow them (Borrow).
type Lending struct {
	// Version is the program's. A borrower has the same.
	Version string
	// Lease is how long a borrower that says nothing keeps what was lent to it.
	Lease time.Duration
	// Serve has requests of borrowers answered until ctx ends, several side by side. It
	// returns when none is being answered.
	Serve func(ctx context.Context, answer func(ctx context.Context, request []byte) (reply []byte)) error
}

// Ask sends a request to the lender, and returns its reply.
type Ask func(ctx context.Context, request []byte) (reply []byte, err error)

// What a borrower asks of the lender.
const (
	askJoin    = "join"    // to borrow from now on
	askNext    = "next"    // for a slice
	askGrant   = "grant"   // to send so much, within the job's limits
	askReport  = "report"  // to take what has become of slices, and that the borrower lives
	askLeave   = "leave"   // to take back all that it has
	askDecline = "decline" // to note why a worker does not borrow
)

// mostMessage bounds a request and a reply in bytes. NATS takes a megabyte.
const mostMessage = 512 << 10

// loanAsk is a request to the lender.
type loanAsk struct {
	Kind    string `bson:"kind"`
	Worker  string `bson:"worker,omitempty"`  // join, decline
	Version string `bson:"version,omitempty"` // join
	Token   string `bson:"token,omitempty"`   // all others
	// Shard is the one that a slice is to be of; empty is all of the source.
	Shard string `bson:"shard,omitempty"` // next
	// Slices are those that have moved, as the target has acknowledged them in Term.
	Slices []scan.Slice `bson:"slices,omitempty"`
	Term   int64        `bson:"term,omitempty"`
	// Tally is what the rules have done up to now.
	Tally []int64 `bson:"tally,omitempty"`
	// Seq names a grant of Docs and Bytes.
	Seq   int64 `bson:"seq,omitempty"`
	Docs  int64 `bson:"docs,omitempty"`
	Bytes int64 `bson:"bytes,omitempty"`
	// Why is the reason to leave, or to decline. Keep says that it is in the data.
	Why  string `bson:"why,omitempty"`
	Keep bool   `bson:"keep,omitempty"`
}

// loanReply is the lender's.
type loanReply struct {
	// Refused says why the borrower has to end.
	Refused string     `bson:"refused,omitempty"`
	Terms   *loanTerms `bson:"terms,omitempty"` // join
	Loan    *loanOfOne `bson:"loan,omitempty"`  // next; nil: none waits
	More    bool       `bson:"more,omitempty"`  // there may be one later; of a grant: it has to wait on
}

// loanTerms are those under which a borrower copies.
type loanTerms struct {
	Token     string        `bson:"token"`
	Job       string        `bson:"job"`
	Run       string        `bson:"run"`
	Attempt   int64         `bson:"attempt"`
	SourceSet bson.ObjectID `bson:"sourceSet"`
	TargetSet bson.ObjectID `bson:"targetSet"`
	Shards    []string      `bson:"shards"`            // of the source; of a replica set one of no name
	Routers   []string      `bson:"routers,omitempty"` // of a sharded target: those over which may be written
	Others    bool          `bson:"others,omitempty"`  // see copy.Options
	Start     mongo.OpTime  `bson:"start"`
	Rules     string        `bson:"rules"` // see transform.Keys
	Lease     time.Duration `bson:"lease"`
}

// loanOfOne is a slice on loan.
type loanOfOne struct {
	Source schema.Collection `bson:"source"`
	Target string            `bson:"target"`
	Key    bson.Raw          `bson:"key,omitempty"` // the target's shard key
	Slice  scan.Slice        `bson:"slice"`
	Owned  bool              `bson:"owned,omitempty"` // the shard gives what it owns
	Member scan.Member       `bson:"member"`          // that reads; the same one for all of a shard
}
