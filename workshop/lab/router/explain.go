package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// explain has the one shard explain a command that has all the documents for it.
func explain(ctx context.Context, c *call) (bson.D, error) {
	inner, ok := get(c.cmd, c.name).DocumentOK()
	if !ok || len(inner) <= 5 {
		return nil, fail(codeFailedToParse, "FailedToParse", "explain needs a command")
	}
	first := fields(inner)[0]
	coll := text(get(fields(inner), first.Key))
	var reply bson.D
	err := c.routed(ctx, coll, func(t *table) error {
		shards := t.shardsFor(explained(inner), nil)
		if len(shards) > 1 {
			return unsupported("explain over several shards")
		}
		raw, _, err := c.send(ctx, shards[0], sending{db: c.db, cmd: c.cmd, sel: c.sel})
		reply = passed(raw)
		return err
	})
	return reply, err
}

// explained is the filter of a command.
func explained(cmd bson.Raw) bson.Raw {
	for _, name := range []string{"filter", "query"} {
		if doc, ok := cmd.Lookup(name).DocumentOK(); ok {
			return doc
		}
	}
	if list, ok := cmd.Lookup("pipeline").ArrayOK(); ok {
		return leadingMatch(documents(list))
	}
	for _, name := range []string{"updates", "deletes"} {
		list, _ := cmd.Lookup(name).ArrayOK()
		if all := documents(list); len(all) > 0 {
			q, _ := all[0].Lookup("q").DocumentOK()
			return q
		}
	}
	return emptyDocument()
}
