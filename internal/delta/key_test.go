package delta

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func testKeysOnServer(t *testing.T, s *server) {}

var _ = bytes.Equal
var _ bson.D
var _ bsoncore.Value
