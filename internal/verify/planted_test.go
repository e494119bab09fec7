package verify

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/test/kit"
)

// makeID is the i-th id of one of many types; different i give different ids.
func makeID(i int) any {
	switch i % 14 {
	case 0:
		return int32(i)
	case 1:
		return int64(i) << 33
	case 2:
		return float64(i) + 0.5
	case 3:
		return fmt.Sprintf("s%d", i*7919)
	case 4:
		var id bson.ObjectID
		binary.BigEndian.PutUint64(id[:], uint64(i)*0x9E3779B97F4A7C15)
		return id
	case 5:
		return bson.D{{Key: "a", Value: int32(i)}, {Key: "l", Value: bson.A{int32(i), "x"}}}
	case 6:
		return bson.Binary{Subtype: 4, Data: fmt.Appendf(nil, "%016d", i)}
	case 7:
		return bson.DateTime(int64(i) * 1000)
	case 8:
		return bson.Timestamp{T: uint32(i), I: 3}
	case 9:
		return bson.NewDecimal128(0x3040000000000000, uint64(i)<<20|1<<45)
	case 10:
		return bson.Symbol(fmt.Sprintf("sym%d", i))
	case 11:
		return bson.JavaScript(fmt.Sprintf("f%d()", i))
	case 12:
		return bson.Binary{Subtype: 0, Data: bytes.Repeat([]byte{byte(i)}, 1+i/14)}
	default:
		switch i / 14 {
		case 0:
			return nil
		case 1:
			return true
		case 2:
			return false
		case 3:
			return bson.MinKey{}
		case 4:
			return bson.MaxKey{}
		case 5:
			return math.NaN()
		case 6:
			return math.Inf(1)
		case 7:
			return math.Inf(-1)
		case 8:
			return bson.D{{Key: "u", Value: bson.Undefined{}}}
		}
		return fmt.Sprintf("ü%d", i)
	}
}

// makeDoc is a document that has room for every sort of planted difference.
func makeDoc(t testing.TB, r *rand.Rand, id any) bson.Raw {
	return kit.Raw(bson.D{{Key: "_id", Value: id},
		{Key: "n", Value: int32(7)}, {Key: "zero", Value: 0.0}, {Key: "nan", Value: math.NaN()},
		{Key: "s", Value: fmt.Sprintf("%0*d", 1+r.IntN(60), r.Uint32())},
		{Key: "nest", Value: bson.D{{Key: "a", Value: int32(1)},
			{Key: "b", Value: bson.A{int32(1), bson.D{{Key: "c", Value: "x"}}}}}},
		{Key: "d", Value: int32(1)}, {Key: "d", Value: int32(2)}})
}

// plant is a sort of difference: it returns the target's document, nil to
// leave it out.
type plant struct {
	name    string
	kind    Kind
	reorder bool // no difference when field order is ignored
	change  func(bson.Raw) bson.Raw
}

func replaceField(doc bson.Raw, name string, v bsoncore.Value) bson.Raw {
	elems, _ := bsoncore.Document(doc).Elements()
	idx, out := bsoncore.AppendDocumentStart(nil)
	done := false
	for _, e := range elems {
		if e.Key() == name && !done {
			out = bsoncore.AppendValueElement(out, name, v)
			done = true
			continue
		}
		out = append(out, e...)
	}
	out, _ = bsoncore.AppendDocumentEnd(out, idx)
	return bson.Raw(out)
}

func value(v any) bsoncore.Value {
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		panic(err)
	}
	return bsoncore.Value{Type: bsoncore.Type(t), Data: data}
}

func nan(payload uint64) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeDouble, Data: binary.LittleEndian.AppendUint64(nil,
		0x7FF8000000000000|payload)}
}

func permute(doc bson.Raw, order func([]bsoncore.Element)) bson.Raw {
	elems, _ := bsoncore.Document(doc).Elements()
	order(elems[1:])
	idx, out := bsoncore.AppendDocumentStart(nil)
	for _, e := range elems {
		out = append(out, e...)
	}
	out, _ = bsoncore.AppendDocumentEnd(out, idx)
	return bson.Raw(out)
}

func plants() []plant {
	set := func(field string, v any) func(bson.Raw) bson.Raw {
		return func(d bson.Raw) bson.Raw { return replaceField(d, field, value(v)) }
	}
	return []plant{
		{"missing", Missing, false, func(bson.Raw) bson.Raw { return nil }},
		{"one byte", Content, false, func(d bson.Raw) bson.Raw {
			d = bytes.Clone(d)
			d[bytes.Index(d, []byte("\x02s\x00"))+8] ^= 1
			return d
		}},
		{"int64 for int32", Content, false, set("n", int64(7))},
		{"double for int32", Content, false, set("n", 7.0)},
		{"decimal for int32", Content, false, set("n", bson.NewDecimal128(0x3040000000000000, 7))},
		{"negative zero", Content, false, set("zero", math.Copysign(0, -1))},
		{"nan payload", Content, false, func(d bson.Raw) bson.Raw { return replaceField(d, "nan", nan(12345)) }},
		{"nested value", Content, false, set("nest", bson.D{{Key: "a", Value: int32(1)},
			{Key: "b", Value: bson.A{int32(1), bson.D{{Key: "c", Value: "y"}}}}})},
		{"array order", Content, false, set("nest", bson.D{{Key: "a", Value: int32(1)},
			{Key: "b", Value: bson.A{bson.D{{Key: "c", Value: "x"}}, int32(1)}}})},
		{"duplicate field's value", Content, false, set("d", int32(2))},
		{"field order", Content, true, func(d bson.Raw) bson.Raw {
			return permute(d, func(e []bsoncore.Element) { e[0], e[1] = e[1], e[0] })
		}},
		{"order of duplicates", Content, true, func(d bson.Raw) bson.Raw {
			return permute(d, func(e []bsoncore.Element) { n := len(e); e[n-1], e[n-2] = e[n-2], e[n-1] })
		}},
		{"nested order", Content, true, set("nest", bson.D{{Key: "b",
			Value: bson.A{int32(1), bson.D{{Key: "c", Value: "x"}}}}, {Key: "a", Value: int32(1)}})},
		{"added field", Content, false, func(d bson.Raw) bson.Raw {
			out := bsoncore.AppendInt32Element(bytes.Clone(d[:len(d)-1]), "more", 1)
			out = append(out, 0)
			binary.LittleEndian.PutUint32(out, uint32(len(out)))
			return out
		}},
		{"removed field", Content, false, func(d bson.Raw) bson.Raw {
			i := bytes.Index(d, []byte("\x10n\x00"))
			out := slices.Concat(d[:i], d[i+7:])
			binary.LittleEndian.PutUint32(out, uint32(len(out)))
			return out
		}},
	}
}

// retype is an _id that an index holds equal but whose bytes differ, if there is
// one.
func retype(v bson.RawValue) (any, bool) {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		if n, ok := v.Document().Lookup("a").Int32OK(); ok {
			return bson.D{{Key: "a", Value: float64(n)}, {Key: "l", Value: v.Document().Lookup("l")}}, true
		}
	case bson.TypeDecimal128:
		if hi, lo := v.Decimal128().GetBytes(); lo < 1<<60 { // one more digit, the exponent one less
			return bson.NewDecimal128(hi-1<<49, lo*10), true
		}
	case bson.TypeInt32:
		return float64(v.Int32()), true
	case bson.TypeInt64:
		return float64(v.Int64()), true
	case bson.TypeDouble:
		f := v.Double()
		if math.IsNaN(f) {
			return bson.RawValue{Type: bson.TypeDouble, Value: nan(77).Data}, true
		}
		if f == math.Trunc(f) && math.Abs(f) < 1e6 {
			return int32(f), true
		}
	case bson.TypeSymbol: // an index holds symbols and strings equal
		return v.Symbol(), true
	}
	return nil, false
}

type expectation struct {
	kind Kind
	name string
}

// plantAll fills both sides and returns what has to be found, by source id.
func plantAll(t *testing.T, b *bed, r *rand.Rand, ids []any, every int, reordersCount bool) map[string]expectation {
	want := map[string]expectation{}
	all := plants()
	var src, dst []bson.Raw
	for i, id := range ids {
		doc := makeDoc(t, r, id)
		key, _ := appendID(nil, doc)
		if r.IntN(every) != 0 {
			src, dst = append(src, doc), append(dst, doc)
			continue
		}
		switch n := r.IntN(len(all) + 2); {
		case n == len(all): // extra
			dst = append(dst, doc)
			want[string(key)] = expectation{Extra, "extra"}
		case n == len(all)+1:
			other, ok := retype(doc.Lookup("_id"))
			if !ok {
				src, dst = append(src, doc), append(dst, doc)
				continue
			}
			src, dst = append(src, doc), append(dst, replaceField(doc, "_id", value(other)))
			want[string(key)] = expectation{Content, "id type"}
		default:
			p := all[(n+i)%len(all)]
			src = append(src, doc)
			if changed := p.change(doc); changed != nil {
				dst = append(dst, changed)
			}
			if !p.reorder || reordersCount {
				want[string(key)] = expectation{p.kind, p.name}
			}
		}
	}
	shuffle := func(d []bson.Raw) { r.Shuffle(len(d), func(i, j int) { d[i], d[j] = d[j], d[i] }) }
	shuffle(src)
	shuffle(dst)
	insert(t, b.src, b.pair.Source, src...)
	insert(t, b.dst, b.pair.Target, dst...)
	return want
}

func checkFound(t *testing.T, r *Report, want map[string]expectation) {
	t.Helper()
	if r.Same != (len(want) == 0) || r.Count != int64(len(want)) {
		t.Errorf("same %v, count %d; want %d differences", r.Same, r.Count, len(want))
	}
	left := map[string]expectation{}
	for k, v := range want {
		left[k] = v
	}
	for _, d := range r.Differences {
		key := string([]byte{byte(d.ID.Type)}) + string(d.ID.Value)
		w, ok := left[key]
		if !ok {
			t.Errorf("invented (or twice): %s %s %s", d.Kind, d.ID, d.Detail)
			continue
		}
		if w.kind != d.Kind || d.Kind == Content && d.Detail == "" {
			t.Errorf("_id %s planted %q: got %s %q", d.ID, w.name, d.Kind, d.Detail)
		}
		delete(left, key)
	}
	for k, w := range left {
		t.Errorf("not found: %q at _id %s", w.name, idValue(k))
	}
	if _, err := json.Marshal(r); err != nil {
		t.Errorf("report as JSON: %v", err)
	}
}

func idsOf(n int, make func(int) any) []any {
	ids := []any{}
	for i := range n {
		ids = append(ids, make(i))
	}
	return ids
}

type plantedTest struct {
	name    string
	o       Options
	ids     []any
	every   int
	options []bson.E
}

func plantedTests() []plantedTest {
	small := Options{Workers: 3, RangeBytes: 2000, MaxBufferedBytes: 1 << 20}
	big := Options{Workers: 2}
	ignoring := small
	ignoring.IgnoreFieldOrder = true
	tiny := Options{Workers: 2, RangeBytes: 1, MaxBufferedBytes: 1}
	noSymbol := func(i int) any { // refused under a collation
		if i%14 == 10 {
			return fmt.Sprintf("y%d", i)
		}
		return makeID(i)
	}
	objectID := func(i int) any { return makeID(i*14 + 4) }
	digests := Options{Method: Digest, Workers: 2, RangeBytes: 2000}
	clustered := bson.E{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "unique", Value: true}}}
	collated := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}, {Key: "strength", Value: 2}}}
	return []plantedTest{
		{"mixed ids", small, idsOf(1500, makeID), 12, nil},
		{"mixed ids in few ranges", big, idsOf(1500, makeID), 12, nil},
		{"mixed ids, field order ignored", ignoring, idsOf(1500, makeID), 6, nil},
		{"nearly everything differs", tiny, idsOf(400, makeID), 2, nil},
		{"nothing differs", small, idsOf(1500, makeID), math.MaxInt, nil},
		{"object ids", small, idsOf(1000, objectID), 10, nil},
		{"digests", digests, idsOf(1500, makeID), 12, nil},
		{"digests, one difference", digests, idsOf(1500, makeID), 1000, nil},
		{"digests, nothing differs", digests, idsOf(1500, makeID), math.MaxInt, nil},
		{"digests, collated", digests, idsOf(1000, noSymbol), 20, []bson.E{collated}},
		{"digests, clustered", digests, idsOf(700, makeID), 20, []bson.E{clustered}},
		{"digests, capped", digests, idsOf(700, makeID), 20, []bson.E{{Key: "capped", Value: true},
			{Key: "size", Value: 8 << 20}}},
		{"digests, too much differs", Options{Method: Digest, MaxBufferedBytes: 1, RangeBytes: 2000},
			idsOf(700, makeID), 2, nil},
		{"clustered", small, idsOf(700, makeID), 10, []bson.E{clustered}},
		{"clustered, object ids", small, idsOf(500, objectID), 10, []bson.E{clustered}},
		{"collated", small, idsOf(1000, noSymbol), 10, []bson.E{collated}},
		{"capped", small, idsOf(1000, makeID), 10, []bson.E{{Key: "capped", Value: true}, {Key: "size", Value: 8 << 20}}},
	}
}

func TestPlantedDifferences(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	for _, tc := range plantedTests() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, c, c)
			b.create(tc.options...)
			b.planted(t, tc)
		})
	}
}

// planted compares a bed of which the collections are there, and empty.
func (b *bed) planted(t *testing.T, tc plantedTest) {
	want := plantAll(t, b, seeded(t), tc.ids, tc.every, !tc.o.IgnoreFieldOrder)
	tc.o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	rep, st := b.run(tc.o)
	if strings.Contains(tc.name, "capped") { // the documents were shuffled
		i := slices.IndexFunc(rep.Differences, func(d Difference) bool { return d.Kind == Order })
		if i < 0 {
			t.Fatal("that the order differs was not found")
		}
		rep.Differences = slices.Delete(rep.Differences, i, i+1)
		rep.Count--
	}
	checkFound(t, rep, want)
	col := rep.Collections[0]
	if col.Method != tc.o.Method && !strings.Contains(tc.name, "too much") && tc.o.Method != "" {
		t.Errorf("compared by %s", col.Method)
	}
	for i, got := range []int64{col.SourceDocs, col.TargetDocs} {
		db, coll := mongo.SplitNS([]string{b.pair.Source, b.pair.Target}[i])
		c := []*mongo.Cluster{b.src, b.dst}[i].Client.Database(db).Collection(coll)
		if n, err := c.CountDocuments(t.Context(), bson.D{}); err != nil || n != got {
			t.Errorf("%s: report counts %d documents, the server %d (%v)", coll, got, n, err)
		}
	}
	t.Logf("%d ranges, %d planted, peak %d bytes", st.Ranges, len(want), st.PeakBytes)
}

// Every boundary document, first and last of each range, is compared exactly
// once, and a difference planted on each is found.
func TestBoundaries(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	r := seeded(t)
	b := newBed(t, c, c)
	var docs []bson.Raw
	for _, id := range idsOf(600, makeID) {
		docs = append(docs, makeDoc(t, r, id))
	}
	insert(t, b.src, b.pair.Source, docs...)
	e := New(c, c, Options{RangeBytes: 1500})
	col := newCollection(e, pairOfNames(b.pair.Source, b.pair.Source))
	if _, err := col.tasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	bounds, err := col.bounds(t.Context())
	if err != nil || len(bounds) < 20 {
		t.Fatalf("only %d bounds, error %v", len(bounds), err)
	}
	seen := map[string]int{}
	edges := map[string]bool{}
	for _, sl := range scan.Slices(scan.Slice{}, bounds) {
		first, last := "", ""
		for _, id := range readRange(t, &col.sides[source], sl) {
			if first == "" {
				first = id
			}
			last = id
			seen[id]++
		}
		edges[first], edges[last] = true, true
	}
	delete(edges, "")
	for _, d := range docs {
		if k, _ := appendID(nil, d); seen[string(k)] != 1 {
			t.Errorf("_id %s is in %d ranges", d.Lookup("_id"), seen[string(k)])
		}
	}
	want := map[string]expectation{}
	var target []bson.Raw
	for _, d := range docs {
		k, _ := appendID(nil, d)
		if edges[string(k)] {
			want[string(k)] = expectation{Content, "edge"}
			d = replaceField(d, "n", value(int32(8)))
		}
		target = append(target, d)
	}
	insert(t, b.dst, b.pair.Target, target...)
	for range 3 { // other random boundaries each time
		rep, _ := b.run(Options{RangeBytes: 1500})
		checkFound(t, rep, want)
	}
}

func readRange(t *testing.T, s *side, sl scan.Slice) (ids []string) {
	t.Helper()
	sl.Strategy = s.order
	err := s.walk(t.Context(), sl, scan.Want{Batch: 7}, func(p *scan.Part) error {
		return p.Each(func(doc []byte) error {
			k, _ := appendID(nil, doc)
			ids = append(ids, string(k))
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestOneSideOnly(t *testing.T) {
	c := cluster(t, "6.0", "rs:1")
	for _, onSource := range []bool{true, false} {
		b := newBed(t, c, c)
		ns, kind := b.pair.Source, Missing
		if !onSource {
			ns, kind = b.pair.Target, Extra
		}
		r := seeded(t)
		want := map[string]expectation{}
		var docs []bson.Raw
		for _, id := range idsOf(300, makeID) {
			d := makeDoc(t, r, id)
			docs = append(docs, d)
			k, _ := appendID(nil, d)
			want[string(k)] = expectation{kind, "all"}
		}
		insert(t, c, ns, docs...)
		rep, _ := b.run(Options{RangeBytes: 3000})
		checkFound(t, rep, want)
		rep, _ = b.run(Options{RangeBytes: 3000, MaxDifferences: 10})
		if rep.Count != 300 || len(rep.Differences) != 10 || !rep.Truncated {
			t.Errorf("count %d, described %d, truncated %v", rep.Count, len(rep.Differences), rep.Truncated)
		}
	}
	b := newBed(t, c, c)
	if rep, _ := b.run(Options{}); !rep.Same {
		t.Error("two collections that do not exist differ")
	}
}
