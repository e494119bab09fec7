package deadletter

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Listed is a letter without its document, as lists of a job show it. Reason may quote values.
type Listed struct {
	ID       string    `json:"id" bson:"_id"`
	NS       string    `json:"ns" bson:"ns"`                     // on the target
	Document string    `json:"documentId" bson:"documentIdText"` // the _id as text
	State    string    `json:"state" bson:"state"`
	Cause    string    `json:"cause" bson:"cause"`
	Reason   string    `json:"reason" bson:"reason"`
	Index    string    `json:"index,omitempty" bson:"index"`
	Position string    `json:"position" bson:"-"`
	Time     time.Time `json:"time" bson:"time"`
	Updated  time.Time `json:"updated" bson:"updated"`
	Settled  string    `json:"settledBy,omitempty" bson:"settledBy"`
	Bytes    int64     `json:"bytes" bson:"bytes"`
}

// Summary is a letter with its job, without its document.
type Summary struct {
	Listed `bson:",inline"`

	Job   string        `json:"job" bson:"job"`
	At    mongo.OpTime  `json:"-" bson:"position"` // Position
	DocID bson.RawValue `json:"-" bson:"documentId"`
	Other bson.RawValue `json:"-" bson:"otherId"`
}

// ReadSummary reads a letter that Browse gives.
func ReadSummary(raw bson.Raw) (s Summary, err error) {
	if err := bson.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("read a dead letter: %w", err)
	}
	s.Position = s.At.String()
	return s, nil
}
