package router

import (
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Taken is how many statements a router has taken from clients since its start:
// documents to insert, and statements of update and delete commands. Those of
// commands that failed count too.
type Taken struct{ Inserts, Updates, Deletes int64 }

// taken counts statements.
type taken struct{ inserts, updates, deletes atomic.Int64 }

// add counts the statements of a write command.
func (t *taken) add(command string, n int) {
	switch command {
	case "insert":
		t.inserts.Add(int64(n))
	case "update":
		t.updates.Add(int64(n))
	case "delete":
		t.deletes.Add(int64(n))
	}
}

// Taken is what the router has taken by now. serverStatus tells clients the same,
// as opcounters.
func (r *Router) Taken() Taken {
	t := &r.taken
	return Taken{Inserts: t.inserts.Load(), Updates: t.updates.Load(), Deletes: t.deletes.Load()}
}

// opcounters is Taken in the form that servers have for it.
func (t Taken) opcounters() bson.D {
	return bson.D{{Key: "insert", Value: t.Inserts}, {Key: "update", Value: t.Updates}, {Key: "delete", Value: t.Deletes}}
}
