package router

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// plan puts open statements into batches, as many as may be under way together.
func (w *writer) plan(ctx context.Context, t *table) ([]batch, error) {
	all := w.planUnordered
	if w.ordered {
		all = w.planOrdered
	}
	batches := all(t)
	if w.c.txn != nil || !slices.ContainsFunc(batches, func(b batch) bool { return b.ignored }) {
		return batches, nil
	}
	return w.broadcast(ctx, batches)
}

// broadcast sends what goes to several shards to all there are. No shard refuses
// it, and so the table, which may be old, must have no say in it.
func (w *writer) broadcast(ctx context.Context, batches []batch) ([]batch, error) {
	shards, err := w.c.r.upstream.everywhere(ctx)
	if err != nil {
		return nil, err
	}
	var all []batch
	stmts := map[int]bool{}
	for _, b := range batches {
		if !b.ignored {
			all = append(all, b)
		}
		for _, i := range b.stmts {
			stmts[i] = stmts[i] || b.ignored
		}
	}
	everywhere := slices.DeleteFunc(slices.Clone(w.open), func(i int) bool { return !stmts[i] })
	for _, name := range shards {
		all = append(all, batch{shard: name, ignored: true, stmts: everywhere})
	}
	return all, nil
}

// planUnordered puts all open statements into batches.
func (w *writer) planUnordered(t *table) []batch {
	var all []batch
	index := map[string]int{}
	for _, i := range slices.Clone(w.open) {
		shards, err := w.target(t, w.stmts[i])
		if err != nil {
			w.result.add(i, err)
			continue
		}
		for _, name := range shards {
			key, ignored := name, len(shards) > 1
			if ignored {
				key += " ignored"
			}
			at, ok := index[key]
			if !ok {
				at = len(all)
				index[key] = at
				all = append(all, batch{shard: name, ignored: ignored})
			}
			all[at].stmts = append(all[at].stmts, i)
		}
	}
	return all
}

// planOrdered takes the open statements from the first on that go to one shard, or
// the first alone if it goes to several.
func (w *writer) planOrdered(t *table) []batch {
	var b batch
	for n, i := range w.open {
		shards, err := w.target(t, w.stmts[i])
		switch {
		case err != nil && n == 0:
			w.result.add(i, err)
			return nil
		case err != nil:
			return []batch{b}
		case n == 0 && len(shards) > 1:
			return spread(shards, i)
		case n == 0:
			b.shard = shards[0]
		case len(shards) > 1 || shards[0] != b.shard:
			return []batch{b}
		}
		b.stmts = append(b.stmts, i)
	}
	return []batch{b}
}

// spread is one statement for several shards.
func spread(shards []string, i int) []batch {
	var all []batch
	for _, name := range shards {
		all = append(all, batch{shard: name, ignored: true, stmts: []int{i}})
	}
	return all
}

// target finds the shards of a statement, as the server manual has it for sharded
// collections ("Routing of write operations").
func (w *writer) target(t *table, stmt bson.Raw) ([]string, *cmdError) {
	switch {
	case !t.sharded:
		return t.owners(), nil
	case w.c.name == "insert":
		key, ok := t.keyOf(stmt)
		if !ok {
			return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound", "Shard key cannot contain array values or array descendants.")
		}
		return []string{t.owner(key).shard}, nil
	case w.c.name == "update":
		return t.targetUpdate(stmt)
	}
	return t.targetDelete(stmt)
}

// targetUpdate finds the shards of an update statement.
func (t *table) targetUpdate(stmt bson.Raw) ([]string, *cmdError) {
	q, _ := stmt.Lookup("q").DocumentOK()
	collation, _ := stmt.Lookup("collation").DocumentOK()
	multi, upsert := truth(stmt.Lookup("multi")), truth(stmt.Lookup("upsert"))
	if key, ok := t.keyIn(q, t.orDefault(collation)); ok {
		return []string{t.owner(key).shard}, nil
	}
	if u, ok := stmt.Lookup("u").DocumentOK(); ok && isReplacement(u) {
		if key, ok := t.keyOf(replacement(q, u)); ok {
			return []string{t.owner(key).shard}, nil
		}
	}
	switch {
	case upsert:
		return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound",
			"Failed to target upsert by query :: could not extract exact shard key")
	case multi:
		return t.shardsFor(q, collation), nil
	case t.byID(q, collation):
		return t.owners(), nil
	}
	return nil, fail(codeInvalidOptions, "InvalidOptions", "A {multi:false} update on a sharded collection must contain an exact match on _id "+
		"(and have the collection default collation) or contain the shard key (and have the simple collation). "+
		"Update request: %s, shard key pattern: %s", stmt, rawValue(t.pattern()))
}

// targetDelete finds the shards of a delete statement.
func (t *table) targetDelete(stmt bson.Raw) ([]string, *cmdError) {
	q, _ := stmt.Lookup("q").DocumentOK()
	collation, _ := stmt.Lookup("collation").DocumentOK()
	if key, ok := t.keyIn(q, t.orDefault(collation)); ok {
		return []string{t.owner(key).shard}, nil
	}
	switch {
	case number(stmt.Lookup("limit")) == 0:
		return t.shardsFor(q, collation), nil
	case t.byID(q, collation):
		return t.owners(), nil
	}
	return nil, fail(codeShardKeyNotFound, "ShardKeyNotFound", "A single delete on a sharded collection must contain an exact match on _id "+
		"(and have the collection default collation) or contain the shard key (and have the simple collation). "+
		"Delete request: %s, shard key pattern: %s", stmt, rawValue(t.pattern()))
}

// orDefault is a statement's collation, or the collection's.
func (t *table) orDefault(collation bson.Raw) bson.Raw {
	if collation != nil {
		return collation
	}
	return t.collation
}

// byID reports a filter that demands one _id.
func (t *table) byID(q, collation bson.Raw) bool {
	_, ok := demand(equalities(q), "_id")
	return ok && (collation == nil || !collated(collation))
}

// isReplacement reports an update that is a whole document.
func isReplacement(u bson.Raw) bool {
	body, _ := bsonraw.Body(u)
	first, _, ok := bsonraw.Next(body)
	return !ok || !strings.HasPrefix(string(first.Name), "$")
}

// replacement is the document that a replacement makes: with the filter's _id when
// it has none of its own.
func replacement(q, u bson.Raw) bson.Raw {
	if u.Lookup("_id").Type != 0 {
		return u
	}
	id, ok := demand(equalities(q), "_id")
	if !ok {
		return u
	}
	raw, err := bson.Marshal(append(bson.D{{Key: "_id", Value: id}}, fields(u)...))
	if err != nil {
		return u
	}
	return raw
}
