package deadletter

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Summary is a letter without its document, as lists show it.
type Summary struct {
	ID       string        `json:"id" bson:"_id"`
	Job      string        `json:"job" bson:"job"`
	NS       string        `json:"ns" bson:"ns"` // on the target
	Document string        `json:"documentId" bson:"documentIdText"`
	State    string        `json:"state" bson:"state"`
	Cause    string        `json:"cause" bson:"cause"`
	Reason   string        `json:"reason" bson:"reason"`
	Index    string        `json:"index,omitempty" bson:"index"`
	At       mongo.OpTime  `json:"-" bson:"position"`
	Position string        `json:"position" bson:"-"` // At as text
	Time     time.Time     `json:"time" bson:"time"`
	Updated  time.Time     `json:"updated" bson:"updated"`
	Settled  string        `json:"settledBy,omitempty" bson:"settledBy"`
	Bytes    int64         `json:"bytes" bson:"bytes"`
	DocID    bson.RawValue `json:"-" bson:"documentId"`
	Other    bson.RawValue `json:"-" bson:"otherId"`
}

// ReadSummary reads a letter that Browse gives.
func ReadSummary(raw bson.Raw) (s Summary, err error) {
	if err := bson.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("read a dead letter: %w", err)
	}
	s.Position = s.At.String()
	return s, nil
}
