package history

import "go.mongodb.org/mongo-driver/v2/bson"

// D makes a document of names and values in turn.
func D(pairs ...any) bson.D {
	out := make(bson.D, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return out
}

// A makes an array.
func A(values ...any) bson.A { return append(bson.A{}, values...) }
