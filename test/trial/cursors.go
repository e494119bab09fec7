package trial

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// killAll ends the cursors of a server but those of other members, those that
// wait for more and those that are at work. The idle ones do not say whose they
// are.
func killAll(ctx context.Context, admin *mongo.Database) error {
	cur, err := admin.Aggregate(ctx, A(D("$currentOp", D("idleCursors", true, "allUsers", true)),
		D("$match", D("cursor.cursorId", D("$exists", true), "appName", D("$ne", "OplogFetcher")))))
	if err != nil {
		return err
	}
	var ops []struct {
		NS     string `bson:"ns"`
		Cursor struct {
			ID int64 `bson:"cursorId"`
		} `bson:"cursor"`
	}
	if err := cur.All(ctx, &ops); err != nil {
		return err
	}
	for _, op := range ops {
		db, coll, _ := strings.Cut(op.NS, ".")
		// One that is gone meanwhile is as good as killed.
		_ = admin.Client().Database(db).RunCommand(ctx, D("killCursors", coll, "cursors", A(op.Cursor.ID))).Err()
	}
	return nil
}
