package schema

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// BuildProgress is how far an index build on the target is, in documents of
// its present stage.
type BuildProgress struct {
	NS          string
	Stage       string // the server's words, e.g. "scanning collection"
	Done, Total int64
}

// Progress asks the target's primary for the index builds under way.
func (b *Builds) Progress(ctx context.Context) ([]BuildProgress, error) {
	cur, err := primaryDB(b.c, "admin").Aggregate(ctx, bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: false}}}},
		bson.D{{Key: "$match", Value: bson.D{
			{Key: "command.createIndexes", Value: bson.D{{Key: "$exists", Value: true}}},
			{Key: "progress.total", Value: bson.D{{Key: "$gt", Value: 0}}},
		}}},
	})
	var ops []bson.Raw
	if err == nil {
		err = cur.All(ctx, &ops)
	}
	if err != nil {
		return nil, mongo.NeedsRole(fmt.Errorf("ask the target for index builds under way: %w", err),
			"the user needs the inprog privilege on the target (role clusterMonitor has it)")
	}
	var out []BuildProgress
	for _, op := range ops {
		// "Index Build: scanning collection Index Build: scanning collection: 894/200000 0%"
		stage, _, _ := strings.Cut(strings.TrimPrefix(str(op, "msg"), "Index Build: "), " Index Build")
		p := BuildProgress{NS: str(op, "ns"), Stage: stage}
		if coll := str(op, "command", "createIndexes"); coll != "" && str(op, "command", "$db") != "" {
			p.NS = str(op, "command", "$db") + "." + coll
		}
		p.Done, _ = op.Lookup("progress", "done").AsInt64OK()
		p.Total, _ = op.Lookup("progress", "total").AsInt64OK()
		out = append(out, p)
	}
	return out, nil
}
