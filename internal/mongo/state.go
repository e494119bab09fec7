package mongo

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/wire"
)

// OfJob selects the documents of a job, whose _ids begin with its name and a slash. A server with notablescan
// answers no query without an index.
func OfJob(job string) bson.E {
	// The character 0 follows the slash.
	return bson.E{Key: "_id", Value: bson.D{{Key: "$gte", Value: job + "/"}, {Key: "$lt", Value: job + "0"}}}
}

// OfJobDocuments is OfJob where the _ids are documents with the job's name in their first field, job.
func OfJobDocuments(job string) bson.E {
	first := bson.E{Key: "job", Value: job}
	return bson.E{Key: "_id", Value: bson.D{{Key: "$gte", Value: bson.D{first}},
		{Key: "$lt", Value: bson.D{first, {Key: "", Value: bson.MaxKey{}}}}}}
}

// UpdateState runs update statements on a collection of StateDB in order, with write concern w. It returns the
// election term of the last reply, -1 for none.
func (c *Cluster) UpdateState(ctx context.Context, coll string, w any, statements ...bson.D) (term int64, err error) {
	return c.writeState(ctx, bson.D{{Key: "update", Value: coll}}, "updates", w, statements)
}

// DeleteState deletes all documents that match one of the filters. See UpdateState.
func (c *Cluster) DeleteState(ctx context.Context, coll string, w any, filters ...bson.D) (term int64, err error) {
	statements := make([]bson.D, len(filters))
	for i, f := range filters {
		statements[i] = bson.D{{Key: "q", Value: f}, {Key: "limit", Value: 0}}
	}
	return c.writeState(ctx, bson.D{{Key: "delete", Value: coll}}, "deletes", w, statements)
}

func (c *Cluster) writeState(ctx context.Context, command bson.D, field string, w any,
	statements []bson.D) (term int64, err error) {
	const most = 500 // statements of one command
	term = -1
	for part := range slices.Chunk(statements, most) {
		raw, err := c.Write(ctx, StateDB, append(slices.Clone(command), bson.E{Key: field, Value: part},
			bson.E{Key: "ordered", Value: true},
			bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}}))
		if err != nil {
			return term, err
		}
		term = wire.ParseWriteResult([]byte(raw)).Term
	}
	return term, nil
}
