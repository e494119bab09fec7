// Package assign shares one piece of work among processes: its Owner assigns parts of the work, and
// an Assistant asks the owner for them, one after the other, by requests and replies. What a part is,
// and what is reported of it, the work itself knows (Work, and the types of an assistant).
//
// The owner revokes an assistant that sends nothing for the time of a lease, or that joins again: it
// refuses later requests, and returns the parts once nothing of the assistant can arrive. An assistant
// without answers ends before that. Owner and assistant have the same version of the program, the same
// clusters, and the same rules with the same keys.
package assign

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Offer is how assistants reach the owner of some work.
type Offer struct {
	// Version is the program's.
	Version string
	// Lease is how long an assistant that says nothing keeps its parts.
	Lease time.Duration
	// Serve answers requests of assistants until ctx ends, several side by side. It returns when
	// no request is being answered.
	Serve func(ctx context.Context, answer func(ctx context.Context, request []byte) (reply []byte)) error
}

// Ask sends a request to the owner, and returns its reply.
type Ask func(ctx context.Context, request []byte) (reply []byte, err error)

// Figures are what one worker has done of the work.
type Figures struct {
	Worker string `json:"worker"`
	Docs   int64  `json:"docs"`
	Bytes  int64  `json:"bytes"`
	Parts  int    `json:"slices"` // that it has now
	// Why says why the worker has ended, or cannot assist.
	Why string `json:"why,omitempty"`
}

// The kinds of requests.
const (
	join    = "join"    // to assist from now on
	next    = "next"    // for a part
	report  = "report"  // to take what has become of parts, or just that the assistant lives
	leave   = "leave"   // to return all parts
	decline = "decline" // to note why a worker does not assist
)

// mostMessage bounds a request and a reply in bytes. NATS takes a megabyte.
const mostMessage = 512 << 10

// request is what an assistant sends; R is what it reports.
type request[R any] struct {
	Kind    string `bson:"kind"`
	Worker  string `bson:"worker,omitempty"`  // join, decline
	Version string `bson:"version,omitempty"` // join
	Token   string `bson:"token,omitempty"`   // all others
	Group   string `bson:"group,omitempty"`   // next; of the parts
	Report  R      `bson:"report,omitempty"`
	// Why is the reason to leave, or to decline. Alone says that the reason is in the data.
	Why   string `bson:"why,omitempty"`
	Alone bool   `bson:"alone,omitempty"`
}

// reply is the owner's; T are the terms of the work, U is a part as the assistant needs it.
type reply[T, U any] struct {
	// Refused says why the assistant has to end.
	Refused string    `bson:"refused,omitempty"`
	Terms   *terms[T] `bson:"terms,omitempty"` // join
	Part    U         `bson:"part,omitempty"`  // next; none: none waits
	// More says that there may be a part later, or that the report is to be sent again.
	More bool `bson:"more,omitempty"`
}

// terms are those under which an assistant works.
type terms[T any] struct {
	Token     string        `bson:"token"` // names the assistant; it is never given again
	Lease     time.Duration `bson:"lease"`
	SourceSet bson.ObjectID `bson:"sourceSet"`
	TargetSet bson.ObjectID `bson:"targetSet"`
	Rules     string        `bson:"rules"` // see transform.Keys
	Work      T             `bson:"work"`
}

// ErrRefused is what a refusal of the owner is to an assistant.
var ErrRefused = errors.New("the owner of the work refuses")

// ErrUnfit is what keeps a process from doing any part.
var ErrUnfit = errors.New("this worker cannot assist")

// Refusal returns an ErrRefused with a reason.
func Refusal(why string) error { return fmt.Errorf("%w: %s", ErrRefused, strings.TrimSpace(why)) }
