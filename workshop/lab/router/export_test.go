package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

func HashKey(v bson.RawValue) int64        { return shardkey.Hash(v) }
func CompareValues(a, b bson.RawValue) int { return shardkey.Compare(a, b) }
