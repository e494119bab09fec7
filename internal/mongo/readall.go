package mongo

import (
	"context"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// ReadAll reads all documents of a command's cursor. The returned function takes the command's results, and wraps
// an error as Wrap does: ReadAll[bson.Raw](ctx, "list jobs")(coll.Find(ctx, filter)).
func ReadAll[T any](ctx context.Context, format string, args ...any) func(*driver.Cursor, error) ([]T, error) {
	return func(cur *driver.Cursor, err error) (all []T, _ error) {
		if err == nil {
			err = cur.All(ctx, &all)
		}
		if err != nil {
			return nil, Wrap(err, format, args...)
		}
		return all, nil
	}
}
