package trial

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// retainedModel is what the target of a job that skips operations is to have. It takes the commands of
// users in the order in which the source has done them, and knows of no oplog. It knows
// inserts, replacements and deletions by _id, and what happens to collections and indexes.
type retainedModel struct {
	skip    map[string]bool // operations on all collections
	begun   bool            // what happens now is a change: before, it is copied
	copying bool            // a document that goes now was copied or was not
	source  map[string]*sourceColl
	target  map[string]*targetColl
}

// sourceColl is a collection of the source, with the keys of its indexes by name.
type sourceColl struct {
	indexes map[string]string
	gone    bool // the target has none of it
}

type targetColl struct {
	docs    map[string]bson.Raw
	maybe   map[string]bool // documents that may be missing
	indexes map[string]*modelIndex
}

type modelIndex struct {
	is     string // key and filter
	expire int64  // in seconds, below 0 for never
	hidden bool
	left   bool // the source has no such index any more
}

func (ix *modelIndex) String() string {
	text := ix.is
	if ix.expire >= 0 {
		text += fmt.Sprintf(" expires after %d s", ix.expire)
	}
	if ix.hidden {
		text += " hidden"
	}
	return text
}

// newRetained reads the operations from the options of a job.
func newRetained(args []string) *retainedModel {
	m := &retainedModel{skip: map[string]bool{}, source: map[string]*sourceColl{}, target: map[string]*targetColl{}}
	for i, a := range args[:max(0, len(args)-1)] {
		if a == "--skip" {
			_, ops, _ := strings.Cut(args[i+1], "=")
			for op := range strings.SplitSeq(ops, ",") {
				m.skip[op] = true
			}
		}
	}
	return m
}

// skips reports that an operation that happens now is left out.
func (m *retainedModel) skips(op string) bool { return m.begun && m.skip[op] }

// phase takes a phase that the job has come to.
func (m *retainedModel) phase(name string) {
	m.copying = phaseOrder(name) < phaseOrder("following") && (!m.begun || m.copying)
	m.begun = true
}

// take takes a command that the source has done.
func (m *retainedModel) take(cmd bson.Raw) {
	first := cmd.Index(0)
	coll, _ := first.Value().StringValueOK()
	switch first.Key() {
	case "insert":
		m.made(coll)
		for _, doc := range list(cmd, "documents") {
			m.put(coll, doc)
		}
	case "update":
		for _, u := range list(cmd, "updates") {
			m.put(coll, u.Lookup("u").Document())
		}
	case "delete":
		for _, q := range list(cmd, "deletes") {
			m.remove(coll, q.Lookup("q", "_id").String())
		}
	case "create":
		m.made(coll)
	case "drop":
		m.dropped(coll)
	case "dropDatabase":
		for _, coll := range slices.Sorted(maps.Keys(m.source)) {
			m.dropped(coll)
		}
	case "renameCollection":
		_, from, _ := strings.Cut(coll, ".")
		to, _ := cmd.Lookup("to").StringValueOK()
		_, to, _ = strings.Cut(to, ".")
		m.renamed(from, to)
	case "createIndexes":
		m.made(coll)
		for _, spec := range list(cmd, "indexes") {
			m.indexed(coll, spec)
		}
	case "dropIndexes":
		m.unindexed(coll, cmd.Lookup("index"))
	case "collMod":
		m.modified(coll, cmd.Lookup("index").Document())
	}
}

func list(cmd bson.Raw, key string) (out []bson.Raw) {
	values, _ := cmd.Lookup(key).Array().Values()
	for _, v := range values {
		out = append(out, v.Document())
	}
	return out
}

// of is what the target has of a collection of the source, nil for nothing.
func (m *retainedModel) of(coll string) *targetColl {
	if s := m.source[coll]; s == nil || s.gone {
		return nil
	}
	return m.target[coll]
}

// made has a collection on both sides. One that was left goes on as the new one: its
// documents and indexes are there, and the indexes expire nothing.
func (m *retainedModel) made(coll string) {
	if m.source[coll] != nil {
		return
	}
	m.source[coll] = &sourceColl{indexes: map[string]string{}, gone: m.skips("create")}
	switch t := m.target[coll]; {
	case m.source[coll].gone:
	case t == nil:
		m.target[coll] = &targetColl{docs: map[string]bson.Raw{}, maybe: map[string]bool{}, indexes: map[string]*modelIndex{}}
	default:
		t.goOn()
	}
}

func (t *targetColl) goOn() {
	for _, ix := range t.indexes {
		ix.left, ix.expire = true, -1
	}
}

func (m *retainedModel) put(coll string, doc bson.Raw) {
	if t := m.of(coll); t != nil {
		id := doc.Lookup("_id").String()
		t.docs[id] = doc
		delete(t.maybe, id)
	}
}

func (m *retainedModel) remove(coll, id string) {
	switch t := m.of(coll); {
	case t == nil:
	case m.skips("delete"):
		t.maybe[id] = t.maybe[id] || m.copying
	default:
		delete(t.docs, id)
	}
}

func (m *retainedModel) dropped(coll string) {
	t := m.of(coll)
	delete(m.source, coll)
	switch {
	case t == nil:
	case m.skips("drop"):
		for id := range t.docs {
			t.maybe[id] = t.maybe[id] || m.copying
		}
	default:
		delete(m.target, coll)
	}
}

func (m *retainedModel) renamed(from, to string) {
	s, t := m.source[from], m.of(from)
	delete(m.source, from)
	m.source[to] = s
	if m.skips("rename") {
		s.gone = true
		return
	}
	if t == nil {
		return
	}
	delete(m.target, from)
	left := m.target[to]
	if left == nil {
		m.target[to] = t
		return
	}
	left.goOn()
	for id, doc := range t.docs {
		left.docs[id] = doc
		left.maybe[id] = t.maybe[id] && left.maybe[id]
	}
	for _, name := range slices.Sorted(maps.Keys(t.indexes)) {
		if !left.inTheWay(name, t.indexes[name].is) {
			left.indexes[name] = t.indexes[name]
		}
	}
}

// inTheWay reports that an index has the name, or the key and filter.
func (t *targetColl) inTheWay(name, is string) bool {
	for other, ix := range t.indexes {
		if other == name || ix.is == is {
			return true
		}
	}
	return false
}

func identity(spec bson.Raw) string {
	text := spec.Lookup("key").String()
	if only, err := spec.LookupErr("partialFilterExpression"); err == nil {
		text += " where " + only.String()
	}
	return text
}

func (m *retainedModel) indexed(coll string, spec bson.Raw) {
	name, is := spec.Lookup("name").StringValue(), identity(spec)
	s := m.source[coll]
	if _, there := s.indexes[name]; there {
		return
	}
	s.indexes[name] = spec.Lookup("key").String()
	t := m.of(coll)
	if t == nil {
		return
	}
	expire, ok := spec.Lookup("expireAfterSeconds").AsInt64OK()
	if !ok {
		expire = -1
	}
	old := t.indexes[name]
	switch same := old != nil && old.is == is; {
	case same && m.skips("createIndexes"):
		old.left = false
	case same:
		old.left, old.expire = false, expire
	case !m.skips("createIndexes") && !t.inTheWay(name, is):
		t.indexes[name] = &modelIndex{is: is, expire: expire}
	}
}

// named is the name of an index of the source, by name or key.
func (s *sourceColl) named(v bson.RawValue) string {
	if name, ok := v.StringValueOK(); ok {
		return name
	}
	for name, key := range s.indexes {
		if key == v.String() {
			return name
		}
	}
	return ""
}

func (m *retainedModel) unindexed(coll string, which bson.RawValue) {
	s := m.source[coll]
	names := []string{s.named(which)}
	if names[0] == "*" {
		names = slices.Collect(maps.Keys(s.indexes))
	}
	for _, name := range names {
		delete(s.indexes, name)
		t := m.of(coll)
		if t == nil || t.indexes[name] == nil || t.indexes[name].left {
			continue
		}
		if !m.skips("dropIndexes") {
			delete(t.indexes, name)
			continue
		}
		t.indexes[name].left, t.indexes[name].expire = true, -1
	}
}

func (m *retainedModel) modified(coll string, mod bson.Raw) {
	by := mod.Lookup("name")
	if by.Type == 0 {
		by = mod.Lookup("keyPattern")
	}
	name := m.source[coll].named(by)
	t := m.of(coll)
	if t == nil || t.indexes[name] == nil || t.indexes[name].left || m.skips("collMod") {
		return
	}
	if n, ok := mod.Lookup("expireAfterSeconds").AsInt64OK(); ok {
		t.indexes[name].expire = n
	}
	if on, ok := mod.Lookup("hidden").BooleanOK(); ok {
		t.indexes[name].hidden = on
	}
}

// differences says how a database of a cluster differs from the model.
func (m *retainedModel) differences(ctx context.Context, db *mongo.Database) (out []string, err error) {
	names, err := db.ListCollectionNames(ctx, D())
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if m.target[name] == nil {
			out = append(out, fmt.Sprintf("%s is on the target and is not to be there", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.target)) {
		if !slices.Contains(names, name) {
			out = append(out, name+" is missing on the target")
			continue
		}
		have, err := documents(ctx, db.Client(), db.Name()+"."+name)
		if err != nil {
			return nil, err
		}
		out = append(out, m.target[name].documentsIn(name, have)...)
		indexes, err := indexesOf(ctx, db.Collection(name))
		if err != nil {
			return nil, err
		}
		out = append(out, m.target[name].indexesIn(name, indexes)...)
	}
	return out, nil
}

func (t *targetColl) documentsIn(coll string, have map[string]bson.Raw) (out []string) {
	for id, doc := range t.docs {
		switch h := have[id]; {
		case h == nil && !t.maybe[id]:
			out = append(out, fmt.Sprintf("%s: document %s is missing", coll, id))
		case h != nil && !bytes.Equal(h, doc):
			out = append(out, fmt.Sprintf("%s: document %s is %s, wanted %s", coll, id, h, doc))
		}
	}
	for id := range have {
		if t.docs[id] == nil {
			out = append(out, fmt.Sprintf("%s: document %s is not to be there", coll, id))
		}
	}
	slices.Sort(out)
	return out
}

func (t *targetColl) indexesIn(coll string, have map[string]*modelIndex) (out []string) {
	all := maps.Clone(have)
	maps.Copy(all, t.indexes)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		is, want := "none", "none"
		if ix := have[name]; ix != nil {
			is = ix.String()
		}
		if ix := t.indexes[name]; ix != nil {
			want = ix.String()
		}
		if is != want {
			out = append(out, fmt.Sprintf("%s: index %s is %s, wanted %s", coll, name, is, want))
		}
	}
	return out
}

// indexesOf reads the indexes of a collection. An expiry of decades stands for none.
func indexesOf(ctx context.Context, coll *mongo.Collection) (map[string]*modelIndex, error) {
	const never = 1_600_000_000
	specs, err := coll.Indexes().List(ctx)
	if err != nil {
		return nil, err
	}
	var all []bson.Raw
	if err := specs.All(ctx, &all); err != nil {
		return nil, err
	}
	out := map[string]*modelIndex{}
	for _, spec := range all {
		name := spec.Lookup("name").StringValue()
		if name == "_id_" {
			continue
		}
		ix := &modelIndex{is: identity(spec), expire: -1}
		if n, ok := spec.Lookup("expireAfterSeconds").AsInt64OK(); ok && n < never {
			ix.expire = n
		}
		ix.hidden, _ = spec.Lookup("hidden").BooleanOK()
		out[name] = ix
	}
	return out, nil
}
