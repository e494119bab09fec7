package commands

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Writer draws commands that the source takes, as the model knows it.
type Writer struct {
	*rand.Rand
	W *World
	// Names are the namespaces that it writes to. Only single letters are collections'
	// names, so that a pattern tells them from those that servers make.
	Names []string
	// IDs is how many _ids it uses.
	IDs int32
	// Schema is one in how many commands there is one that is not on a document.
	Schema int
	// Kinds are those.
	Kinds []Op
	// Streamed leaves out what change streams do not carry of a job with rules.
	Streamed bool
	// shards are those of the source, none for a replica set; primary is that of each database.
	shards  []string
	primary map[string]string
	// moved are the databases whose primary shard has changed.
	moved map[string]bool
	// keyed are the sharded collections, by hashed k or by _id.
	keyed map[string]string
	n     int32
}

// NewWriter draws all kinds of commands that a replica set takes, on two databases. It
// makes collections capped once in three times.
func NewWriter(r *rand.Rand, w *World, db, other string) *Writer {
	x := &Writer{Rand: r, W: w, IDs: 8, Schema: 3,
		Names: []string{db + ".c", db + ".d", db + ".e", other + ".c", other + ".e"},
		Kinds: []Op{Rename, Rename, Rename, Out, Out, Drop, Create, CreateIndex, DropIndex, MapReduce, Clone, DropDatabase}}
	if r.IntN(3) == 0 {
		x.Kinds = append(x.Kinds, Convert)
	}
	return x
}

// OnShards draws what a sharded cluster takes, whose databases have the first shard as the
// primary one.
func (x *Writer) OnShards(shards []string) {
	x.shards, x.primary, x.keyed, x.moved = shards, map[string]string{}, map[string]string{}, map[string]bool{}
	for _, ns := range x.Names {
		db, _ := split(ns)
		x.primary[db] = shards[0]
	}
	x.Kinds = slices.DeleteFunc(x.Kinds, func(k Op) bool { return k == MapReduce || k == Clone })
	x.Kinds = append(x.Kinds, Reshard, MovePrimary)
}

// Next draws a command and applies it to the model. It is false for one that the source
// or the model cannot take, and always once the job has to end.
func (x *Writer) Next() (Step, bool) {
	s := x.draw()
	ok := x.W.Stops == "" && (x.W.begun || !x.capsRuled(s)) && x.routable(s) && x.streams(s) && x.W.Apply(s) == nil
	if ok && x.shards != nil {
		x.place(s)
	}
	return s, ok
}

// streams reports whether change streams carry a command, if they have to: of no rename between databases the rules can
// judge the command, and behind routers convertToCapped does not show its documents.
func (x *Writer) streams(s Step) bool {
	db, _ := split(s.NS)
	toDB, _ := split(s.To)
	return !x.Streamed || (s.Do != Rename || db == toDB) && (s.Do != Convert || x.shards == nil)
}

// routable reports whether a router takes a command on what is sharded.
func (x *Writer) routable(s Step) bool {
	db, _ := split(s.NS)
	toDB, _ := split(s.To)
	switch s.Do {
	case Rename:
		return db == toDB || x.keyed[s.NS] == "" && x.keyed[s.To] == "" && !x.moved[db] && !x.moved[toDB]
	case Out: // the lab's router sends it to one shard
		return x.keyed[s.NS] == "" && x.keyed[s.To] == "" && x.primary[db] == x.primary[toDB]
	case Convert:
		return x.keyed[s.NS] == ""
	case Reshard: // after a movePrimary the primary shard may go without the result
		return x.keyed[s.NS] == "k" && !x.moved[db]
	case MovePrimary:
		return x.primary[s.NS] != s.Shard
	}
	return true
}

// place notes what is where after a command.
func (x *Writer) place(s Step) {
	switch s.Do {
	case Shard:
		x.keyed[s.NS] = "k"
	case Reshard:
		x.keyed[s.NS] = s.Field
	case MovePrimary:
		x.primary[s.NS], x.moved[s.NS] = s.Shard, true
	case Drop:
		delete(x.keyed, s.NS)
	case DropDatabase:
		x.primary[s.NS], x.moved[s.NS] = x.shards[0], false
		maps.DeleteFunc(x.keyed, func(ns, _ string) bool { return strings.HasPrefix(ns, s.NS+".") })
	case Rename:
		key := x.keyed[s.NS]
		delete(x.keyed, s.NS)
		if x.keyed[s.To] = key; key == "" {
			delete(x.keyed, s.To)
		}
	}
}

// capsRuled reports a command that would keep the job from beginning: a capped
// collection would have rules that it cannot have, or be on the target uncapped.
func (x *Writer) capsRuled(s Step) bool {
	c, ns := x.W.source[s.NS], s.NS
	switch {
	case s.Do == Clone, s.Do == Rename && c != nil && c.capped:
		ns = s.To
	case s.Do != Convert && !s.Capped:
		return false
	}
	r := x.W.rules(ns)
	return r.ofDocuments() || r.Merge
}

func (x *Writer) draw() Step {
	if x.IntN(x.Schema) == 0 {
		return x.structure()
	}
	ns, id := x.name(), int32(x.IntN(int(x.IDs)))
	there, capped := x.W.Exists(ns)
	if !there && x.shards != nil && x.IntN(2) == 0 {
		return Step{Do: Shard, NS: ns}
	}
	if s, ok := x.move(ns, id); ok {
		return s
	}
	switch n := x.IntN(8); {
	case !x.W.Has(ns, id):
		return Step{Do: Insert, NS: ns, ID: id, Doc: x.Document(id)}
	case n < 2 && !capped:
		return Step{Do: Delete, NS: ns, ID: id}
	case n == 2 && !capped:
		d := x.Document(id)
		delete(d, "_id")
		if x.keyed[ns] != "" {
			d["k"] = x.W.source[ns].docs[id]["k"]
		}
		return Step{Do: Replace, NS: ns, ID: id, Doc: d}
	case n < 5 && !capped:
		return Step{Do: Update, NS: ns, ID: id, Doc: Doc{"s": x.status(), "t": x.next()}}
	}
	return Step{Do: Update, NS: ns, ID: id, Doc: Doc{"v": x.next()}}
}

// move gives a document of a sharded collection another shard key, half of the time. All
// that does not name the key goes by _id to all shards.
func (x *Writer) move(ns string, id int32) (Step, bool) {
	if x.keyed[ns] != "k" || !x.W.Has(ns, id) || x.IntN(2) == 0 {
		return Step{}, false
	}
	d := Doc{"k": int32(x.IntN(1000)), "_at": x.W.source[ns].docs[id]["k"]}
	if x.IntN(2) == 0 {
		d["s"], d["t"] = x.status(), x.next()
	}
	return Step{Do: Update, NS: ns, ID: id, Doc: d}, d["k"] != d["_at"]
}

func (x *Writer) name() string { return x.Names[x.IntN(len(x.Names))] }

// next is a number that no document has had, so that each update changes something.
func (x *Writer) next() int32 {
	x.n++
	return x.n
}

func (x *Writer) status() string { return []string{"open", "open", "closed"}[x.IntN(3)] }

// Document draws a document.
func (x *Writer) Document(id int32) Doc {
	return Doc{"_id": id, "k": id, "n": id, "s": x.status(), "v": x.next()}
}

// structure draws a command that is not on a document.
func (x *Writer) structure() Step {
	s := Step{Do: x.Kinds[x.IntN(len(x.Kinds))], NS: x.name(), To: x.name()}
	db, _ := split(s.NS)
	toDB, _ := split(s.To)
	switch s.Do {
	case Rename:
		s.DropTarget = x.IntN(2) == 0
	case Out:
		s.Below = []int32{0, x.n / 2, x.n}[x.IntN(3)]
	case MapReduce, Clone:
		if db != toDB {
			s.To = db + s.To[strings.Index(s.To, "."):]
		}
	case CreateIndex, DropIndex:
		s.To, s.Field = "", []string{"k", "v"}[x.IntN(2)]
	case DropDatabase:
		s.NS, s.To = db, ""
	case MovePrimary:
		s.NS, s.To, s.Shard = db, "", x.shards[x.IntN(len(x.shards))]
	case Reshard:
		s.To, s.Field = "", "_id"
	default:
		s.To = ""
	}
	return s
}
