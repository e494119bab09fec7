package schema

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// Widen makes room in a capped collection of the target for all that the source's
// takes by now: its limits may have grown since it was listed, which the oplog
// tells later.
func (t *Target) Widen(ctx context.Context, src *mongo.Cluster, c Collection, target string) error {
	if !t.c.Info.Version.AtLeast(6, 0) { // nor can the source's have changed
		return nil
	}
	sourceDB, _ := mongo.SplitNS(c.NS) // it cannot have left it
	found, err := listCollections(ctx, src, sourceDB, bson.D{{Key: "info.uuid", Value: c.UUID}})
	if err != nil || len(found) == 0 {
		return err
	}
	options := found[0].Options
	db, name := mongo.SplitNS(target)
	have, err := listCollections(ctx, t.c, db, bson.D{{Key: "name", Value: name}})
	if err != nil || len(have) == 0 {
		return err
	}
	for _, l := range []struct{ option, command string }{{"size", "cappedSize"}, {"max", "cappedMax"}} {
		want, _ := options.Lookup(l.option).AsInt64OK() // max: 0 is none
		room, limited := have[0].Options.Lookup(l.option).AsInt64OK()
		if !limited || want != 0 && want <= room {
			continue
		}
		if err := t.change(ctx, db, bson.D{{Key: "collMod", Value: name}, {Key: l.command, Value: want}}); err != nil {
			return fmt.Errorf("make room in %s on the target: %w", target, err)
		}
	}
	return nil
}
