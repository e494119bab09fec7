package router

import (
	"cmp"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// answer is what a shard said to a batch.
type answer struct {
	reply bson.Raw
	err   error
}

// writeResult is the reply of a write command, put together from the shards'.
type writeResult struct {
	n, modified int64
	upserted    []indexed
	errors      []indexed
	bad         map[int]bool  // statements with an error
	concern     bson.RawValue // the first write concern error
	labels      bson.RawValue // that came with it: whether the client may try again
}

// indexed is an entry of a reply that speaks of one statement.
type indexed struct {
	stmt int
	doc  bson.D
}

// add takes an error of the router's own.
func (r *writeResult) add(stmt int, err *cmdError) {
	r.fail(stmt, bson.D{{Key: "code", Value: err.code}, {Key: "errmsg", Value: err.msg}})
}

// fail notes a statement's error; several shards may fail at one statement.
func (r *writeResult) fail(stmt int, doc bson.D) {
	if r.bad == nil {
		r.bad = map[int]bool{}
	}
	if !r.bad[stmt] {
		r.bad[stmt] = true
		r.errors = append(r.errors, indexed{stmt, doc})
	}
}

// failed reports a statement that has its error.
func (r *writeResult) failed(stmt int) bool { return r.bad[stmt] }

// take adds a shard's reply to a batch and marks what is done. It returns the
// shard's error if it calls the table old.
func (r *writeResult) take(b batch, reply bson.Raw, ordered bool, done []bool) (stale error) {
	r.n += number(reply.Lookup("n"))
	r.modified += number(reply.Lookup("nModified"))
	if v := reply.Lookup("writeConcernError"); v.Type != 0 && r.concern.Type == 0 {
		r.concern, r.labels = v, reply.Lookup("errorLabels")
	}
	if list, ok := reply.Lookup("upserted").ArrayOK(); ok {
		for _, d := range documents(list) {
			r.upserted = append(r.upserted, indexed{b.stmts[number(d.Lookup("index"))], without(fields(d), "index")})
		}
	}
	failed, first, stale := r.takeErrors(b, reply)
	for i, stmt := range b.stmts {
		if ordered && i >= first {
			break // not tried
		}
		if !failed[i] {
			done[stmt] = true
		}
	}
	return stale
}

// takeErrors adds a reply's write errors. It returns the places in the batch that
// failed, and the first of them.
func (r *writeResult) takeErrors(b batch, reply bson.Raw) (failed map[int]bool, first int, stale error) {
	failed, first = map[int]bool{}, len(b.stmts)
	list, _ := reply.Lookup("writeErrors").ArrayOK()
	for _, d := range documents(list) {
		at := int(number(d.Lookup("index")))
		if at < 0 || at >= len(b.stmts) {
			continue
		}
		failed[at] = true
		first = min(first, at)
		if code := int32(number(d.Lookup("code"))); isStale(code) {
			stale = mongo.CommandError{Code: code, Message: text(d.Lookup("errmsg"))}
			continue
		}
		r.fail(b.stmts[at], without(fields(d), "index"))
	}
	return failed, first, stale
}

// sort orders entries by statement.
func (r *writeResult) sort() {
	byStatement := func(a, b indexed) int { return cmp.Compare(a.stmt, b.stmt) }
	slices.SortStableFunc(r.errors, byStatement)
	slices.SortStableFunc(r.upserted, byStatement)
}

// reply is what the client gets.
func (r *writeResult) reply(command string) bson.D {
	d := bson.D{{Key: "n", Value: int32(r.n)}}
	if command == "update" {
		d = append(d, bson.E{Key: "nModified", Value: int32(r.modified)})
		if len(r.upserted) > 0 {
			d = append(d, bson.E{Key: "upserted", Value: list(r.upserted)})
		}
	}
	if len(r.errors) > 0 {
		d = append(d, bson.E{Key: "writeErrors", Value: list(r.errors)})
	}
	if r.concern.Type != 0 {
		d = append(d, bson.E{Key: "writeConcernError", Value: r.concern})
	}
	if r.labels.Type != 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: r.labels})
	}
	return d
}

func list(all []indexed) bson.A {
	a := bson.A{}
	for _, e := range all {
		a = append(a, append(bson.D{{Key: "index", Value: int32(e.stmt)}}, e.doc...))
	}
	return a
}
