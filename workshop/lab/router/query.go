package router

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// majority is the write concern of all that changes the cluster's metadata.
func majority() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
}

// query is a read of the config servers' own data.
type query struct {
	coll   string
	filter bson.D
	sort   bson.D
}

// configData reads all documents of a query in the database config, from the
// primary.
func (n *node) configData(ctx context.Context, q query) ([]bson.Raw, error) {
	const db = "config"
	cmd := bson.D{{Key: "find", Value: q.coll}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}}
	if q.filter != nil {
		cmd = append(cmd, bson.E{Key: "filter", Value: q.filter})
	}
	if q.sort != nil {
		cmd = append(cmd, bson.E{Key: "sort", Value: q.sort})
	}
	reply, addr, err := n.run(ctx, sending{db: db, cmd: cmd})
	var all []bson.Raw
	for err == nil {
		batch, id, ok := readBatch(bson.Raw(reply))
		if !ok {
			return nil, fmt.Errorf("read %s.%s: reply without a cursor", db, q.coll)
		}
		if all = append(all, batch...); id == 0 {
			return all, nil
		}
		reply, _, err = n.run(ctx, sending{db: db, sel: byAddress(addr), cmd: bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: q.coll}}})
	}
	return nil, fmt.Errorf("read %s.%s: %w", db, q.coll, err)
}

// readBatch reads a reply's cursor: its first or next batch, and its id.
func readBatch(reply bson.Raw) (docs []bson.Raw, id int64, ok bool) {
	cur, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return nil, 0, false
	}
	id, _ = cur.Lookup("id").AsInt64OK()
	batch, ok := cur.Lookup("firstBatch").ArrayOK()
	if !ok {
		batch, ok = cur.Lookup("nextBatch").ArrayOK()
	}
	if !ok {
		return nil, 0, false
	}
	return documents(batch), id, true
}
