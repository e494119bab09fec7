package mongo

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/wire"
)

func TestWriteInterrupted(t *testing.T) {
	concern, err := bson.Marshal(bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		res         wire.WriteResult
		interrupted bool
	}{
		"all well":    {wire.WriteResult{N: 3}, false},
		"duplicate":   {wire.WriteResult{Errors: []wire.WriteError{{Code: CodeDuplicateKey}}}, false},
		"not primary": {wire.WriteResult{Errors: []wire.WriteError{{Code: CodeDuplicateKey}, {Index: 1, Code: 10107}}}, true},
		"full disk":   {wire.WriteResult{Errors: []wire.WriteError{{Code: 28, Message: "No space left on device"}}}, true},
		"path": {wire.WriteResult{Errors: []wire.WriteError{{Code: 28,
			Message: "Cannot create field 'b' in element {a: \"No space left on device\"}"}}}, false},
		"write concern": {wire.WriteResult{ConcernError: concern}, true},
	} {
		err := WriteInterrupted(c.res)
		if (err != nil) != c.interrupted {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && Classify(err) != ClassRetry {
			t.Errorf("%s: %v is of class %s", name, err, Classify(err))
		}
	}
}
