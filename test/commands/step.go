package commands

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Op is a kind of user command.
type Op string

// The user commands. Those on documents are about one document each.
const (
	Insert       Op = "insert"
	Update       Op = "update" // of fields; also one that gives the document to another shard
	Replace      Op = "replace"
	Delete       Op = "delete"
	Create       Op = "create"
	CreateIndex  Op = "createIndex"
	DropIndex    Op = "dropIndex"
	Drop         Op = "drop"
	DropDatabase Op = "dropDatabase"
	Rename       Op = "rename"
	Out          Op = "$out"
	MapReduce    Op = "mapReduce"
	Convert      Op = "convertToCapped"
	Clone        Op = "cloneCollectionAsCapped"
	Reshard      Op = "reshardCollection"
	MovePrimary  Op = "movePrimary"
	Shard        Op = "shardCollection" // of none that is there, by hashed k
)

// Doc is a document by its fields. Numbers are int32, but for those that mapReduce
// makes.
type Doc map[string]any

// Step is one user command.
type Step struct {
	Do Op
	// NS is the namespace of the command, for DropDatabase and MovePrimary the
	// database; To is that of its result.
	NS, To string
	// ID is the document of Update, Replace and Delete.
	ID int32
	// Doc is the document of Insert and Replace, the fields of Update.
	Doc Doc
	// Below bounds the field v of the documents that Out and MapReduce read; 0 reads all.
	Below int32
	// Field is that of a CreateIndex and DropIndex, and the new key of a Reshard.
	Field string
	// DropTarget is that of a Rename. Capped makes a capped collection of a Create.
	DropTarget, Capped bool
	// Shard is where MovePrimary goes.
	Shard string
}

// cappedSize is enough for all documents of a table or a trial.
const cappedSize = 1 << 20

// Command is the command and its database.
func (s Step) Command() (db string, cmd bson.D) {
	db, coll := split(s.NS)
	of := func(name string, more ...bson.E) bson.D { return append(bson.D{{Key: name, Value: coll}}, more...) }
	switch s.Do {
	case Insert:
		return db, of("insert", bson.E{Key: "documents", Value: bson.A{s.Doc.bson()}})
	case Update:
		return db, of("update", s.updates(bson.D{{Key: "$set", Value: s.Doc.bson()}}))
	case Replace:
		return db, of("update", s.updates(s.Doc.bson()))
	case Delete:
		one := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: s.ID}}}, {Key: "limit", Value: int32(1)}}
		return db, of("delete", bson.E{Key: "deletes", Value: bson.A{one}})
	case Create:
		if s.Capped {
			return db, of("create", bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: int32(cappedSize)})
		}
		return db, of("create")
	case CreateIndex:
		ix := bson.D{{Key: "key", Value: bson.D{{Key: s.Field, Value: int32(1)}}}, {Key: "name", Value: s.Field + "_1"}}
		return db, of("createIndexes", bson.E{Key: "indexes", Value: bson.A{ix}})
	case DropIndex:
		return db, of("dropIndexes", bson.E{Key: "index", Value: s.Field + "_1"})
	case Drop:
		return db, of("drop")
	case DropDatabase:
		return db, bson.D{{Key: "dropDatabase", Value: int32(1)}}
	case Out, MapReduce, Convert, Clone:
		return db, s.into(of)
	case Rename:
		return "admin", bson.D{{Key: "renameCollection", Value: s.NS}, {Key: "to", Value: s.To},
			{Key: "dropTarget", Value: s.DropTarget}}
	case Reshard:
		return "admin", bson.D{{Key: "reshardCollection", Value: s.NS},
			{Key: "key", Value: bson.D{{Key: s.Field, Value: int32(1)}}},
			{Key: "numInitialChunks", Value: int32(1)}}
	case MovePrimary:
		return "admin", bson.D{{Key: "movePrimary", Value: db}, {Key: "to", Value: s.Shard}}
	}
	return "", nil
}

// updates is the statement of an update.
func (s Step) updates(u any) bson.E {
	q := bson.D{{Key: "_id", Value: s.ID}}
	if k, ok := s.Doc["_at"]; ok { // the shard key of the document
		q = append(q, bson.E{Key: "k", Value: k})
	}
	return bson.E{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "u", Value: u}}}}
}

// into are the commands that write a collection from another one.
func (s Step) into(of func(string, ...bson.E) bson.D) bson.D {
	db, _ := split(s.NS)
	toDB, to := split(s.To)
	var read bson.D
	if s.Below != 0 {
		read = bson.D{{Key: "v", Value: bson.D{{Key: "$lt", Value: s.Below}}}}
	}
	switch s.Do {
	case Out:
		stages := bson.A{bson.D{{Key: "$match", Value: read}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "out", Value: int32(1)}}}}}
		var into any = to
		if toDB != db {
			into = bson.D{{Key: "db", Value: toDB}, {Key: "coll", Value: to}}
		}
		if read == nil {
			stages = stages[1:]
		}
		stages = append(stages, bson.D{{Key: "$out", Value: into}})
		return of("aggregate", bson.E{Key: "pipeline", Value: stages}, bson.E{Key: "cursor", Value: bson.D{}})
	case MapReduce:
		cmd := of("mapReduce", bson.E{Key: "map", Value: bson.JavaScript("function() { emit(NumberInt(this._id), 1); }")},
			bson.E{Key: "reduce", Value: bson.JavaScript("function(k, v) { return Array.sum(v); }")},
			bson.E{Key: "out", Value: bson.D{{Key: "replace", Value: to}}})
		if read != nil {
			cmd = append(cmd, bson.E{Key: "query", Value: read})
		}
		return cmd
	case Clone:
		return of("cloneCollectionAsCapped", bson.E{Key: "toCollection", Value: to},
			bson.E{Key: "size", Value: int32(cappedSize)})
	}
	return of("convertToCapped", bson.E{Key: "size", Value: int32(cappedSize)})
}

// bson has the fields in the order of their names, after _id.
func (d Doc) bson() bson.D {
	var out bson.D
	if id, ok := d["_id"]; ok {
		out = bson.D{{Key: "_id", Value: id}}
	}
	for _, name := range sorted(d) {
		if name != "_id" && name != "_at" {
			out = append(out, bson.E{Key: name, Value: d[name]})
		}
	}
	return out
}

// String is short, for messages.
func (s Step) String() string {
	out := fmt.Sprintf("%s %s", s.Do, s.NS)
	if s.To != "" {
		out += " to " + s.To
	}
	switch s.Do {
	case Insert, Update, Replace, Delete:
		out += fmt.Sprintf(" %d %v", s.ID, map[string]any(s.Doc))
	}
	return out
}

func split(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}

// Parse is the step that a command is, on a database. It is false for what no step
// is.
func Parse(db string, raw bson.Raw) (s Step, ok bool) {
	first, err := raw.IndexErr(0)
	if err != nil {
		return s, false
	}
	coll, _ := first.Value().StringValueOK()
	s.NS = db + "." + coll
	str := func(path ...string) string { v, _ := raw.Lookup(path...).StringValueOK(); return v }
	var ok2 bool
	switch first.Key() {
	case "insert":
		s.Do = Insert
		s.Doc, s.ID, ok2 = docOf(raw.Lookup("documents", "0"))
		_, more := raw.Lookup("documents", "1").DocumentOK()
		return s, ok2 && !more
	case "update":
		s.ID, ok2 = raw.Lookup("updates", "0", "q", "_id").Int32OK()
		u := raw.Lookup("updates", "0", "u")
		s.Do = Replace
		if set, err := u.Document().LookupErr("$set"); err == nil {
			s.Do, u = Update, set
		}
		s.Doc, _, _ = docOf(u)
		_, more := raw.Lookup("updates", "1").DocumentOK()
		for name := range s.Doc {
			ok2 = ok2 && !strings.HasPrefix(name, "$")
		}
		return s, ok2 && !more && len(s.Doc) > 0
	case "delete":
		s.Do = Delete
		s.ID, ok2 = raw.Lookup("deletes", "0", "q", "_id").Int32OK()
		return s, ok2
	case "create":
		s.Do = Create
		s.Capped, _ = raw.Lookup("capped").BooleanOK()
		return s, true
	case "createIndexes":
		s.Do, s.Field = CreateIndex, strings.TrimSuffix(str("indexes", "0", "name"), "_1")
		return s, true
	case "dropIndexes":
		s.Do, s.Field = DropIndex, strings.TrimSuffix(str("index"), "_1")
		return s, true
	case "drop":
		s.Do = Drop
		return s, true
	case "dropDatabase":
		s.Do, s.NS = DropDatabase, db
		return s, true
	case "renameCollection":
		s.Do, s.NS, s.To = Rename, coll, str("to")
		s.DropTarget, _ = raw.Lookup("dropTarget").BooleanOK()
		return s, true
	case "aggregate":
		return parseOut(db, s, raw)
	case "mapReduce":
		s.Do, s.To = MapReduce, db+"."+str("out", "replace")
		s.Below, _ = raw.Lookup("query", "v", "$lt").Int32OK()
		return s, true
	case "convertToCapped":
		s.Do = Convert
		return s, true
	case "cloneCollectionAsCapped":
		s.Do, s.To = Clone, db+"."+str("toCollection")
		return s, true
	}
	return s, false
}

// parseOut is the aggregation that Command makes of an Out.
func parseOut(db string, s Step, raw bson.Raw) (Step, bool) {
	s.Do = Out
	stages, err := raw.Lookup("pipeline").Array().Values()
	if err != nil || len(stages) < 2 {
		return s, false
	}
	s.Below, _ = stages[0].Document().Lookup("$match", "v", "$lt").Int32OK()
	into := stages[len(stages)-1].Document().Lookup("$out")
	if to, ok := into.StringValueOK(); ok {
		s.To = db + "." + to
		return s, true
	}
	toDB, ok := into.Document().Lookup("db").StringValueOK()
	s.To = toDB + "." + into.Document().Lookup("coll").StringValue()
	return s, ok
}

// docOf reads a document whose _id, if it has one, is an int32.
func docOf(v bson.RawValue) (d Doc, id int32, ok bool) {
	raw, ok := v.DocumentOK()
	if !ok {
		return nil, 0, false
	}
	var m bson.M
	if bson.Unmarshal(raw, &m) != nil {
		return nil, 0, false
	}
	id, ok = m["_id"].(int32)
	return Doc(m), id, ok
}
