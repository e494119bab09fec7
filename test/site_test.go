package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test/history"
)

// site is where a scenario works: its databases on one cluster, with shorthands
// for what scenarios do there. A method that fails ends the step of the scenario
// (see attempt).
type site struct {
	ctx    context.Context
	client *mongo.Client
	base   string // its main database; the others begin with base and "-"
}

// failure ends a step.
type failure struct{ err error }

// attempt runs a step and returns what ended it.
func attempt(step func()) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case failure:
			err = x.err
		default:
			panic(x)
		}
	}()
	step()
	return nil
}

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// d makes a document of names and values in turn, a an array; scenarios are full
// of both.
func d(pairs ...any) bson.D  { return history.D(pairs...) }
func a(values ...any) bson.A { return history.A(values...) }

// name is the scenario's database, or with a suffix another one of it.
func (s *site) name(suffix ...string) string {
	return strings.Join(slices.Concat([]string{s.base}, suffix), "-")
}

// in is the same scenario's site on another database of its own.
func (s *site) in(suffix string) *site {
	return &site{ctx: s.ctx, client: s.client, base: s.name(suffix)}
}

func (s *site) ns(coll string) string { return s.base + "." + coll }

func (s *site) db() *mongo.Database { return s.client.Database(s.base) }

func (s *site) coll(name string) *mongo.Collection { return s.db().Collection(name) }

// commandTimeout turns a server that hangs into a failure that names the command.
const commandTimeout = 2 * time.Minute

// run runs a command on the scenario's database. Errors of single writes count.
func (s *site) run(cmd bson.D) bson.Raw {
	r, err := s.try(cmd)
	check(err)
	return r
}

// try is run for commands that may fail.
func (s *site) try(cmd bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(s.ctx, commandTimeout)
	defer cancel()
	r, err := s.db().RunCommand(ctx, cmd).Raw()
	if err == nil {
		if v, lookupErr := r.LookupErr("writeErrors"); lookupErr == nil {
			err = fmt.Errorf("%s", v)
		}
	}
	if err != nil {
		return r, fmt.Errorf("%s %v on %s: %w", cmd[0].Key, shorten(cmd[0].Value), s.base, err)
	}
	return r, nil
}

func shorten(v any) string {
	s := fmt.Sprint(v)
	return s[:min(len(s), 100)]
}

// admin runs a command on database admin.
func (s *site) admin(cmd bson.D) bson.Raw {
	r, err := s.client.Database("admin").RunCommand(s.ctx, cmd).Raw()
	if err != nil {
		fail("%v: %w", shorten(cmd), err)
	}
	return r
}

func (s *site) create(coll string, options ...any) {
	s.run(append(d("create", coll), d(options...)...))
}

func (s *site) drop(coll string) { s.run(d("drop", coll)) }

// rename renames a collection; the names are namespaces.
func (s *site) rename(from, to string, options ...any) {
	s.admin(append(d("renameCollection", from, "to", to), d(options...)...))
}

// insert writes documents (bson.D, bson.Raw) in one command.
func (s *site) insert(coll string, docs ...any) {
	s.run(d("insert", coll, "documents", bson.A(docs)))
}

// fill inserts n documents made from their numbers, from 0.
func (s *site) fill(coll string, n int, make func(i int) bson.D) { s.fillFrom(coll, 0, n, make) }

func (s *site) fillFrom(coll string, lo, hi int, make func(i int) bson.D) {
	for ; lo < hi; lo += 1000 {
		var docs bson.A
		for i := lo; i < min(lo+1000, hi); i++ {
			docs = append(docs, make(i))
		}
		s.insert(coll, docs...)
	}
}

// update changes one document, or more with "multi", true among the options.
func (s *site) update(coll string, filter, update any, options ...any) bson.Raw {
	stmt := append(d("q", filter, "u", update), d(options...)...)
	return s.run(d("update", coll, "updates", a(stmt)))
}

// set changes the document of an _id by an update or a pipeline.
func (s *site) set(coll string, id, update any) {
	r := s.update(coll, d("_id", id), update)
	if n, _ := r.Lookup("n").AsInt64OK(); n != 1 {
		fail("update of %s %v met %d documents", s.ns(coll), id, n)
	}
}

func (s *site) remove(coll string, filter any) {
	s.run(d("delete", coll, "deletes", a(d("q", filter, "limit", 0))))
}

// findAndModify runs the command of this name.
func (s *site) findAndModify(coll string, filter any, options ...any) {
	s.run(append(d("findAndModify", coll, "query", filter), d(options...)...))
}

// index creates an index named by its options or after its key.
func (s *site) index(coll string, key bson.D, options ...any) {
	s.run(d("createIndexes", coll, "indexes", a(indexSpec(key, options...))))
}

func indexSpec(key bson.D, options ...any) bson.D {
	spec := append(d("key", key), d(options...)...)
	for _, e := range spec {
		if e.Key == "name" {
			return spec
		}
	}
	name := ""
	for _, e := range key {
		name += fmt.Sprintf("%s_%v_", e.Key, e.Value)
	}
	return append(spec, bson.E{Key: "name", Value: strings.TrimSuffix(name, "_")})
}

func (s *site) dropIndexes(coll string, index any) {
	s.run(d("dropIndexes", coll, "index", index))
}

func (s *site) collMod(coll string, options ...any) {
	s.run(append(d("collMod", coll), d(options...)...))
}

// aggregate runs a pipeline for what it writes.
func (s *site) aggregate(coll string, stages ...any) {
	s.run(d("aggregate", coll, "pipeline", bson.A(stages), "cursor", d()))
}

// count is the number of documents that fit.
func (s *site) count(coll string, filter any) int64 {
	n, err := s.coll(coll).CountDocuments(s.ctx, filter)
	check(err)
	return n
}

// transaction runs a step in a transaction of its own and commits it, again
// when the server asks for that. On the site that the step gets, everything
// belongs to the transaction.
func (s *site) transaction(step func(*site)) {
	for {
		x := s.begin()
		err := attempt(func() {
			step(x.site)
			x.commit()
		})
		x.end()
		if !transient(err) {
			check(err)
			return
		}
	}
}

// open begins a transaction with its first step, again where the server cannot take that
// at the moment.
func (s *site) open(step func(*site)) *txn {
	for {
		x := s.begin()
		err := attempt(func() { step(x.site) })
		if err == nil {
			return x
		}
		x.end()
		if !transient(err) {
			check(err)
		}
	}
}

// transient reports that a transaction is to be tried again.
func transient(err error) bool {
	var labeled mongo.LabeledError
	return errors.As(err, &labeled) && labeled.HasErrorLabel("TransientTransactionError")
}

// txn is an open transaction.
type txn struct {
	*site
	session *mongo.Session
}

func (s *site) begin() *txn {
	session, err := s.client.StartSession()
	check(err)
	check(session.StartTransaction())
	return &txn{session: session, site: &site{ctx: mongo.NewSessionContext(s.ctx, session), client: s.client,
		base: s.base}}
}

func (x *txn) commit() { check(x.session.CommitTransaction(x.ctx)) }

func (x *txn) abort() { check(x.session.AbortTransaction(x.ctx)) }

// end releases the session, aborting what is open.
func (x *txn) end() { x.session.EndSession(context.WithoutCancel(x.ctx)) }

// prepare prepares the transaction and returns what commits it.
func (x *txn) prepare() (commit func()) {
	var r struct {
		TS bson.Timestamp `bson:"prepareTimestamp"`
	}
	admin := x.client.Database("admin")
	check(admin.RunCommand(x.ctx, d("prepareTransaction", 1, "writeConcern", d("w", "majority"))).Decode(&r))
	return func() {
		// The driver would send a plain commit; a prepared one needs its time.
		check(admin.RunCommand(x.ctx, d("commitTransaction", 1, "commitTimestamp", r.TS)).Err())
	}
}
