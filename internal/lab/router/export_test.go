package router

import "go.mongodb.org/mongo-driver/v2/bson"

func HashKey(v bson.RawValue) int64        { return hashKey(v) }
func CompareValues(a, b bson.RawValue) int { return compareValues(a, b) }
